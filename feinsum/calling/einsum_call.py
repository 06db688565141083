"""The einsum of a call: from subscripts, shapes and strides to a symbolic einsum.

:func:`parse_call` numbers the indices, so that two notations of one einsum are equal,
and makes long extents size parameters, so that one kernel serves many sizes.
:func:`normalize_terms` then merges axes that are adjacent and contiguous in every
array. For ``abi,ij->abj`` of arrays in C order, with extents a=9, b=80, i=40, j=30::

    parsed       i0 i1 i3, i3 i2 -> i0 i1 i2     a0[9,80,40]  a1[40,30]
    normalized   i0 i3, i3 i2 -> i0 i2           a0[n0,40]    a1[40,30]    n0 = 720
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod

import numpy as np
from constantdict import constantdict

from feinsum.calling.operands import (
    DType,
    check_sizes,
    find_result_dtype,
    get_work_dtype,
)
from feinsum.calling.terms import Shape, read_terms
from feinsum.ir import (
    BatchedEinsum,
    Extent,
    IndexList,
    Operand,
    SizeParam,
    find_tied_indices,
)
from feinsum.ir.workload import LONG_EXTENT

MIN_TERMS = 1 << 15
"""Minimum terms of a sum that is added up in double precision. Shorter sums lose no
more than a dot product of numpy; their operands may be in a cache, and then conversions
take time that a kernel does not spend waiting for memory.
"""
MAX_READS = 2
"""Maximum products per operand entry at which a kernel is still bound by memory."""
WIDE = {np.dtype("f4"): np.dtype("f8"), np.dtype("c8"): np.dtype("c16")}
"""The dtype in which long sums of each dtype are added up."""


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


def compute_c_steps(extents: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array in C order, in entries.

    >>> compute_c_steps((2, 3, 4))
    (12, 4, 1)
    """
    steps, step = [], 1
    for extent in reversed(extents):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def normalize_terms(
    inputs: Sequence[StridedTerm],
    output: StridedTerm,
    varying: frozenset[str] = frozenset(),
) -> tuple[tuple[StridedTerm, ...], StridedTerm, frozenset[str]]:
    """Rewrite an einsum over the same entries with as few axes as possible.

    Axes of the result may only be merged. Indices in ``varying`` have varying extents.

    Returns:
        The terms, the result, and the indices that have varying extents now.

    >>> A = StridedTerm(("i", "j"), (2, 3), (3, 1))
    >>> normalize_terms([A, A], A)[1]
    StridedTerm(term=('i',), extents=(6,), steps=(1,))
    """
    # the result stays as it is: every entry is written
    arrays = [*_without_constant(inputs), output]
    arrays = [_sort_in_memory_order(array) for array in arrays]
    while pair := _find_mergeable(arrays):
        arrays = [_merge_axes(array, *pair) for array in arrays]
        outer, inner = pair
        if inner in varying:
            varying |= {outer}
    return tuple(arrays[:-1]), arrays[-1], varying


def _without_constant(inputs: Sequence[StridedTerm]) -> list[StridedTerm]:
    """Drop axes along which an array is constant, if another array has the index."""
    terms, n_uses = [], Counter(index for array in inputs for index in array.term)
    for array in inputs:
        axes = []
        for index, extent, step in array.axes:
            is_alone = array.term.count(index) == 1
            # the last array with an index keeps it, and with it the extent
            if step == 0 and is_alone and n_uses[index] > 1:
                n_uses[index] -= 1
            else:
                axes.append((index, extent, step))
        terms.append(StridedTerm.of(axes))
    return terms


def _sort_in_memory_order(array: StridedTerm) -> StridedTerm:
    """Sort the axes by decreasing steps, if all are positive."""
    # strides of a reversed or repeated axis do not define an order
    if any(step <= 0 for step in array.steps):
        return array
    return StridedTerm.of(sorted(array.axes, key=lambda axis: (-axis[2], -axis[1])))


def _find_mergeable(arrays: Sequence[StridedTerm]) -> tuple[str, str] | None:
    """Find two indices that can be merged in every array; None if there are none."""
    # in the order of the terms, so that equal calls give equal einsums
    seen = dict.fromkeys(pair for array in arrays for pair in pairwise(array.term))
    for pair in seen:
        if pair[0] != pair[1] and all(_can_merge(array, *pair) for array in arrays):
            return pair
    return None


def _can_merge(array: StridedTerm, outer: str, inner: str) -> bool:
    """Return whether two indices can be merged in an array.

    They can if the array has neither, or both, adjacent and contiguous.
    """
    n_outer, n_inner = array.term.count(outer), array.term.count(inner)
    if not n_outer and not n_inner:
        return True
    if n_outer != 1 or n_inner != 1:
        return False
    axis = array.term.index(outer)
    if array.term[axis + 1 : axis + 2] != (inner,):
        return False
    # the outer axis continues where the inner one ends
    return array.steps[axis] == array.steps[axis + 1] * array.extents[axis + 1]


def _merge_axes(array: StridedTerm, outer: str, inner: str) -> StridedTerm:
    if outer not in array.term:
        return array
    axis = array.term.index(outer)
    extent = array.extents[axis] * array.extents[axis + 1]
    return replace(
        array,
        term=(*array.term[: axis + 1], *array.term[axis + 2 :]),
        extents=(*array.extents[:axis], extent, *array.extents[axis + 2 :]),
        steps=(*array.steps[:axis], *array.steps[axis + 1 :]),
    )


@dataclass(frozen=True)
class Argument:
    """An array argument of a kernel: the position of its operand, and its shape."""

    name: str
    position: int
    shape: Shape


@dataclass(frozen=True)
class EinsumCall:
    """A call as an einsum.

    Index names are normalized, so that two notations of one einsum are equal.

    Attributes:
        inputs, output: the indices of each operand, and of the result.
        extents: the extent of every index, beginning with those of the result.
        uses: for each operand of the einsum, the position of its argument.
        arguments: the arrays that a kernel gets.
        shape, dtype: shape and dtype of the result.
        varying: indices whose extents are size parameters although they are short.
        fixed: indices whose extents are literal although they are long.
        is_narrow: whether kernels read halves as they are, and add up in single
            precision.
    """

    inputs: tuple[IndexList, ...]
    output: IndexList
    extents: constantdict[str, int]
    uses: tuple[int, ...]
    arguments: tuple[Argument, ...]
    shape: Shape
    dtype: DType
    varying: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    is_narrow: bool = False

    @property
    def work_dtype(self) -> DType:
        """The dtype of all operands in a kernel."""
        return self.dtype if self.is_narrow else get_work_dtype(self.dtype)

    @property
    def is_empty(self) -> bool:
        """Whether no product is formed: the result has no entries, or only zeros."""
        return 0 in self.extents.values()

    @cached_property
    def size_params(self) -> Mapping[str, str]:
        """The size parameter of each index with a long or varying extent.

        Equal extents share one; they are numbered in the order of the indices.
        """
        short = {self.extents[index] for index in self.varying}
        summed = {*self.extents} - {*self.output}
        names = [self.arguments[k].name for k in self.uses]
        literal = self.fixed | find_tied_indices(
            summed, zip(names, self.inputs, strict=True)
        )
        params: dict[int, str] = {}
        return {
            index: params.setdefault(extent, f"n{len(params)}")
            for index in self.output
            if (extent := self.extents[index]) >= LONG_EXTENT or extent in short
            if index not in literal
        }

    @cached_property
    def sizes(self) -> constantdict[str, int]:
        """The values of the size parameters."""
        params = self.size_params
        return constantdict({name: self.extents[i] for i, name in params.items()})

    @cached_property
    def einsum(self) -> BatchedEinsum:
        """The einsum, whose long extents are size parameters."""
        params, dtype = self.size_params, self.work_dtype
        row = []
        for k, term in zip(self.uses, self.inputs, strict=True):
            shape: list[Extent] = [
                SizeParam(params[i]) if i in params else self.extents[i] for i in term
            ]
            row.append(Operand(self.arguments[k].name, tuple(shape), dtype))
        return BatchedEinsum(self.output, self.inputs, (tuple(row),))

    @property
    def has_wide_sums(self) -> bool:
        """Whether sums are added up in double precision; see :func:`has_wide_sums`."""
        return _are_wide(self.inputs, self.output, self.extents, self.work_dtype)

    @property
    def structure(self) -> Hashable:
        """The call without the values of its size parameters, as a key."""
        params = self.size_params
        extents = (*[params.get(index, n) for index, n in self.extents.items()],)
        return self.output, self.inputs, self.uses, extents, self.dtype.str


def parse_call(
    subscripts: str,
    operands: Sequence[tuple[Shape, DType]],
    first: Sequence[int],
    varying: Collection[str] = (),
) -> EinsumCall:
    """Build the einsum that a call evaluates, over the axes of its arguments.

    Args:
        subscripts: as for :func:`feinsum.call_einsum`.
        operands: shape and dtype of each operand.
        first: for each operand, the position of its first use; see :func:`first_uses`.
        varying: see :class:`EinsumCall`.

    Raises:
        InvalidEinsumError: as :func:`feinsum.call_einsum` does.
    """
    dtype = find_result_dtype([dtype for _, dtype in operands])
    terms = read_terms(subscripts, [shape for shape, _ in operands])
    indices = dict.fromkeys((*terms.output, *(i for t in terms.inputs for i in t)))
    # numbered by first use: two notations of one einsum become equal
    plain = {index: f"i{k}" for k, index in enumerate(indices)}
    arguments: dict[tuple[int, Shape], int] = {}
    uses = []
    for position, term in zip(first, terms.inputs, strict=True):
        shape = tuple(terms.extents[i] for i in term)
        uses.append(arguments.setdefault((position, shape), len(arguments)))
    output = tuple(terms.extents[i] for i in terms.output)
    check_sizes((*(shape for _, shape in arguments), output))
    return EinsumCall(
        tuple(_rename_term(term, plain) for term in terms.inputs),
        _rename_term(terms.output, plain),
        constantdict({plain[index]: terms.extents[index] for index in indices}),
        tuple(uses),
        tuple(Argument(f"a{k}", *key) for k, key in enumerate(arguments)),
        output,
        dtype,
        frozenset(varying),
    )


def with_terms(
    parsed: EinsumCall,
    inputs: Sequence[StridedTerm],
    output: StridedTerm,
    varying: frozenset[str],
) -> EinsumCall:
    """Build the einsum with terms of :func:`normalize_terms` for the same arguments."""
    # an array that is read in two ways is two arguments of the kernel
    arguments: dict[tuple[int, StridedTerm], int] = {}
    uses = []
    for use, array in zip(parsed.uses, inputs, strict=True):
        position = parsed.arguments[use].position
        key = position, StridedTerm((), array.extents, array.steps)
        uses.append(arguments.setdefault(key, len(arguments)))
    extents = {index: n for array in inputs for index, n, _ in array.axes}
    indices = dict.fromkeys((*output.term, *extents))
    return EinsumCall(
        tuple(array.term for array in inputs),
        output.term,
        constantdict({index: extents[index] for index in indices}),
        tuple(uses),
        tuple(
            Argument(f"a{k}", position, array.extents)
            for k, (position, array) in enumerate(arguments)
        ),
        parsed.shape,
        parsed.dtype,
        varying & {*indices},
        is_narrow=parsed.is_narrow,
    )


def _rename_term(term: IndexList, names: dict[str, str]) -> IndexList:
    return tuple(names[index] for index in term)


def has_wide_sums(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    """Return whether sums are long enough to need double precision at no cost in time.

    There is no cost if the kernel waits for memory anyway.
    """
    extents = einsum.extents_at(sizes)
    dtype = np.result_type(*einsum.output_dtypes)
    return _are_wide(einsum.inputs, einsum.output, extents, dtype)


def _are_wide(
    inputs: Sequence[IndexList],
    output: IndexList,
    extents: Mapping[str, int],
    dtype: DType,
) -> bool:
    n_terms = prod(extents[i] for i in {*extents} - {*output})
    if dtype not in WIDE or n_terms < MIN_TERMS:
        return False
    entries = sum(prod(extents[i] for i in {*term}) for term in inputs)
    return prod(extents.values()) <= MAX_READS * entries
