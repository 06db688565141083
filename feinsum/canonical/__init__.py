"""Canonical form of batched einsums: induced graph, nauty, relabeling, key."""

from feinsum.canonical.form import (
    FORM_VERSION,
    CanonicalForm,
    Relabeling,
    WorkloadKey,
    canonicalize,
    canonicalize_einsum,
    compute_digest,
    isomorphism,
)
from feinsum.canonical.graph import InducedGraph, build_induced_graph
from feinsum.canonical.invariants import (
    INVARIANTS,
    InvariantDifference,
    first_difference,
)
from feinsum.canonical.labelling import CANONICALIZER, compute_places

__all__ = [
    "CANONICALIZER",
    "FORM_VERSION",
    "INVARIANTS",
    "CanonicalForm",
    "InducedGraph",
    "InvariantDifference",
    "Relabeling",
    "WorkloadKey",
    "build_induced_graph",
    "canonicalize",
    "canonicalize_einsum",
    "compute_digest",
    "compute_places",
    "first_difference",
    "isomorphism",
]
