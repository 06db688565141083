"""The canonical form of a batched einsum and the key of its workload.

Source: paper, section 6 (algorithm 3).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from textwrap import shorten
from typing import NewType

from feinsum.canonical.graph import induced_graph
from feinsum.canonical.labelling import canonical_places
from feinsum.canonical.order import (
    CanonicalOrder,
    canonical_order,
    canonical_relabeling,
    canonical_text,
)
from feinsum.canonical.relabeling import Relabeling
from feinsum.canonical.search import CANONICALIZER
from feinsum.errors import CanonicalizationError
from feinsum.ir import BatchedEinsum, require_einsum
from feinsum.reprs import brief

__all__ = [
    "CACHE_SIZE",
    "FORM_VERSION",
    "CanonicalForm",
    "WorkloadKey",
    "canonicalize",
    "canonicalize_einsum",
    "computed_form",
    "text_digest",
]

FORM_VERSION = "fe2"
"""Version of the canonical form; part of every workload key."""

CACHE_SIZE = 1024
"""How many canonical forms are kept for einsums that come again."""

WorkloadKey = NewType("WorkloadKey", str)
"""Names a class of isomorphic batched einsums: version, canonicalizer, digest."""


@dataclass(frozen=True)
class CanonicalForm:
    """The normal form of a class of isomorphic batched einsums.

    Attributes:
        given: the einsum that was canonicalized.
        order: the canonical order of its parts.
    """

    given: BatchedEinsum
    order: CanonicalOrder

    @cached_property
    def relabeling(self) -> Relabeling:
        """The isomorphism from :attr:`given` to :attr:`einsum`."""
        return canonical_relabeling(self.order)

    @cached_property
    def einsum(self) -> BatchedEinsum:
        """The canonical einsum; equal for isomorphic einsums."""
        return self.relabeling.apply(self.given)

    @cached_property
    def text(self) -> str:
        """The canonical einsum as text: what the key digests."""
        return canonical_text(self.given, self.order)

    @cached_property
    def key(self) -> WorkloadKey:
        return WorkloadKey(f"{FORM_VERSION}-{CANONICALIZER}-{text_digest(self.text)}")

    def __repr__(self) -> str:
        return brief(self, f"{self.key}: {self.text}")


def text_digest(text: str) -> str:
    """The last part of a workload's key, given its canonical text."""
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def canonicalize(
    einsum: BatchedEinsum, *, time_limit_s: float | None = None
) -> CanonicalForm:
    """The canonical form of ``einsum``.

    Einsums that differ only in names, in the order of rows or in the order of the
    operands of each row have equal canonical forms; any others have different ones. The
    last :data:`CACHE_SIZE` forms are kept.

    Args:
        time_limit_s: time limit for nauty's search in large graphs; by default
            ``FEINSUM_CANONICALIZATION_LIMIT_S``, or 10 seconds.

    Raises:
        CanonicalizationError: naming the einsum, if that takes longer.

    Complexity: O(n log n) in the length of the notation and the rows if color
    refinement leaves only interchangeable parts; exponential at worst.

    Source: paper, section 6, algorithm 3.

    >>> from feinsum.ir import array, einsum
    >>> A, B = array("A", (3, 4)), array("B", (4, 5))
    >>> first, second = einsum("ij,jk", A, B), einsum("zw,Yz->Yw", B, A)
    >>> canonicalize(first).key == canonicalize(second).key
    True
    """
    return _kept_form(require_einsum(einsum), time_limit_s)


def computed_form(
    einsum: BatchedEinsum, time_limit_s: float | None = None
) -> CanonicalForm:
    """The result of :func:`canonicalize`, without its cache."""
    graph = induced_graph(einsum)
    try:
        places = canonical_places(graph.colors, graph.edges, time_limit_s)
    except CanonicalizationError as error:
        raise CanonicalizationError(
            f"einsum {shorten(str(einsum), 200)} cannot be canonicalized: {error}"
        ) from None
    return CanonicalForm(einsum, canonical_order(einsum, graph, places))


_kept_form = lru_cache(CACHE_SIZE)(computed_form)


def canonicalize_einsum(einsum: BatchedEinsum) -> BatchedEinsum:
    """The canonical einsum alone; the name is the paper's.

    >>> from feinsum.ir import array, einsum
    >>> print(canonicalize_einsum(einsum("pq->q", array("M", (3, 4)))).subscripts)
    ba->a
    """
    return canonicalize(einsum).einsum
