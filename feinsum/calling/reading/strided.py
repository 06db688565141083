"""Einsums simplified by memory layout: fewer axes, in memory order.

A kernel on the host gets addresses, not shapes. So an einsum may treat an array as any
other array with its entries at the same addresses: with axes permuted or merged, or
without axes along which it is constant. More calls then share a kernel, and its loops
are longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from feinsum.ir import IndexList


@dataclass(frozen=True)
class StridedTerm:
    """The term of an array, and its memory layout.

    Attributes:
        extents: extents of its axes.
        steps: stride along each axis, in entries.
    """

    term: IndexList
    extents: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def axes(self) -> Iterator[tuple[str, int, int]]:
        return zip(self.term, self.extents, self.steps, strict=True)

    @classmethod
    def of(cls, axes: Sequence[tuple[str, int, int]]) -> StridedTerm:
        term, extents, steps = zip(*axes, strict=True) if axes else ((), (), ())
        return cls(tuple(term), tuple(extents), tuple(steps))


def c_steps(extents: Sequence[int]) -> tuple[int, ...]:
    """Strides of an array in C order.

    >>> c_steps((2, 3, 4))
    (12, 4, 1)
    """
    steps, step = [], 1
    for extent in reversed(extents):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def simplified(
    inputs: Sequence[StridedTerm], output: StridedTerm
) -> tuple[tuple[StridedTerm, ...], StridedTerm]:
    """The same sums of products over the same entries, with as few axes as possible.

    >>> A = StridedTerm(("i", "j"), (2, 3), (3, 1))
    >>> simplified([A, A], A)[1]
    StridedTerm(term=('i',), extents=(6,), steps=(1,))
    """
    arrays = [*_without_constant(inputs), output]
    arrays = [_in_memory_order(array) for array in arrays]
    while pair := _mergeable(arrays):
        arrays = [_merged(array, *pair) for array in arrays]
    return tuple(arrays[:-1]), arrays[-1]


def _without_constant(inputs: Sequence[StridedTerm]) -> list[StridedTerm]:
    """Without axes along which an array is constant, if others have the index too."""
    kept, n_uses = [], Counter(index for array in inputs for index in array.term)
    for array in inputs:
        axes = []
        for index, extent, step in array.axes:
            is_alone = array.term.count(index) == 1
            if step == 0 and is_alone and n_uses[index] > 1:
                n_uses[index] -= 1
            else:
                axes.append((index, extent, step))
        kept.append(StridedTerm.of(axes))
    return kept


def _in_memory_order(array: StridedTerm) -> StridedTerm:
    """The longest steps first, where all go forwards."""
    if any(step <= 0 for step in array.steps):
        return array
    return StridedTerm.of(sorted(array.axes, key=lambda axis: (-axis[2], -axis[1])))


def _mergeable(arrays: Sequence[StridedTerm]) -> tuple[str, str] | None:
    """Two indices that stand side by side wherever one of them stands, as one would."""
    seen = dict.fromkeys(pair for array in arrays for pair in pairwise(array.term))
    for pair in seen:
        if pair[0] != pair[1] and all(_is_one(array, *pair) for array in arrays):
            return pair
    return None


def _is_one(array: StridedTerm, outer: str, inner: str) -> bool:
    """Whether the two can be one index in an array, as they can where none stands."""
    n_outer, n_inner = array.term.count(outer), array.term.count(inner)
    if not n_outer and not n_inner:
        return True
    if n_outer != 1 or n_inner != 1:
        return False
    at = array.term.index(outer)
    if array.term[at + 1 : at + 2] != (inner,):
        return False
    return array.steps[at] == array.steps[at + 1] * array.extents[at + 1]


def _merged(array: StridedTerm, outer: str, inner: str) -> StridedTerm:
    if outer not in array.term:
        return array
    at = array.term.index(outer)
    extent = array.extents[at] * array.extents[at + 1]
    return replace(
        array,
        term=(*array.term[: at + 1], *array.term[at + 2 :]),
        extents=(*array.extents[:at], extent, *array.extents[at + 2 :]),
        steps=(*array.steps[:at], *array.steps[at + 1 :]),
    )
