"""Reports of runs: traffic, times and memory, compared with the prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Boxes, Overlap
from feinsum.distributed.lowering import Input
from feinsum.distributed.plan import Plan
from feinsum.distributed.traffic import Traffic
from feinsum.words import counted


@dataclass(frozen=True)
class Edge:
    """The traffic between ranks from a tensor to a statement.

    Attributes:
        tensor: the tensor that was fetched, or whose partial results were reduced.
        reader: the result of the statement that reads it; empty for partial results.
        predicted: number of elements by the steps of the plan.
        counted: number of elements received; None if the engine could not count them.
    """

    tensor: str
    reader: str
    predicted: int
    counted: int | None


@dataclass(frozen=True)
class RunReport:
    """The report of one run of a plan.

    Attributes:
        engine: the engine that ran it.
        edges: edges of all tensors that moved.
        leaf_s: seconds in leaves on the slowest rank, by the result of each statement.
        peak_bytes: peak bytes held in buffers by each rank.
        wall_s: seconds of the whole run, including distribution and collection.
        lost_workers: number of workers that were replaced; then parts were computed
            twice, and there are no counts.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (4, 6)), feinsum.array("B", (6, 5))
    >>> plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=4)
    >>> report = plan.prepare().run({"A": np.eye(4, 6), "B": np.ones((6, 5))}).report
    >>> report.counted == report.predicted == plan.counts.moved
    True
    """

    engine: str
    edges: tuple[Edge, ...]
    leaf_s: Mapping[str, float]
    peak_bytes: tuple[int, ...]
    wall_s: float
    lost_workers: int = 0

    @property
    def predicted(self) -> int:
        """Elements that all ranks should receive."""
        return sum(edge.predicted for edge in self.edges)

    @property
    def counted(self) -> int | None:
        """Elements that all ranks received; None if unknown."""
        counts = [edge.counted for edge in self.edges]
        known = [n for n in counts if n is not None]
        return sum(known) if len(known) == len(counts) else None

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(report: RunReport) -> Iterator[str]:
    n = len(report.peak_bytes)
    yield f"{counted(n, 'process')} ({report.engine}) in {report.wall_s:.3g} s"
    for edge in report.edges:
        to = f"to {edge.reader}" if edge.reader else "partial results"
        received = (
            "not counted" if edge.counted is None else f"{edge.counted:,} counted"
        )
        yield (
            f"  {edge.tensor} {to}: {counted(edge.predicted, 'element', ',')} "
            f"predicted, {received}"
        )
    for result, seconds in report.leaf_s.items():
        yield f"  {result}: {seconds:.3g} s in the slowest process"
    if n:
        yield f"at most {counted(max(report.peak_bytes), 'byte', ',')} in a process"
    if report.lost_workers:
        verb = "was" if report.lost_workers == 1 else "were"
        yield f"{counted(report.lost_workers, 'worker')} {verb} lost and replaced"


def report_of(
    plan: Plan,
    engine: str,
    traffic: Sequence[Traffic],
    wall_s: float,
    lost_workers: int = 0,
) -> RunReport:
    """The report of what all ranks did."""
    names = [group.output.tensor for group in plan.groups]
    came: Counter[str] = Counter()
    for one in traffic:
        came.update(one.by_buffer)
    counted, expected = _by_edge(came, names), predicted_by_edge(plan)
    edges = tuple(
        Edge(*edge, expected[edge], None if lost_workers else counted[edge])
        for edge in {**expected, **counted}
        if expected[edge] or counted[edge]
    )
    leaf_s = {
        name: max((one.seconds[k] for one in traffic), default=0.0)
        for k, name in enumerate(names)
    }
    peaks = tuple(one.peak_bytes for one in traffic)
    return RunReport(engine, edges, leaf_s, peaks, wall_s, lost_workers)


def predicted_by_edge(plan: Plan) -> Counter[tuple[str, str]]:
    """Elements by tensor and reader, as in :class:`Edge`."""
    arrivals = _Arrivals()
    plan.lower(arrivals)
    return _by_edge(arrivals.found, [group.output.tensor for group in plan.groups])


def _by_edge(
    by_buffer: Mapping[str, int], names: Sequence[str]
) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for buffer, n in by_buffer.items():
        found[_edge(buffer, names)] += n
    return found


def _edge(buffer: str, names: Sequence[str]) -> tuple[str, str]:
    """The edge of a tensor fetched for a statement, or of partial results.

    >>> _edge("A@1.0.0", ["t1", "out"]), _edge("out", ["t1", "out"])
    (('A', 'out'), ('out', ''))
    """
    tensor, at, place = buffer.partition("@")
    return (tensor, names[int(place.partition(".")[0])] if at else "")


class _Arrivals:
    """The sink that counts the elements received by each buffer."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def make(self, name: str, boxes: Boxes, *, is_zero: bool) -> None:
        """Nothing comes."""

    def move(
        self, source: str, target: str, found: Overlap, tag: int, *, is_added: bool
    ) -> None:
        sizes: NDArray[Any] = found.sizes()[found.source != found.target]
        self.found[target] += int(np.sum(sizes))

    def compute(
        self, group: int, inputs: Sequence[Input], name: str, boxes: Boxes
    ) -> None:
        """Nothing comes."""

    def free(self, name: str, ranks: NDArray[np.bool_]) -> None:
        """Nothing comes."""
