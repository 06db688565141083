"""Canonical form of batched einsums: induced graph, nauty, relabeling, key."""

from feinsum.canonical.form import (
    FORM_VERSION,
    CanonicalForm,
    Relabeling,
    WorkloadKey,
    canonicalize,
    canonicalize_einsum,
    isomorphism,
    text_digest,
)
from feinsum.canonical.graph import InducedGraph, induced_graph
from feinsum.canonical.invariants import (
    INVARIANTS,
    InvariantDifference,
    first_difference,
)
from feinsum.canonical.labelling import CANONICALIZER, canonical_places

__all__ = [
    "CANONICALIZER",
    "FORM_VERSION",
    "INVARIANTS",
    "CanonicalForm",
    "InducedGraph",
    "InvariantDifference",
    "Relabeling",
    "WorkloadKey",
    "canonical_places",
    "canonicalize",
    "canonicalize_einsum",
    "first_difference",
    "induced_graph",
    "isomorphism",
    "text_digest",
]
