"""Made-up facts about whatever einsums a kernel holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from feinsum import raise_kernel
from feinsum.canonical import canonicalize
from feinsum.ir import BatchedEinsum
from feinsum.records import InMemoryStore
from tests.retrieval.facts import fact
from tests.retrieval.recipes import first_recipe

__all__ = ["einsums_of", "facts_about"]


def einsums_of(t_unit: Any, arguments: Any = None) -> list[BatchedEinsum]:
    """The einsums that a kernel is raised to."""
    return [nest.einsum for nest in raise_kernel(t_unit, arguments=arguments).raised]


def facts_about(einsums: Iterable[BatchedEinsum]) -> InMemoryStore:
    """A store with one fact about each, by a recipe that fits."""
    store = InMemoryStore()
    for einsum in einsums:
        recipe = first_recipe(canonicalize(einsum).einsum)
        store.add(fact(einsum, recipe))
    return store
