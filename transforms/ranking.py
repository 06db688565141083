"""Configurations of all families, ordered by cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from feinsum.ir import BatchedEinsum, SizeParam, Workload, with_extents
from feinsum.machine import MachineModel
from feinsum.records import TransformSpec
from feinsum.transforms.cost import SizedEinsum
from feinsum.transforms.registry import Transform, list_proposed
from feinsum.transforms.roles import RUN_TIME_EXTENT


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
