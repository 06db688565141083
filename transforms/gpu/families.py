"""What the families for GPUs share: dtypes, limits of work-groups, starts, and costs.

The cost of a family is a function of the GPU alone, as it runs on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import loopy as lp
import numpy as np

from feinsum.dtypes import is_half
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.records import ParameterValue
from feinsum.records.environment import DeviceKind
from feinsum.transforms.cost import Gpu, MachineModel
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.registry import Parameters, Table, Transform, register

GPUS: frozenset[DeviceKind] = frozenset({"gpu"})
"""The kinds of devices that these families are for."""


def has_plain_dtype(einsum: BatchedEinsum) -> bool:
    """Return whether GPU kernels support all dtypes, of which none may be complex."""
    return all(
        operand.dtype.kind in "biuf" or is_half(operand.dtype)
        for operand in einsum.operands
    )


def is_double(einsum: BatchedEinsum) -> bool:
    """Return whether all operands are of double precision."""
    return {operand.dtype for operand in einsum.operands} == {np.dtype(np.float64)}


def has_half_dtype(einsum: BatchedEinsum) -> bool:
    """Tell whether all operands are of one type of half precision."""
    dtypes = {operand.dtype for operand in einsum.operands}
    return len(dtypes) == 1 and all(map(is_half, dtypes))


def explain_items(n_items: int, least: int = 1) -> str | None:
    """Explain why a group cannot have so many work-items; None if it can."""
    if least <= n_items <= h.MAX_THREADS:
        return None
    return f"{n_items} work-items in a group, expected {least} to {h.MAX_THREADS}"


def explain_shared_bytes(n_bytes: int, most: int) -> str | None:
    """Explain why a group cannot have so much shared memory; None if it can."""
    return f"{n_bytes} bytes of shared memory, of {most}" if n_bytes > most else None


def list_starts(
    table: Table, names: Sequence[str], starts: Sequence[Sequence[ParameterValue]]
) -> Iterator[Parameters]:
    """Yield starts, given by the values of ``names``; others have the first value."""
    first = {name: values[0] for name, values in table.items()}
    for values in starts:
        yield first | dict(zip(names, values, strict=True))


GpuCost: TypeAlias = Callable[[BatchedEinsum, Parameters, Gpu], float]
"""About how many seconds a configuration takes on a GPU."""


def register_family(
    name: str,
    version: int,
    summary: str,
    space: Callable[[Workload], Table | None],
    apply: Callable[[lp.TranslationUnit, LoopNest, Parameters], lp.TranslationUnit],
    cost: GpuCost,
) -> Transform:
    """Register a family for GPUs alone; see :class:`Transform`."""
    predict_s = partial(_predict_s, cost)
    return register(
        Transform(name, version, summary, space, apply, predict_s, devices=GPUS)
    )


def _predict_s(
    cost: GpuCost, einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    # no machine without a GPU meets these families
    assert machine.gpu is not None
    return cost(einsum, parameters, machine.gpu)
