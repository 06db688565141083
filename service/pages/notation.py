"""Einsums as a page shows them."""

from __future__ import annotations

from dataclasses import dataclass

from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum, IndexList, from_text, write_subscripts
from feinsum.service.text_cache import cache_by_bytes

MAX_TEXT = 20_000
"""Characters of a text that is parsed; a longer one is shown as it is."""

CACHE_BYTES = 16 * 2**20

MAX_ROWS = 4
"""Rows of a batch that are written out."""


@dataclass(frozen=True)
class Array:
    """An operand: its name, its shape and its dtype, in words."""

    name: str
    shape: str
    dtype: str


@dataclass(frozen=True)
class Notation:
    """An einsum in words.

    Attributes:
        title: the subscripts; the text itself if that is no einsum.
        shapes: all operands in one line, and of which dtype they are.
        dtypes: of the operands, each once.
        formulas: what the rows compute, the first ones.
        n_rows: of the batch.
    """

    title: str
    shapes: str = ""
    dtypes: str = ""
    formulas: tuple[str, ...] = ()
    arrays: tuple[Array, ...] = ()
    n_rows: int = 0


@cache_by_bytes(CACHE_BYTES)
def notation_of(text: str) -> Notation:
    """The words for a workload, by its text.

    >>> words = notation_of("i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x")
    >>> words.title, words.shapes
    ('ij, j → i', 'A[N × 4], x[4] · float64')
    >>> words.formulas
    ('out[i] = Σ j  A[i,j] · x[j]',)
    >>> notation_of("no einsum").title
    'no einsum'
    """
    einsum = read(text)
    if einsum is None:
        return Notation(text)
    arrays = tuple(
        Array(operand.name, " × ".join(map(str, operand.shape)), operand.dtype.name)
        for operand in einsum.operands
    )
    shapes = ", ".join(f"{array.name}[{array.shape}]" for array in arrays)
    dtypes = ", ".join(dict.fromkeys(array.dtype for array in arrays))
    # a single row needs no number
    is_batch = einsum.batch_size > 1
    return Notation(
        title=_title(einsum),
        shapes=f"{shapes} · {dtypes}",
        dtypes=dtypes,
        formulas=tuple(
            _formula(einsum, row, str(row) if is_batch else "")
            for row in range(min(einsum.batch_size, MAX_ROWS))
        ),
        arrays=arrays,
        n_rows=einsum.batch_size,
    )


def read(text: str) -> BatchedEinsum | None:
    """The einsum of a text; None if it is too long, or none."""
    # parsing takes time in proportion; facts of others may have any text
    if len(text) > MAX_TEXT:
        return None
    try:
        return from_text(text)
    except FeinsumError:
        return None


def _title(einsum: BatchedEinsum) -> str:
    terms = [write_subscripts([term]) for term in (*einsum.inputs, einsum.output)]
    rows = f"  ({einsum.batch_size} rows)" if einsum.batch_size > 1 else ""
    return f"{', '.join(terms[:-1])} → {terms[-1] or '·'}{rows}"


def _formula(einsum: BatchedEinsum, row: int, suffix: str) -> str:
    def access(name: str, indices: IndexList) -> str:
        return f"{name}[{','.join(indices)}]" if indices else name

    factors = [
        access(operand.name, term)
        for operand, term in zip(einsum.rows[row], einsum.inputs, strict=True)
    ]
    sums = " ".join(einsum.summation_indices)
    total = f"Σ {sums}  " if sums else ""
    return f"{access(f'out{suffix}', einsum.output)} = {total}{' · '.join(factors)}"
