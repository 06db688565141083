"""Canonical form of batched einsums: induced graph, nauty, relabeling, key."""

from feinsum.canonical.form import (
    FORM_VERSION,
    CanonicalForm,
    WorkloadKey,
    canonicalize,
    canonicalize_einsum,
)
from feinsum.canonical.graph import InducedGraph, induced_graph
from feinsum.canonical.reconstruction import reconstruct
from feinsum.canonical.relabeling import Relabeling
from feinsum.canonical.search import CANONICALIZER

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
    "reconstruct",
]
