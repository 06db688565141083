"""Where arrays lie: which names share storage, and which places are distinct."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeAlias

import islpy as isl
import loopy as lp
import numpy as np
from loopy.diagnostic import UnableToDetermineAccessRangeError
from loopy.kernel.array import ArrayBase
from loopy.symbolic import get_access_map, get_dependencies
from pymbolic import primitives as p
from pytools import memoize_on_first_arg

from feinsum.raising.functions import is_plain_array
from feinsum.raising.nest import Expression

__all__ = [
    "Subscripts",
    "has_distinct_entries",
    "have_own_entries",
    "never_meet",
    "storage",
    "subscripts_of",
]

Subscripts: TypeAlias = tuple[Expression, ...]
"""Those of one access; none for a scalar."""


def storage(kernel: lp.LoopKernel, names: Iterable[str]) -> frozenset[str]:
    """The memory behind names; temporaries may share some."""
    known = kernel.temporary_variables
    return frozenset(
        (getattr(known.get(name), "base_storage", None) or name) for name in names
    )


def has_distinct_entries(kernel: lp.LoopKernel, name: str) -> bool:
    """Whether no two entries of an array share a place, as far as numbers tell."""
    array = kernel.get_var_descriptor(name)
    if not isinstance(array, ArrayBase):
        return True
    if not is_plain_array(array):
        return False
    if not isinstance(array.shape, tuple):
        return True
    strides: list[Any] = [getattr(tag, "stride", None) for tag in array.dim_tags or ()]
    steps = []
    for stride, extent in zip(strides, array.shape, strict=False):
        if not _is_integer(stride) or (_is_integer(extent) and extent <= 1):
            continue
        if stride == 0:
            return False
        if _is_integer(extent):
            steps.append((abs(stride), int(extent)))
    reach = 0
    for stride, extent in sorted(steps):
        if stride <= reach:
            return False
        reach += stride * (extent - 1)
    return True


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer))


def never_meet(
    kernel: lp.LoopKernel,
    name: str,
    mine: Iterable[Subscripts],
    theirs: Iterable[Subscripts],
) -> bool:
    """Whether two sets of accesses have no entry of an array in common.

    That is so if no iterations of any loops reach one entry: ``A[2*i]`` and
    ``A[2*j + 1]`` never meet, nor do ``A[i]`` with ``i < 12`` and ``A[12 + j]``.
    """
    others = [*theirs]
    return has_distinct_entries(kernel, name) and all(
        _are_apart(kernel, a, b) for a in mine for b in others
    )


def _are_apart(kernel: lp.LoopKernel, first: Subscripts, second: Subscripts) -> bool:
    if first == second or len(first) != len(second):
        return False
    if any(
        a != b
        for a, b in zip(first, second, strict=True)
        if _is_integer(a) and _is_integer(b)
    ):
        return True
    reached = _entries(kernel, first), _entries(kernel, second)
    if reached[0] is None or reached[1] is None:
        return False
    return bool(reached[0].intersect(reached[1]).is_empty())


@memoize_on_first_arg  # type: ignore[untyped-decorator]
def _entries(kernel: lp.LoopKernel, subscripts: Subscripts) -> isl.Set | None:
    """All entries that an access reaches; None if isl cannot tell.

    Bounds that the kernel computes differ from one iteration to the next.
    """
    inames = kernel.all_inames() & frozenset[str]().union(
        *map(get_dependencies, subscripts)
    )
    domain = kernel.get_inames_domain(inames).to_set()
    sizes = kernel.get_unwritten_value_args()
    if not sizes >= {*domain.get_var_names(isl.dim_type.param)}:
        return None
    try:
        return get_access_map(
            domain, subscripts, kernel.assumptions, allowed_constant_names=sizes
        ).range()
    except UnableToDetermineAccessRangeError:
        return None


def have_own_entries(
    accesses: Collection[Subscripts],
    inames: Collection[str],
    distinct: Collection[Subscripts] = (),
) -> bool:
    """Whether no two iterations of loops access the same entry of an array.

    That is so if each iname is a subscript at one place of all accesses, or if all
    accesses are one that is known to be another entry in every iteration.

    Args:
        distinct: subscripts of such accesses.
    """
    if len({*accesses} & {*distinct}) == len({*accesses}) == 1:
        (only,) = {*accesses}
        return {*inames} <= frozenset[str]().union(*map(get_dependencies, only))
    n_axes = min(map(len, accesses))
    return all(
        any(
            all(_is_iname(subscripts[axis], iname) for subscripts in accesses)
            for axis in range(n_axes)
        )
        for iname in inames
    )


def _is_iname(subscript: Expression, iname: str) -> bool:
    return isinstance(subscript, p.Variable) and subscript.name == iname


def subscripts_of(access: Expression) -> Subscripts:
    """The subscripts of a read or of an assignee; none for a scalar."""
    return access.index_tuple if isinstance(access, p.Subscript) else ()
