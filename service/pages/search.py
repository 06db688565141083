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
from threading import Lock
from typing import Any

from cachetools import LRUCache, cached
from cachetools.keys import hashkey

from feinsum.canonical import CanonicalForm
from feinsum.canonical.form import compute_form
from feinsum.db.server.pages import Having, ListedDevice, ListedWorkload, Order
from feinsum.db.server.serving import ServingStore
from feinsum.errors import FeinsumError, InvalidEinsumError, InvalidRequestError
from feinsum.ir import (
    BatchedEinsum,
    IndexList,
    array,
    convert_words,
    from_text,
    generalize,
    parse_subscripts,
)
from feinsum.service.pages.words import estimate_bytes
from feinsum.service.routes.canonicalization import Einsum, index_lists, parse_einsum

MAX_TEXT = 2_000
"""Characters of a search."""

ARROW = "→"
"""Characters as pages write them, so that a text copied from a page is found."""

SCALAR = "·"
"""Scalar in titles of pages, but not in subscripts."""

MAX_DEVICES = 20

MAX_NOTATIONS = 1_000
"""Spellings of stored workloads that one search may find."""

MAX_COMPARED = 40
"""New spellings that one search canonicalizes, 1 ms each; the next search goes on."""

CACHE_BYTES = 32 * 2**20
"""Memory of spellings with their keys: 1.5 kB each."""

_KEY = re.compile(r"fe\d+-[A-Za-z0-9._-]{1,120}|[0-9a-f]{6,64}")
"""Pattern of a key, of its beginning, or of that of its digest."""

_NAME = re.compile(r"[^,|<>=]{3,200}")
"""Pattern of the names of transforms and devices."""

_CALL = re.compile(r"""\w\s*\(\s*(?:\w+\s*=\s*)?[rb]?(["'])(.*?)\1""", re.DOTALL)
"""A call whose first argument is a text: ``numpy.einsum("ij,jk->ik", a, b)``."""

_ROWS = re.compile(r"\s*\(\d+ rows\)$")


@dataclass(frozen=True)
class SearchCriteria:
    """Conditions on the workloads to list.

    Attributes:
        q: subscripts, a call with them, the text of a workload, or its key.
        sizes: extents as on the command line, ``i=N,j=4``; may be left out.
        dtype: of an operand, and of all if sizes are given; empty for any, and for
            double precision with sizes.
        device: id of the one on which workloads have facts; empty for any.
        order: the order of the workloads.
    """

    q: str = ""
    sizes: str = ""
    dtype: str = ""
    device: str = ""
    order: Order = "speedup"

    def having(self, key: str = "", transform: str = "") -> Having:
        """Return filters for the workloads of the search."""
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
    limit_s: float,
    start: int = 0,
    limit: int = 100,
) -> SearchView:
    """Find the workloads that a text describes.

    Args:
        criteria: text and filters of the search.
        store: store of the workloads.
        limit_s: seconds for all canonicalizations.
        start: number of workloads on earlier pages.
        limit: maximum number of workloads of a page.
    """
    # of a call, take the first argument
    call = _CALL.search(criteria.q)
    text = _ROWS.sub("", (call[2] if call else criteria.q).strip())
    text = text.replace(ARROW, "->").replace(SCALAR, "")
    if len(text) > MAX_TEXT or len(criteria.sizes) > MAX_TEXT:
        return SearchView(problem=f"expected at most {MAX_TEXT} characters")
    listed = partial(store.ordered_workloads, start, limit, criteria.order)
    # a key is no subscripts, and needs no canonicalization
    if _KEY.fullmatch(text):
        others = listed(criteria.having(key=text))
        return SearchView(store.listed_workload(text, criteria.device), others=others)
    if _NAME.fullmatch(text):
        devices = store.devices_named(text, MAX_DEVICES)
        others = listed(criteria.having(transform=text.partition("@")[0]))
        if others or devices:
            return SearchView(others=others, devices=devices)
    try:
        inputs, output, einsum = _read(text, criteria)
        form = compute_form(generalize(einsum)[0], limit_s) if einsum else None
        # after the canonicalization of the query itself, which has its own limit
        deadline = time.monotonic() + limit_s
        key = _compute_shape_key(inputs, output, limit_s)
    except FeinsumError as error:
        return SearchView(problem=str(error))
    alike, is_partial = _find_alike(inputs, output, key, store.notations(), deadline)
    others = listed(criteria.having(), alike) if alike else ()
    exact = store.listed_workload(form.key, criteria.device) if form else None
    return SearchView(exact, form, others, is_partial=is_partial)


def _read(
    text: str, criteria: SearchCriteria
) -> tuple[tuple[IndexList, ...], IndexList, BatchedEinsum | None]:
    """Return the index lists of a text, and its einsum if its sizes are known."""
    if "|" in text:
        einsum = from_text(text)
        return einsum.inputs, einsum.output, einsum
    extents = _parse_extents(criteria.sizes)
    terms = [term.split() for term in text.partition("->")[0].split(",")]
    # "ij k" has a name of two letters beside others: names, not letters
    is_spaced = any(len(term) > 1 and max(map(len, term)) > 1 for term in terms)
    if extents or "{" in text or not is_spaced:
        inputs, output = index_lists(text, extents)
    else:
        inputs, output = parse_subscripts(convert_words(text))
    indices = {index for term in inputs for index in term}
    if unknown := sorted(set(extents) - indices):
        raise InvalidRequestError(f"the subscripts have no index {unknown[0]!r}")
    if not indices or indices - set(extents):
        return inputs, output, None
    request = Einsum(
        subscripts=text, extents=extents, dtype=criteria.dtype[:50] or "float64"
    )
    return inputs, output, parse_einsum(request)


def _parse_extents(sizes: str) -> dict[str, int | str]:
    """Return extents by index.

    >>> _parse_extents("i=N, j=4")
    {'i': 'N', 'j': 4}
    """
    extents: dict[str, int | str] = {}
    for item in filter(None, map(str.strip, sizes.split(","))):
        index, equals, value = (word.strip() for word in item.partition("="))
        # int() takes digits of all scripts, and any number of them
        is_number = value.isascii() and value.isdecimal() and len(value) < 20
        if not (index and equals and (is_number or value.isidentifier())):
            raise InvalidRequestError(
                f"{item[:50]!r} was given as a size, expected i=4 or i=N"
            )
        extents[index] = int(value) if is_number else value
    return extents


def _find_alike(
    inputs: tuple[IndexList, ...],
    output: IndexList,
    key: str,
    notations: frozenset[str],
    deadline: float,
) -> tuple[list[str], bool]:
    """Find the notations with the key of an einsum, and whether time ran out."""
    profile = sorted(map(len, inputs)), len(output)
    alike: list[str] = []
    n_new, is_partial = 0, False
    for notation in sorted(notations):
        is_enough = n_new >= MAX_COMPARED or len(alike) >= MAX_NOTATIONS
        if is_enough or time.monotonic() > deadline:
            return alike, True
        terms, _, result = notation.partition("->")
        # numbers of indices are quickly counted, and rule out nearly all
        counts = sorted(len(term.split()) for term in terms.split(","))
        if (counts, len(result.split())) != profile:
            continue
        # spellings with a cached key cost nothing
        n_new += hashkey(notation) not in _spellings
        try:
            if _compute_key(notation, deadline - time.monotonic())[0] == key:
                alike.append(notation)
        except FeinsumError:  # it took too long, as on a busy machine
            is_partial = True
    return alike, is_partial


_spellings: LRUCache[Any, tuple[str, str]] = LRUCache(CACHE_BYTES, estimate_bytes)


@cached(_spellings, key=lambda notation, _: hashkey(notation), lock=Lock())
def _compute_key(notation: str, limit_s: float) -> tuple[str, str]:
    """Return the key of a workload's subscripts, and its notation.

    With the notation in the result, the cache knows the size of the entry.

    Raises:
        FeinsumError: if it is not found within the limit.
    """
    terms, _, output = notation.partition("->")
    inputs = tuple(tuple(term.split()) for term in terms.split(","))
    return _compute_shape_key(inputs, tuple(output.split()), limit_s), notation


def _compute_shape_key(
    inputs: tuple[IndexList, ...], output: IndexList, limit_s: float
) -> str:
    """Return the key of subscripts alone: of the einsum with all extents alike.

    >>> _compute_shape_key((("i", "j"), ("j", "k")), ("i", "k"),
    ...     1.0) == _compute_shape_key(
    ...     (("b", "c"), ("a", "b")), ("a", "c"), 1.0)
    True
    """
    if len(inputs) > MAX_TEXT:
        raise InvalidEinsumError("too many operands", rules=("subscripts",))
    # extents and dtypes alike: only the subscripts decide
    operands = tuple(array(f"A{k}", (2,) * len(term)) for k, term in enumerate(inputs))
    einsum = BatchedEinsum(output, inputs, (operands,))
    return compute_form(einsum, limit_s).key
