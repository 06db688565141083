"""Canonicalization, for clients without nauty.

``{"subscripts": "ij,j->i", "extents": {"i": "N", "j": 4}}`` has the same key as
``{"text": "p q, q -> p | M[n,4]:<f8 y[4]:<f8 | M y"}``.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from feinsum.canonical.form import compute_form
from feinsum.errors import InvalidRequestError
from feinsum.ir import (
    BatchedEinsum,
    IndexList,
    array,
    convert_words,
    from_text,
    generalize,
    parse_subscripts,
    to_text,
)
from feinsum.service.keys import KeyHolder
from feinsum.service.problems import OF_BODIES, describe_problems
from feinsum.service.settings import Settings
from feinsum.service.state import Reading, TheService
from feinsum.words import format_count

router = APIRouter(prefix="/v1", tags=["canonical form"])

MAX_TEXT = 100_000
"""Characters of an einsum."""

MAX_USES = 200
"""Operands, in all rows together, and indices of an einsum without a key."""

ANONYMOUS_S = 0.5
"""How long nauty may search without a key, in a separate process."""

Names: TypeAlias = Annotated[list[str], Field(fail_fast=True)]
Dtype: TypeAlias = Annotated[str, Field(max_length=50)]


class Einsum(BaseModel):
    """An einsum: its text form, or subscripts with extents and dtypes.

    Attributes:
        text: as ``feinsum canonicalize`` prints it; the rest is left out then.
        extents: of every index: a number, or a name for a size that is known only
            at run time.
        operands: names, one for each term; A, B, C... if left out.
        rows: names of the operands of each row of a batch, in place of ``operands``.
        dtype: numpy's name of the dtype of all operands.
        dtypes: of single operands, by name.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"subscripts": "ij,j->i", "extents": {"i": "N", "j": 4}}
        },
    )

    text: Annotated[str | None, Field(max_length=MAX_TEXT)] = None
    subscripts: Annotated[str | None, Field(max_length=MAX_TEXT)] = None
    extents: dict[str, int | str] = {}
    operands: Names | None = None
    rows: Annotated[list[Names], Field(fail_fast=True)] | None = None
    dtype: Dtype = "float64"
    dtypes: dict[str, Dtype] = {}


class Relabeled(BaseModel):
    """The bijections from the einsum that was sent to its canonical form."""

    indices: dict[str, str]
    operands: dict[str, str]
    size_params: dict[str, str]
    rows: list[int]
    positions: list[list[int]]


class Canonical(BaseModel):
    """A canonical form.

    Attributes:
        key: the key for ``best``.
        text: what the key digests.
        einsum: what was sent, with size parameters for its long extents.
        generalized: the extent behind each of these parameters.
    """

    key: str
    text: str
    einsum: str
    generalized: dict[str, int]
    relabeling: Relabeled


@router.post("/canonicalize", responses=describe_problems(*OF_BODIES))
def canonicalize(einsum: Einsum, service: TheService, caller: Reading) -> Canonical:
    """Return the key, the canonical text and the relabeling of an einsum."""
    text = einsum.text or einsum.subscripts or ""
    # before parsing, which takes longer than counting commas
    check_work(text, caller, len(einsum.rows or ()), len(einsum.extents))
    # long literal extents are parameters in look-ups, and so in keys
    general, literal = generalize(parse_einsum(einsum))
    # not from the cache of forms, which does not bound the length of texts
    form = compute_form(general, limit_for(caller, service.settings))
    return Canonical(
        key=form.key,
        text=form.text,
        einsum=to_text(general),
        generalized=dict(literal),
        relabeling=Relabeled(**vars(form.relabeling)),
    )


def limit_for(caller: KeyHolder, settings: Settings) -> float:
    """Return how many seconds one canonicalization of a caller may search."""
    limit_s = settings.canonicalization_s
    return limit_s if caller.key_id else min(limit_s, ANONYMOUS_S)


def check_work(
    text: str, caller: KeyHolder, n_rows: int = 1, n_extents: int = 0
) -> None:
    """Refuse an einsum that would take a worker too long, for a caller without a key.

    Args:
        text: subscripts, or the text of an einsum with its rows.
        caller: the caller, who is limited without a key.
        n_rows: number of rows given apart from the text.
        n_extents: number of extents.

    Raises:
        InvalidRequestError: if it is too large.
    """
    # an estimate: the text may be no einsum
    n_terms = 1 + text.partition("|")[0].count(",")
    n_uses = n_terms * max(n_rows, 1 + text.count(";")) + n_extents
    is_large = n_uses > MAX_USES or len(text) > 100 * MAX_USES
    if is_large and not caller.key_id:
        raise InvalidRequestError(
            f"an einsum of about {n_uses} operands and indices in {len(text)} "
            f"characters was sent, expected {MAX_USES} in {100 * MAX_USES} at most "
            "without a key; send a key"
        )


def parse_einsum(request: Einsum) -> BatchedEinsum:
    """Return the einsum that a request describes.

    Raises:
        InvalidEinsumError, InvalidRequestError: if it describes none.

    >>> print(parse_einsum(Einsum(subscripts="ij,j", extents={"i": "n", "j": 4})))
    ij,j->i of (A B) with A[n,4]:<f8, B[4]:<f8
    """
    if (request.text is None) == (request.subscripts is None):
        raise InvalidRequestError("expected either 'text' or 'subscripts'")
    if request.text is not None:
        return from_text(request.text.strip())
    inputs, output = index_lists(request.subscripts or "", request.extents)
    missing = {i for term in (*inputs, output) for i in term} - set(request.extents)
    if missing:
        raise InvalidRequestError(f"no extent is given for {min(missing)!r}")
    shapes = [tuple(request.extents[index] for index in term) for term in inputs]
    rows = []
    for names in _list_rows(request, len(inputs)):
        if len(names) != len(inputs):
            raise InvalidRequestError(
                f"{','.join(names)!r} names {format_count(len(names), 'operand')}, but "
                f"the subscripts have {format_count(len(inputs), 'term')}"
            )
        dtypes = [request.dtypes.get(name, request.dtype) for name in names]
        rows.append(tuple(map(array, names, shapes, dtypes)))
    return BatchedEinsum(output, inputs, tuple(rows))


def index_lists(
    subscripts: str, extents: dict[str, int | str]
) -> tuple[tuple[IndexList, ...], IndexList]:
    """Return the terms and the output.

    Earlier clients separate long names by spaces; the names of extents determine these.
    """
    if "{" not in subscripts and any(len(index) > 1 for index in extents):
        subscripts = convert_words(subscripts)
    return parse_subscripts(subscripts)


def _list_rows(request: Einsum, n_terms: int) -> list[list[str]]:
    if request.operands is not None and request.rows is not None:
        raise InvalidRequestError("expected 'operands' or 'rows', not both")
    if request.rows is not None:
        return request.rows
    # A to Z, then A1 to Z1
    letters = [f"{chr(65 + k % 26)}{k // 26 or ''}" for k in range(n_terms)]
    return [letters if request.operands is None else request.operands]
