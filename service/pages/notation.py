"""Einsums as a page shows them.

``i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x`` becomes ``ij, j → i``, with the formula
``out[i] = Σ j  A[i,j] · x[j]`` and its arrays ``A[N × 4], x[4] · float64``.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from cachetools import LRUCache, cached

from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum, IndexList, from_text, write_subscripts

MAX_TEXT = 20_000
"""Maximum characters of a text to parse; a longer one is shown as it is."""

MAX_ROWS = 4
"""Rows of a batch that are written out."""

CACHE_BYTES = 16 * 2**20


def estimate_bytes(value: object) -> int:
    """Estimate from above how much memory an entry of a cache takes.

    A character has up to four bytes, and an object with short fields 50 bytes and more.
    A number of entries alone bounds no memory, since callers choose the lengths of
    texts.
    """
    return 700 + 8 * len(repr(value))


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
        text: the text of the workload; a cache counts it as the size of the key.
        title: the subscripts; the text itself if it is not an einsum.
        shapes: all operands in one line, and of which dtype they are.
        dtypes: of the operands, each once.
        formulas: what the rows compute, the first ones.
        n_rows: of the batch.
    """

    text: str
    title: str
    shapes: str = ""
    dtypes: str = ""
    formulas: tuple[str, ...] = ()
    arrays: tuple[Array, ...] = ()
    n_rows: int = 0


@cached(LRUCache(CACHE_BYTES, estimate_bytes), lock=Lock())
def make_notation(text: str) -> Notation:
    """Describe a workload, given by its text.

    >>> words = make_notation("i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x")
    >>> words.title, words.shapes
    ('ij, j → i', 'A[N × 4], x[4] · float64')
    >>> words.formulas
    ('out[i] = Σ j  A[i,j] · x[j]',)
    >>> make_notation("no einsum").title
    'no einsum'
    """
    # parsing takes time in proportion to the length, which others choose
    if len(text) > MAX_TEXT:
        return Notation(text, text)
    try:
        einsum = from_text(text)
    except FeinsumError:
        return Notation(text, text)
    arrays = tuple(
        Array(operand.name, " × ".join(map(str, operand.shape)), operand.dtype.name)
        for operand in einsum.operands
    )
    shapes = ", ".join(f"{array.name}[{array.shape}]" for array in arrays)
    dtypes = ", ".join(dict.fromkeys(array.dtype for array in arrays))
    rows = range(min(einsum.batch_size, MAX_ROWS))
    return Notation(
        text=text,
        title=_format_title(einsum),
        shapes=f"{shapes} · {dtypes}",
        dtypes=dtypes,
        formulas=tuple(_format_formula(einsum, row) for row in rows),
        arrays=arrays,
        n_rows=einsum.batch_size,
    )


def _format_title(einsum: BatchedEinsum) -> str:
    terms = [write_subscripts([term]) for term in (*einsum.inputs, einsum.output)]
    rows = f"  ({einsum.batch_size} rows)" if einsum.batch_size > 1 else ""
    return f"{', '.join(terms[:-1])} → {terms[-1] or '·'}{rows}"


def _format_formula(einsum: BatchedEinsum, row: int) -> str:
    def access(name: str, indices: IndexList) -> str:
        return f"{name}[{','.join(indices)}]" if indices else name

    # a single row needs no number
    out = f"out{row}" if einsum.batch_size > 1 else "out"
    factors = [
        access(operand.name, term)
        for operand, term in zip(einsum.rows[row], einsum.inputs, strict=True)
    ]
    sums = " ".join(einsum.summation_indices)
    total = f"Σ {sums}  " if sums else ""
    return f"{access(out, einsum.output)} = {total}{' · '.join(factors)}"
