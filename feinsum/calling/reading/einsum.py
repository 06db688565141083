"""From the arguments of a call to an einsum over arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from constantdict import constantdict

from feinsum.calling.reading.dtypes import (
    DType,
    check_sizes,
    result_dtype,
    work_dtype,
)
from feinsum.calling.reading.strided import StridedTerm
from feinsum.calling.reading.terms import Shape, read_terms
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
class Feed:
    """Which argument of the call feeds an array of the kernel, and with which shape."""

    name: str
    position: int
    shape: Shape


@dataclass(frozen=True)
class Reading:
    """A call as an einsum.

    Attributes:
        einsum: with normalized names, so that two notations of one einsum are equal;
            long extents are size parameters.
        sizes: the values of the size parameters.
        feeds: what to pass for each operand of :attr:`einsum`.
        shape, dtype: of the result.
    """

    einsum: BatchedEinsum
    sizes: constantdict[str, int]
    feeds: tuple[Feed, ...]
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


def read_shapes(
    subscripts: str, given: Sequence[tuple[Shape, DType]], first: Sequence[int]
) -> Reading:
    """The einsum that a call evaluates, over the axes of its arguments.

    Args:
        given: shape and dtype of each operand.
        first: the first use of each, see :func:`first_uses`.

    Raises:
        InvalidEinsumError: as :func:`feinsum.call_einsum` does.
    """
    dtype = result_dtype([dtype for _, dtype in given])
    terms = read_terms(subscripts, [shape for shape, _ in given])
    indices = dict.fromkeys((*terms.output, *(i for t in terms.inputs for i in t)))
    plain = {index: f"i{k}" for k, index in enumerate(indices)}
    work = work_dtype(dtype)
    feeds: dict[tuple[int, Shape], Feed] = {}
    row = []
    for position, term in zip(first, terms.inputs, strict=True):
        shape = tuple(terms.extents[i] for i in term)
        feed = Feed(f"a{len(feeds)}", position, shape)
        feed = feeds.setdefault((position, shape), feed)
        row.append(Operand(feed.name, shape, work))
    einsum = BatchedEinsum(
        _renamed(terms.output, plain),
        tuple(_renamed(term, plain) for term in terms.inputs),
        (tuple(row),),
    )
    shape = tuple(terms.extents[i] for i in terms.output)
    check_sizes((*(feed.shape for feed in feeds.values()), shape))
    general, sizes = _generalized(einsum)
    return Reading(general, sizes, tuple(feeds.values()), shape, dtype)


def terms_of(reading: Reading) -> tuple[list[int], list[IndexList]]:
    """The feed of each operand of the einsum, and its indices."""
    number = {feed.name: k for k, feed in enumerate(reading.feeds)}
    (row,) = reading.einsum.rows
    return [number[operand.name] for operand in row], [*reading.einsum.inputs]


def reading_of(
    reading: Reading,
    positions: Sequence[int],
    inputs: Sequence[StridedTerm],
    output: StridedTerm,
) -> Reading:
    """The reading of other terms for the same arguments.

    Args:
        positions: of the argument of each operand.
        inputs, output: as made by :func:`feinsum.calling.reading.strided.simplified`.
    """
    dtype = reading.work_dtype
    names: dict[tuple[int, StridedTerm], str] = {}
    feeds: dict[str, Feed] = {}
    row = []
    for position, array in zip(positions, inputs, strict=True):
        key = position, StridedTerm((), array.extents, array.steps)
        name = names.setdefault(key, f"a{len(names)}")
        feeds[name] = Feed(name, position, array.extents)
        row.append(Operand(name, array.extents, dtype))
    terms = tuple(array.term for array in inputs)
    einsum = BatchedEinsum(output.term, terms, (tuple(row),))
    general, sizes = _generalized(einsum)
    return Reading(general, sizes, tuple(feeds.values()), reading.shape, reading.dtype)


def _renamed(term: IndexList, names: dict[str, str]) -> IndexList:
    return tuple(names[index] for index in term)


def _generalized(einsum: BatchedEinsum) -> tuple[BatchedEinsum, constantdict[str, int]]:
    """Long extents as size parameters, numbered in the order of the indices."""
    general, sizes = generalize(einsum)
    names = {x.name: f"n{k}" for k, x in enumerate(general.size_params)}
    extents: dict[str, Extent] = {
        index: SizeParam(names[x.name]) if isinstance(x, SizeParam) else x
        for index, x in general.extents.items()
    }
    renamed = constantdict({names[name]: value for name, value in sizes.items()})
    return with_extents(general, extents), renamed
