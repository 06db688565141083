"""Derivatives of einsums, which are einsums.

An einsum is linear in each operand. Its derivative in one operand replaces it by a
direction; the transpose of that linear map replaces it by the cotangent of the result,
and exchanges their index lists. For ``ij,jk->ik`` of A, B and a cotangent Y[i,k]::

    in A:   ik,jk->ij  of Y, B          Y B^T
    in B:   ik,ij->jk  of Y, A          A^T Y

An index that only this operand has was summed, so all entries along it get the same
value: a product with ones. If the einsum reads a diagonal, entries outside of it get 0:
a product with an identity. For ``iij->`` of A[i,i,j] and a number y::

    in A:   ,ia,j->iaj  of y, identity[i,a], ones[j]

:func:`feinsum.integrations.torch_einsum` and :func:`feinsum.integrations.jax_einsum`
use these einsums for derivatives of any order, and batch by adding an index
(:func:`batch_subscripts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from feinsum.calling.terms import Shape, read_terms
from feinsum.subscripts import IndexList, parse_subscripts, write_subscripts


@dataclass(frozen=True)
class Transpose:
    """The transpose of an einsum in one operand.

    Attributes:
        subscripts: subscripts of the einsum that computes it. Its operands are the
            cotangent, the other operands and the constants, in this order.
        other_shapes: shapes of the other operands, without axes that are broadcast.
        constants: shapes of the constants: ``(n,)`` for ones, ``(n, n)`` for an
            identity.
        shape: shape of the operand, with the axes that are broadcast.
    """

    subscripts: str
    other_shapes: tuple[Shape, ...]
    constants: tuple[Shape, ...]
    shape: Shape

    def operands(
        self, cotangent: Any, others: Sequence[Any], library: Any, **options: Any
    ) -> list[Any]:
        """Return the operands of the einsum.

        Args:
            cotangent: the cotangent of the result.
            others: all operands except the one in which the einsum is transposed.
            library: torch or ``jax.numpy``, whose ``ones`` and ``eye`` are called.
            options: keyword arguments for these, such as ``dtype``.
        """
        shaped = [
            x.reshape(shape) for x, shape in zip(others, self.other_shapes, strict=True)
        ]
        constants = [
            library.ones(shape, **options)
            if len(shape) == 1
            else library.eye(shape[0], **options)
            for shape in self.constants
        ]
        return [cotangent, *shaped, *constants]


def infer_result_shape(subscripts: str, shapes: Sequence[Shape]) -> Shape:
    """Return the shape of the result of an einsum.

    Raises:
        InvalidEinsumError: if subscripts and shapes do not fit.

    >>> infer_result_shape("...ij,jk", [(7, 2, 3), (3, 4)])
    (7, 2, 4)
    """
    terms = read_terms(subscripts, shapes)
    return tuple(terms.extents[index] for index in terms.output)


def transpose_einsum(
    subscripts: str, shapes: tuple[Shape, ...], position: int
) -> Transpose:
    """Transpose an einsum as a linear map of one operand.

    Args:
        subscripts: as for :func:`feinsum.einsum`.
        shapes: the shapes of all operands.
        position: the position of this operand.

    Returns:
        The einsum that maps the cotangent of the result to that of the operand, without
        conjugation.

    >>> found = transpose_einsum("iij->", ((3, 3, 4),), 0)
    >>> found.subscripts, found.constants
    (',ia,j->iaj', ((3, 3), (4,)))
    """
    terms = read_terms(subscripts, shapes)
    others = terms.inputs[:position] + terms.inputs[position + 1 :]
    fresh = _generate_names(set(terms.extents))
    target: list[str] = []
    constants: list[IndexList] = []
    for index in terms.inputs[position]:
        if index in target:  # another axis of the diagonal
            target.append(next(fresh))
            constants.append((index, target[-1]))
        else:
            target.append(index)
    bound = {index for term in (terms.output, *others, *constants) for index in term}
    constants += [(index,) for index in target if index not in bound]
    operands = [terms.output, *others, *constants]

    def get_shape(term: IndexList) -> Shape:
        # the second index of an identity is fresh; its extent is that of the first
        return tuple(terms.extents.get(i, terms.extents[term[0]]) for i in term)

    return Transpose(
        write_subscripts(operands, target),
        tuple(map(get_shape, others)),
        tuple(map(get_shape, constants)),
        shapes[position],
    )


def batch_subscripts(
    subscripts: str, shapes: Sequence[Shape], axes: Sequence[int | None]
) -> str:
    """Return the subscripts of a batch of einsums; the index of the batch comes first.

    Args:
        subscripts: the subscripts of one einsum of the batch.
        shapes: the shapes of the operands, including the axis of the batch, if any.
        axes: the axis of the batch in each operand; None for an operand without it.

    >>> batch_subscripts("ij,jk->ik", [(2, 3, 7), (3, 4)], [2, None])
    'ija,jk->aik'
    """
    ranks = [len(s) - (axis is not None) for s, axis in zip(shapes, axes, strict=True)]
    inputs, output = parse_subscripts(subscripts, ranks)
    name = next(_generate_names({index for term in inputs for index in term}))
    terms = [
        term if axis is None else (*term[:axis], name, *term[axis:])
        for term, axis in zip(inputs, axes, strict=True)
    ]
    return write_subscripts(terms, (name, *output))


def _generate_names(used: set[str]) -> Iterator[str]:
    """Yield letters that are not in use, then longer names."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    yield from (letter for letter in letters if letter not in used)
    n = 0
    while True:
        n += 1
        if f"fresh{n}" not in used:
            yield f"fresh{n}"
