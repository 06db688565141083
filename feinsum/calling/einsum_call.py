"""From the arguments of a call to an einsum over arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from constantdict import constantdict

from feinsum.calling.operands import (
    DType,
    check_sizes,
    result_dtype,
    work_dtype,
)
from feinsum.calling.terms import Shape, read_terms
from feinsum.ir import (
    BatchedEinsum,
    Extent,
    IndexList,
    Operand,
    SizeParam,
    generalize,
    with_extents,
)


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
    """Return the strides of an array in C order, in entries.

    >>> c_steps((2, 3, 4))
    (12, 4, 1)
    """
    steps, step = [], 1
    for extent in reversed(extents):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def normalize(
    inputs: Sequence[StridedTerm], output: StridedTerm
) -> tuple[tuple[StridedTerm, ...], StridedTerm]:
    """The same sums of products over the same entries, with as few axes as possible.

    >>> A = StridedTerm(("i", "j"), (2, 3), (3, 1))
    >>> normalize([A, A], A)[1]
    StridedTerm(term=('i',), extents=(6,), steps=(1,))
    """
    # the result stays as it is: every entry is written
    arrays = [*_without_constant(inputs), output]
    arrays = [_in_memory_order(array) for array in arrays]
    while pair := _mergeable(arrays):
        arrays = [_merged(array, *pair) for array in arrays]
    return tuple(arrays[:-1]), arrays[-1]


def _without_constant(inputs: Sequence[StridedTerm]) -> list[StridedTerm]:
    """Drop axes along which an array is constant, if others have the index, too."""
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


def _in_memory_order(array: StridedTerm) -> StridedTerm:
    """Sort the axes by decreasing steps, if all are positive."""
    # a reversed or repeated axis has no place in the order
    if any(step <= 0 for step in array.steps):
        return array
    return StridedTerm.of(sorted(array.axes, key=lambda axis: (-axis[2], -axis[1])))


def _mergeable(arrays: Sequence[StridedTerm]) -> tuple[str, str] | None:
    """Find two indices that are adjacent and contiguous in every array with one."""
    # in the order of the terms, so that equal calls give equal einsums
    seen = dict.fromkeys(pair for array in arrays for pair in pairwise(array.term))
    for pair in seen:
        if pair[0] != pair[1] and all(_is_one(array, *pair) for array in arrays):
            return pair
    return None


def _is_one(array: StridedTerm, outer: str, inner: str) -> bool:
    """Return whether two indices can be merged in an array, as if it has neither."""
    n_outer, n_inner = array.term.count(outer), array.term.count(inner)
    if not n_outer and not n_inner:
        return True
    if n_outer != 1 or n_inner != 1:
        return False
    at = array.term.index(outer)
    if array.term[at + 1 : at + 2] != (inner,):
        return False
    # the outer axis continues where the inner one ends
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


@dataclass(frozen=True)
class Argument:
    """An array of a kernel: the operand of the call that it is, and its shape."""

    name: str
    position: int
    shape: Shape


@dataclass(frozen=True)
class EinsumCall:
    """A call as an einsum.

    Attributes:
        einsum: with normalized names, so that two notations of one einsum are equal;
            long extents are size parameters.
        sizes: the values of the size parameters.
        arguments: what to pass for each operand of :attr:`einsum`.
        shape, dtype: of the result.
    """

    einsum: BatchedEinsum
    sizes: constantdict[str, int]
    arguments: tuple[Argument, ...]
    shape: Shape
    dtype: DType

    @property
    def work_dtype(self) -> DType:
        """The dtype of all operands in a kernel."""
        return work_dtype(self.dtype)

    @property
    def is_empty(self) -> bool:
        """Whether no product is formed: the result has no entries, or only zeros."""
        return 0 in self.einsum.extents.values()


def parse_call(
    subscripts: str, operands: Sequence[tuple[Shape, DType]], first: Sequence[int]
) -> EinsumCall:
    """Return the einsum that a call evaluates, over the axes of its arguments.

    Args:
        operands: shape and dtype of each operand.
        first: the first use of each, see :func:`first_uses`.

    Raises:
        InvalidEinsumError: as :func:`feinsum.call_einsum` does.
    """
    dtype = result_dtype([dtype for _, dtype in operands])
    terms = read_terms(subscripts, [shape for shape, _ in operands])
    indices = dict.fromkeys((*terms.output, *(i for t in terms.inputs for i in t)))
    # numbered by first use: two notations of one einsum become equal
    plain = {index: f"i{k}" for k, index in enumerate(indices)}
    work = work_dtype(dtype)
    arguments: dict[tuple[int, Shape], Argument] = {}
    row = []
    for position, term in zip(first, terms.inputs, strict=True):
        shape = tuple(terms.extents[i] for i in term)
        argument = Argument(f"a{len(arguments)}", position, shape)
        argument = arguments.setdefault((position, shape), argument)
        row.append(Operand(argument.name, shape, work))
    einsum = BatchedEinsum(
        _renamed(terms.output, plain),
        tuple(_renamed(term, plain) for term in terms.inputs),
        (tuple(row),),
    )
    shape = tuple(terms.extents[i] for i in terms.output)
    check_sizes((*(x.shape for x in arguments.values()), shape))
    general, sizes = _generalized(einsum)
    return EinsumCall(general, sizes, tuple(arguments.values()), shape, dtype)


def terms_of(parsed: EinsumCall) -> tuple[list[int], list[IndexList]]:
    """Return the argument of each operand of the einsum, and its indices."""
    number = {x.name: k for k, x in enumerate(parsed.arguments)}
    (row,) = parsed.einsum.rows
    return [number[operand.name] for operand in row], [*parsed.einsum.inputs]


def with_terms(
    parsed: EinsumCall,
    positions: Sequence[int],
    inputs: Sequence[StridedTerm],
    output: StridedTerm,
) -> EinsumCall:
    """Return the einsum of other terms for the same arguments.

    Args:
        positions: of the argument of each operand.
        inputs, output: as made by :func:`normalize`.
    """
    dtype = parsed.work_dtype
    names: dict[tuple[int, StridedTerm], str] = {}
    arguments: dict[str, Argument] = {}
    row = []
    for position, array in zip(positions, inputs, strict=True):
        # one array may be read in two ways, which are two arrays of the kernel
        key = position, StridedTerm((), array.extents, array.steps)
        name = names.setdefault(key, f"a{len(names)}")
        arguments[name] = Argument(name, position, array.extents)
        row.append(Operand(name, array.extents, dtype))
    terms = tuple(array.term for array in inputs)
    einsum = BatchedEinsum(output.term, terms, (tuple(row),))
    general, sizes = _generalized(einsum)
    return EinsumCall(
        general, sizes, tuple(arguments.values()), parsed.shape, parsed.dtype
    )


def _renamed(term: IndexList, names: dict[str, str]) -> IndexList:
    return tuple(names[index] for index in term)


def _generalized(einsum: BatchedEinsum) -> tuple[BatchedEinsum, constantdict[str, int]]:
    """Turn long extents into size parameters, numbered in the order of the indices."""
    general, sizes = generalize(einsum)
    names = {x.name: f"n{k}" for k, x in enumerate(general.size_params)}
    extents: dict[str, Extent] = {
        index: SizeParam(names[x.name]) if isinstance(x, SizeParam) else x
        for index, x in general.extents.items()
    }
    renamed = constantdict({names[name]: value for name, value in sizes.items()})
    return with_extents(general, extents), renamed
