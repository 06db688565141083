"""Canonical form of batched einsums: induced graph, nauty, relabeling, key."""

from feinsum.canonical.form import (
    FORM_VERSION,
    CanonicalForm,
    WorkloadKey,
    canonicalize,
    canonicalize_einsum,
)
from feinsum.canonical.graph import InducedGraph, induced_graph
from feinsum.canonical.nauty import CANONICALIZER
from feinsum.canonical.relabeling import Relabeling

__all__ = [
    "CANONICALIZER",
    "FORM_VERSION",
    "CanonicalForm",
    "InducedGraph",
    "Relabeling",
    "WorkloadKey",
    "canonicalize",
    "canonicalize_einsum",
    "induced_graph",
]
