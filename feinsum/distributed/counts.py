"""Counts: what a plan moves and computes, predicted from its steps and counted in runs.

``A[i,j] * B[j,k]``, 600 x 600 each, on 2 x 2 x 2 processes: each operand is fetched
once more than it is resident, 2 x 360,000 elements received; the result has two partial
sums of every element, one of which moves, 360,000 reduced; 1,080,000 moved in all.

The prediction (:func:`tally`) sums the events of the lowering without making steps, so
that a planner can compare thousands of plans. Engines count with :class:`Traffic`
what really arrives, and :class:`RunReport` compares both by tensor and reader.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Boxes
from feinsum.distributed.steps import (
    Allocation,
    Computation,
    Move,
    Release,
    get_tensor,
    lower,
)
from feinsum.records import Links
from feinsum.words import format_count

if TYPE_CHECKING:
    from feinsum.distributed.plans import Plan

MAX_ROW_NUMBER = 2**62
"""Numbers of rows that fit a 64-bit integer, with a factor of two to spare."""


USUAL_LINKS = Links(message_s=0.0, element_s=1e-9)
"""Links of ranks on one host, which exchange 8 GB of doubles in a second.

The latency of large messages is negligible.
"""


@dataclass(frozen=True)
class Rates:
    """Seconds per operation of a process: the model by which plans are compared.

    Attributes:
        point_s: seconds of a multiply-add.
        links: seconds of messages and elements that it receives.
    """

    point_s: float = 1e-10
    links: Links = USUAL_LINKS


USUAL = Rates()
"""Rates of a core with 20 Gflop/s."""


TIE = 1.01
"""Ratio of times of the slowest process up to which plans tie, and volume decides."""


class Estimate(NamedTuple):
    """The values by which two plans are compared.

    Attributes:
        seconds: estimated seconds of the process that takes longest.
        moved: elements that pass between ranks.
        counts: the counts of the plan, except for requests, which are 0.
    """

    seconds: float
    moved: int
    counts: Counts

    def is_better_than(self, other: Estimate) -> bool:
        """Return whether the slowest process takes clearly less time.

        If the two times tie, the plan that moves less is better.
        """
        if self.seconds > TIE * other.seconds or other.seconds > TIE * self.seconds:
            return self.seconds < other.seconds
        return self.moved < other.moved


@dataclass(frozen=True)
class Counts:
    """Elements, messages and multiply-adds of a plan.

    Attributes:
        received: elements that pass between ranks unchanged.
        reduced: elements of partial sums that pass between ranks.
        most_received: the sum of both, for the rank that receives the most.
        messages: messages of all ranks.
        most_messages: maximum number of messages received by one rank.
        most_requests: maximum number of ranks to which one rank sends the same block at
            once.
        peak: maximum elements that a rank holds at one time, including operands.
        points: multiply-adds of all ranks, for the statements as given.
        most_points: multiply-adds of the busiest rank.
        busy: number of ranks that compute anything.
    """

    received: int
    reduced: int
    most_received: int
    messages: int
    most_messages: int
    most_requests: int
    peak: int
    points: int
    most_points: int
    busy: int

    @property
    def moved(self) -> int:
        """Communication volume: elements that pass between ranks."""
        return self.received + self.reduced

    def document(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return {"moved": self.moved, **asdict(self)}


@dataclass(frozen=True, eq=False)
class Tally:
    """Elements that each rank receives, computes and holds, by the events of a plan.

    Arrays hold Python's integers, which do not overflow.

    Attributes:
        received, reduced, messages, points, peak: see :class:`Counts`; one per rank.
    """

    received: NDArray[Any]
    reduced: NDArray[Any]
    messages: NDArray[np.float64]
    points: NDArray[Any]
    peak: NDArray[Any]
    most_requests: int

    def compute_slowest_s(self, rates: Rates) -> float:
        """Return the seconds of the rank that takes longest, by a model."""
        elements = (self.received + self.reduced).astype(float)
        seconds = self.points.astype(float) * rates.point_s
        seconds = seconds + elements * rates.links.element_s
        return float((seconds + self.messages * rates.links.message_s).max())

    def counts(self) -> Counts:
        """Return sums and maxima over the ranks."""
        return Counts(
            received=int(self.received.sum()),
            reduced=int(self.reduced.sum()),
            most_received=int((self.received + self.reduced).max()),
            messages=int(self.messages.sum()),
            most_messages=int(self.messages.max()),
            most_requests=self.most_requests,
            peak=int(self.peak.max()),
            points=int(self.points.sum()),
            most_points=int(self.points.max()),
            busy=int((self.points > 0).sum()),
        )


def count_stored(boxes: Boxes, density: Fraction | None) -> list[int]:
    """Return the elements that every rank stores of its box.

    An entry of a sparse tensor is its value and its indices. Entries are counted as if
    they were spread evenly.

    Args:
        boxes: a box for each rank.
        density: the share of entries that are stored; None if all are.
    """
    sizes = boxes.sizes()
    if density is None:
        return sizes
    per_entry = 1 + boxes.first.shape[1]
    return [per_entry * ceil(density * size) for size in sizes]


def tally(
    plan: Plan, max_steps: int | None = None, *, has_requests: bool = True
) -> Tally:
    """Count elements, messages and multiply-adds of a plan without making its steps.

    Args:
        plan: the plan.
        max_steps: see :func:`feinsum.distributed.steps.lower`.
        has_requests: also count requests, which takes most of the time.
    """
    resident, density = plan.resident_elements, plan.density
    in_use = np.array(resident, object)
    peak, sizes, most_requests = in_use.copy(), dict[str, NDArray[Any]](), 0
    received, reduced, points = np.zeros((3, len(in_use)), object)
    messages = np.zeros(len(in_use))
    for event in lower(plan, max_steps):
        match event:
            case Allocation(buffer, boxes):
                share = density.get(get_tensor(buffer))
                sizes[buffer] = np.array(count_stored(boxes, share), object)
                in_use = in_use + sizes[buffer]
                # only an allocation can raise the peak
                peak = np.maximum(peak, in_use)
            case Release(buffer, ranks):
                in_use = in_use - sizes[buffer] * ranks
            case Computation():
                points = points + _count_points(event, density) * _make_exact(
                    event.weight
                )
            case Move(overlap=overlap):
                is_sent = event.is_sent
                receivers, n_elements = (
                    overlap.target[is_sent],
                    overlap.sizes()[is_sent],
                )
                # one move fits 64 bits, which are added faster than Python's integers
                by_rank = np.zeros(len(in_use), np.int64)
                np.add.at(by_rank, receivers, n_elements)
                total = reduced if event.is_added else received
                total += by_rank.astype(object) * _make_exact(event.weight)
                np.add.at(messages, receivers, event.weight)
                if has_requests and len(receivers):
                    most_requests = max(most_requests, _count_requests(event))
    return Tally(received, reduced, messages, points, peak, most_requests)


def _make_exact(weight: float) -> float:
    """Return the integer 1 for a weight of 1.0, so that products stay integers."""
    return 1 if weight == 1 else weight


def _count_points(event: Computation, density: Mapping[str, Fraction]) -> NDArray[Any]:
    """Return the multiply-adds of every rank, at the entries that are stored."""
    # an index of several inputs has one length, as all have the same block
    lengths = {
        index: read.boxes.lengths[:, axis]
        for read in event.inputs
        for axis, index in enumerate(read.indices)
    }
    points: NDArray[Any] = np.array(event.boxes.is_there, object) * 1
    for length in lengths.values():
        points = points * length.astype(object)
    for read in event.inputs:
        # the first buffer of an input is where its tensor is
        share = density.get(read.buffers[0][0])
        if share is not None:
            points = np.array([ceil(share * n) for n in points], object)
    return points


def _count_requests(move: Move) -> int:
    """Return the maximum number of ranks to which one rank sends the same block.

    Requests for one block at a time contend for its sender's link.
    """
    overlap = move.overlap
    blocks = [overlap.source[:, None], overlap.first, overlap.end]
    sent = np.concatenate(blocks, axis=1)[move.is_sent]
    _, n_requests = np.unique(_number_rows(sent), return_counts=True)
    return int(n_requests.max())


def _number_rows(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each row of natural numbers; equal rows have equal numbers.

    Numbers are sorted ten times as fast as rows.

    >>> _number_rows(np.array([[0, 3], [1, 2], [0, 3]])).tolist()
    [3, 6, 3]
    """
    numbers, n_numbers = np.zeros(len(rows), np.int64), 1
    for column in rows.T:
        n_values = int(column.max()) + 1
        if n_numbers * n_values >= MAX_ROW_NUMBER:
            # the numbers so far have gaps: renumber consecutively
            different, numbers = np.unique(numbers, return_inverse=True)
            n_numbers = len(different)
        numbers = numbers * n_values + column
        n_numbers *= n_values
    return numbers


class Traffic:
    """Elements that one rank received, computed and held, counted by the engine.

    Attributes:
        received: elements received unchanged.
        reduced: elements of partial results received.
        messages: number of messages received.
        by_buffer: elements received, by buffer.
        seconds: seconds in leaves, by the number of the group.
        peak_bytes: peak bytes held in buffers, including operands.
    """

    def __init__(self) -> None:
        self.received = self.reduced = self.messages = 0
        self.by_buffer: Counter[str] = Counter()
        self.seconds: defaultdict[int, float] = defaultdict(float)
        self.peak_bytes = self._bytes = 0

    def count_message(self, buffer: str, n_elements: int, *, is_added: bool) -> None:
        """Count a message received into a buffer."""
        self.messages += 1
        self.reduced += n_elements * is_added
        self.received += n_elements * (not is_added)
        self.by_buffer[buffer] += n_elements

    def count_bytes(self, n_bytes: int) -> None:
        """Count a change in the number of bytes held."""
        self._bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self._bytes)

    def copy(self) -> Traffic:
        """Return a copy of the counts, to continue from."""
        other = Traffic()
        # numbers are copied by value; the two containers follow
        other.__dict__.update(self.__dict__)
        other.by_buffer, other.seconds = self.by_buffer.copy(), self.seconds.copy()
        return other


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
        counts = [edge.counted for edge in self.edges if edge.counted is not None]
        return sum(counts) if len(counts) == len(self.edges) else None

    def __str__(self) -> str:
        return "\n".join(_format_report(self))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        results: every output by name; empty on all MPI ranks except the first.
        report: what moved, and how long it took.
    """

    results: Mapping[str, Any]
    report: RunReport


def _format_report(report: RunReport) -> Iterator[str]:
    n = len(report.peak_bytes)
    yield f"{format_count(n, 'process')} ({report.engine}) in {report.wall_s:.3g} s"
    for edge in report.edges:
        destination = f"to {edge.reader}" if edge.reader else "partial results"
        received = (
            "not counted" if edge.counted is None else f"{edge.counted:,} counted"
        )
        yield (
            f"  {edge.tensor} {destination}: "
            f"{format_count(edge.predicted, 'element', ',')} predicted, {received}"
        )
    for result, seconds in report.leaf_s.items():
        yield f"  {result}: {seconds:.3g} s in the slowest process"
    if n:
        yield (
            f"at most {format_count(max(report.peak_bytes), 'byte', ',')} in a process"
        )
    if report.lost_workers:
        verb = "was" if report.lost_workers == 1 else "were"
        yield f"{format_count(report.lost_workers, 'worker')} {verb} lost and replaced"


def build_report(
    plan: Plan,
    engine: str,
    traffic: Sequence[Traffic],
    wall_s: float,
    lost_workers: int = 0,
) -> RunReport:
    """Build the report of a run from the traffic of all ranks.

    Args:
        plan: the plan that ran.
        engine: name of the engine.
        traffic: one for each rank.
        wall_s: duration of the run in seconds.
        lost_workers: number of workers that were lost during the run.
    """
    names = [group.output.tensor for group in plan.groups]
    received: Counter[str] = Counter()
    for rank in traffic:
        received.update(rank.by_buffer)
    measured, predicted = _sum_by_edge(received, names), predict_by_edge(plan)
    edges = tuple(
        Edge(*edge, predicted[edge], None if lost_workers else measured[edge])
        for edge in {**predicted, **measured}
        # an engine may count traffic that the plan did not predict: report it, too
        if predicted[edge] or measured[edge]
    )
    leaf_s = {
        name: max((rank.seconds[k] for rank in traffic), default=0.0)
        for k, name in enumerate(names)
    }
    peaks = tuple(rank.peak_bytes for rank in traffic)
    return RunReport(engine, edges, leaf_s, peaks, wall_s, lost_workers)


def predict_by_edge(plan: Plan) -> Counter[tuple[str, str]]:
    """Count the elements that a plan moves, by tensor and reader of an edge."""
    by_buffer: Counter[str] = Counter()
    for event in plan.events():
        if isinstance(event, Move):
            by_buffer[event.target] += int(event.overlap.sizes()[event.is_sent].sum())
    return _sum_by_edge(by_buffer, [group.output.tensor for group in plan.groups])


def _sum_by_edge(
    by_buffer: Mapping[str, int], names: Sequence[str]
) -> Counter[tuple[str, str]]:
    by_edge: Counter[tuple[str, str]] = Counter()
    for buffer, n_elements in by_buffer.items():
        by_edge[_parse_edge(buffer, names)] += n_elements
    return by_edge


def _parse_edge(buffer: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the edge of a tensor fetched for a statement, or of a result.

    >>> _parse_edge("A@1.0.0", ["t1", "out"]), _parse_edge("out", ["t1", "out"])
    (('A', 'out'), ('out', ''))
    """
    # names of buffers: see feinsum.distributed.steps
    tensor, separator, number = buffer.partition("@")
    is_fetched = separator and number != "result"
    return (tensor, names[int(number.partition(".")[0])] if is_fetched else "")
