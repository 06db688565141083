"""Costs: what cost models count, and configurations of all families ordered by cost.

Costs rank recipes; they need not be accurate. A family counts the cycles of its loops
and the bytes that it moves; :func:`feinsum.machine.estimate_region_s` converts them to
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from feinsum.ir import BatchedEinsum, IndexList, SizeParam, Workload, with_extents
from feinsum.machine import Gpu as Gpu
from feinsum.machine import MachineModel as MachineModel
from feinsum.machine import estimate_region_s as estimate_region_s
from feinsum.records import TransformSpec
from feinsum.transforms.registry import Transform, list_proposed
from feinsum.transforms.roles import RUN_TIME_EXTENT, count_points


@dataclass(frozen=True)
class SizedEinsum(BatchedEinsum):
    """An einsum with numbers for all extents.

    Attributes:
        at_run_time: the indices whose extents a kernel learns only at run time. Their
            tiles have a fixed size; other indices are cut into tiles of about equal
            size.
    """

    at_run_time: frozenset[str] = frozenset()

    __hash__ = BatchedEinsum.__hash__


def compute_padding(extent: int, unit: int) -> float:
    """Return the work of a loop over whole tiles, relative to that of its extent.

    >>> compute_padding(20, 16)
    1.6
    """
    return -(-extent // unit) * unit / max(extent, 1)


def list_loads(einsum: BatchedEinsum) -> list[tuple[IndexList, int]]:
    """List the indices and the itemsize of every array that is read."""
    seen = {
        (operand.name, term): operand.dtype.itemsize
        for row in einsum.rows
        for operand, term in zip(row, einsum.inputs, strict=True)
    }
    return [(term, itemsize) for (_, term), itemsize in seen.items()]


def count_distinct_bytes(einsum: BatchedEinsum) -> tuple[int, int]:
    """Return the bytes of all distinct operands, and those of all results."""
    read = sum(
        count_points(einsum, dict.fromkeys(term)) * itemsize
        for term, itemsize in list_loads(einsum)
    )
    n_results = count_points(einsum, einsum.output)
    return read, sum(n_results * dtype.itemsize for dtype in einsum.output_dtypes)


class Costed(NamedTuple):
    """A recipe and its estimated time in seconds."""

    seconds: float
    spec: TransformSpec


def replace_sizes(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> SizedEinsum:
    """Replace all size parameters by numbers; unknown ones count as long.

    >>> from feinsum.ir import array, einsum
    >>> general = einsum("ij,j->i", array("A", ("N", 4)), array("x", 4))
    >>> dict(replace_sizes(general, {"N": 100}).extents)
    {'i': 100, 'j': 4}
    """
    extents = {
        index: sizes.get(x.name, RUN_TIME_EXTENT) if isinstance(x, SizeParam) else x
        for index, x in einsum.extents.items()
    }
    at_run_time = {i for i, x in einsum.extents.items() if isinstance(x, SizeParam)}
    sized = with_extents(einsum, extents)
    return SizedEinsum(sized.output, sized.inputs, sized.rows, frozenset(at_run_time))


def rank_recipes(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    transforms: Iterable[Transform],
    machine: MachineModel,
) -> list[Costed]:
    """Rank the proposals of all families with a cost, cheapest first.

    Args:
        einsum: the einsum to whose names recipes refer.
        sizes: values of its size parameters, as far as they are known.
        transforms: the families.
        machine: the machine whose time is predicted.
    """
    sized, workload = replace_sizes(einsum, sizes), Workload(einsum, sizes)
    costed = [
        Costed(transform.cost(sized, parameters, machine), transform.spec(parameters))
        for transform in transforms
        if transform.cost is not None
        for parameters in list_proposed(transform, workload)
    ]
    return sorted(costed, key=lambda x: (x.seconds, str(x.spec)))
