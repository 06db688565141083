"""Search by subscripts: any spelling of an einsum finds its workloads.

A search for ``jk,ij->ik`` first tries names of devices and transforms. Then it compares
with the notation of each workload, as ``i j, j k -> i k``: those with the same numbers
of indices in their terms are candidates, and equal keys of the canonical form, with all
extents alike, decide.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import partial

from feinsum.canonical import CanonicalForm
from feinsum.canonical.form import computed_form
from feinsum.db.server import Having, ListedDevice, ListedWorkload, Order, ServingStore
from feinsum.errors import FeinsumError, InvalidEinsumError, InvalidRequestError
from feinsum.ir import (
    BatchedEinsum,
    IndexList,
    array,
    from_text,
    generalize,
    parse_subscripts,
    subscripts_of_words,
)
from feinsum.service.routes.canonicalization import Einsum, einsum_of, index_lists
from feinsum.service.state import Notations
from feinsum.service.text_cache import cache_by_bytes

MAX_TEXT = 2_000
"""Characters of a search."""

ARROW = "→"
"""As pages write it, so that a text copied from a page is found."""

MAX_NOTATIONS = 1_000
"""Spellings of stored workloads that one search may find."""

_KEY = re.compile(r"fe\d+-[A-Za-z0-9._-]{1,120}|[0-9a-f]{6,64}")
"""A key, how one begins, or how its digest begins."""

_NAME = re.compile(r"[^,|<>=]{3,200}")
"""Pattern of the names of transforms and devices."""

_CALL = re.compile(r"""\w\s*\(\s*(?:\w+\s*=\s*)?[rb]?(["'])(.*?)\1""", re.DOTALL)
"""A call whose first argument is a text: ``numpy.einsum("ij,jk->ik", a, b)``."""

_ROWS = re.compile(r"\s*\(\d+ rows\)$")
_SCALAR = "·"
"""Scalar in titles of pages, but not in subscripts."""

MAX_DEVICES = 20

CACHE_BYTES = 32 * 2**20
"""Memory of spellings with their keys: 1.5 kB each."""

MAX_COMPARED = 40
"""New spellings that one search canonicalizes, 1 ms each; the next search goes on."""


@dataclass(frozen=True)
class SearchCriteria:
    """What a workload has to be, or to have, to be listed.

    Attributes:
        q: subscripts, a call with them, the text of a workload, or its key.
        sizes: extents as on the command line, ``i=N,j=4``; may be left out.
        dtype: of an operand, and of all if sizes are given; empty for any, and for
            double precision with sizes.
        device: id of the one on which workloads have facts; empty for any.
        order: of the workloads found.
    """

    q: str = ""
    sizes: str = ""
    dtype: str = ""
    device: str = ""
    order: Order = "speedup"

    def having(self, key: str = "", transform: str = "") -> Having:
        """Filters for the workloads of the search."""
        return Having(key, transform, self.dtype, self.device)


@dataclass(frozen=True)
class SearchView:
    """The result of a search.

    Attributes:
        exact: the workload itself, if all sizes were given and facts are known.
        form: its canonical form, if all sizes were given.
        others: workloads of the same subscripts at any extents, or with a key or a
            recipe that begins so.
        devices: whose names or microarchitectures have what was searched for.
        problem: why nothing could be searched for, in words.
        is_partial: not all workloads were compared in the time that a search has.
    """

    exact: ListedWorkload | None = None
    form: CanonicalForm | None = None
    others: tuple[ListedWorkload, ...] = ()
    devices: tuple[ListedDevice, ...] = ()
    problem: str = ""
    is_partial: bool = False


def search(
    criteria: SearchCriteria,
    store: ServingStore,
    notations: Notations,
    limit_s: float,
    start: int = 0,
    limit: int = 100,
) -> SearchView:
    """The workloads that a text means.

    Args:
        limit_s: how long canonicalization may take, in all.
        start: how many workloads are on the pages before.
    """
    text = _subscripts_in(criteria.q).replace(ARROW, "->").replace(_SCALAR, "")
    if len(text) > MAX_TEXT or len(criteria.sizes) > MAX_TEXT:
        return SearchView(problem=f"expected at most {MAX_TEXT} characters")
    # a key is no subscripts, and needs no canonicalization
    if _KEY.fullmatch(text):
        having = criteria.having(key=text)
        others = store.ordered_workloads(start, limit, criteria.order, having)
        return SearchView(store.listed_workload(text, criteria.device), others=others)
    if named := _named(text, criteria, store, start, limit):
        return named
    try:
        inputs, output, einsum = _read(text, criteria)
        form = _form(einsum, limit_s)
        # after the canonicalization of the query itself, which has its own limit
        deadline = time.monotonic() + limit_s
        key = _shape_key(inputs, output, limit_s)
    except FeinsumError as error:
        return SearchView(problem=str(error))
    alike, is_partial = _alike(inputs, output, key, notations(), deadline)
    listed = partial(store.ordered_workloads, start, limit, criteria.order)
    others = listed(criteria.having(), alike) if alike else ()
    exact = store.listed_workload(form.key, criteria.device) if form else None
    return SearchView(exact, form, others, is_partial=is_partial)


def _subscripts_in(q: str) -> str:
    """What is searched for: of a call, its first argument.

    >>> _subscripts_in('C = np.einsum("ij,jk->ik", a, b)'), _subscripts_in(" ij,j ")
    ('ij,jk->ik', 'ij,j')
    """
    call = _CALL.search(q)
    return _ROWS.sub("", (call[2] if call else q).strip())


def _named(
    text: str, criteria: SearchCriteria, store: ServingStore, start: int, limit: int
) -> SearchView | None:
    """Devices or transforms of that name; None if there are none."""
    if not _NAME.fullmatch(text):
        return None
    devices = store.devices_named(text, MAX_DEVICES)
    having = criteria.having(transform=text.partition("@")[0])
    others = store.ordered_workloads(start, limit, criteria.order, having)
    return SearchView(others=others, devices=devices) if others or devices else None


def _form(einsum: BatchedEinsum | None, limit_s: float) -> CanonicalForm | None:
    if einsum is None:
        return None
    return computed_form(generalize(einsum)[0], limit_s)


def _read(
    text: str, criteria: SearchCriteria
) -> tuple[tuple[IndexList, ...], IndexList, BatchedEinsum | None]:
    """The index lists of what was typed, and the einsum if its sizes are known."""
    if "|" in text:
        einsum = from_text(text)
        return einsum.inputs, einsum.output, einsum
    extents = _extents(criteria.sizes)
    inputs, output = _lists(text, extents)
    indices = {index for term in inputs for index in term}
    unknown = sorted(set(extents) - indices)
    if unknown:
        raise InvalidRequestError(f"the subscripts have no index {unknown[0]!r}")
    if not indices or indices - set(extents):
        return inputs, output, None
    request = Einsum(
        subscripts=text, extents=extents, dtype=criteria.dtype[:50] or "float64"
    )
    return inputs, output, einsum_of(request)


def _lists(
    text: str, extents: dict[str, int | str]
) -> tuple[tuple[IndexList, ...], IndexList]:
    """The terms and the output; also with spaces between names, as texts have them."""
    terms = [term.split() for term in text.partition("->")[0].split(",")]
    # "ij k" has a name of two letters beside others: names, not letters
    is_spaced = any(len(term) > 1 and max(map(len, term)) > 1 for term in terms)
    if extents or "{" in text or not is_spaced:
        return index_lists(text, extents)
    return parse_subscripts(subscripts_of_words(text))


def _extents(sizes: str) -> dict[str, int | str]:
    """Extents by index.

    >>> _extents("i=N, j=4")
    {'i': 'N', 'j': 4}
    """
    extents: dict[str, int | str] = {}
    for item in filter(None, map(str.strip, sizes.split(","))):
        index, equals, value = (part.strip() for part in item.partition("="))
        # int() takes digits of all scripts, and any number of them
        is_number = value.isascii() and value.isdecimal() and len(value) < 20
        if not (index and equals and (is_number or value.isidentifier())):
            raise InvalidRequestError(
                f"{item[:50]!r} was given as a size, expected i=4 or i=N"
            )
        extents[index] = int(value) if is_number else value
    return extents


def _alike(
    inputs: tuple[IndexList, ...],
    output: IndexList,
    key: str,
    notations: frozenset[str],
    deadline: float,
) -> tuple[list[str], bool]:
    """The notations with the key of an einsum; and whether time ran out."""
    profile = _profile(" , ".join(map(" ".join, inputs)), " ".join(output))
    alike: list[str] = []
    n_new = 0
    for notation in sorted(notations):
        is_enough = n_new >= MAX_COMPARED or len(alike) >= MAX_NOTATIONS
        if is_enough or time.monotonic() > deadline:
            return alike, True
        terms, _, result = notation.partition("->")
        # much faster than a canonical form, and rules out nearly all
        if _profile(terms, result) != profile:
            continue
        # spellings with a cached key cost nothing
        n_new += notation not in _key_of.cache
        if _key_of(notation) == key:
            alike.append(notation)
    return alike, False


def _profile(terms: str, output: str) -> tuple[list[int], int]:
    """Numbers of indices: common to all spellings, and quickly computed."""
    return sorted(len(term.split()) for term in terms.split(",")), len(output.split())


@cache_by_bytes(CACHE_BYTES)
def _key_of(notation: str) -> str | None:
    """The key of the subscripts of a workload; None if they are none."""
    terms, _, output = notation.partition("->")
    inputs = tuple(tuple(term.split()) for term in terms.split(","))
    try:
        return _shape_key(inputs, tuple(output.split()), 0.5)
    except FeinsumError:
        return None


def _shape_key(inputs: tuple[IndexList, ...], output: IndexList, limit_s: float) -> str:
    """The key of subscripts alone: of the einsum with all extents alike.

    >>> _shape_key((("i", "j"), ("j", "k")), ("i", "k"), 1.0) == _shape_key(
    ...     (("b", "c"), ("a", "b")), ("a", "c"), 1.0)
    True
    """
    if len(inputs) > MAX_TEXT:
        raise InvalidEinsumError("too many operands", rules=("subscripts",))
    # extents and dtypes alike: only the subscripts decide
    operands = tuple(array(f"A{k}", (2,) * len(term)) for k, term in enumerate(inputs))
    einsum = BatchedEinsum(output, inputs, (operands,))
    return computed_form(einsum, limit_s).key
