"""The entries of the paper's experiments are what they say."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiments.entries import (
    MOST_BYTES,
    find_entry,
    limit_operations,
    list_dgfem,
    list_drawn,
    list_tccg,
    scale_elements,
)
from benchmarks.experiments.user_kernel import make_user_kernel
from feinsum import canonicalize, raise_kernel
from feinsum.ir import generalize
from feinsum.suites.suite import MULTIPLE
from tests.portions import spread

ENTRIES = [*list_tccg(), *list_dgfem()]
KINDS = [
    limit_operations(list_tccg()[0], 1e-4),
    *(
        scale_elements(entry, 1e-4)
        for entry in list_dgfem()
        if entry.name
        in ("face_mass_b3_Ni10_Nj6", "divergence_b3_Ni4", "gradient_b3_Ni4")
    ),
]
"""A tiny entry of each kind of operand function."""


def test_there_are_48_contractions_and_40_operators() -> None:
    """The suites of the paper, names unique."""
    assert len(list_tccg()) == 48
    assert len(list_dgfem()) == 40
    assert len({entry.name for entry in ENTRIES}) == 88


@pytest.mark.parametrize("entry", [*spread(ENTRIES, 11), *KINDS], ids=str)
def test_the_kernel_of_a_user_is_the_einsum_of_the_entry(entry) -> None:
    """Raising the kernel gives the key of the idealized einsum, for all functions."""
    raised = raise_kernel(make_user_kernel(entry))
    (nest,) = raised.raised
    assert not raised.refused
    assert nest.key == canonicalize(generalize(entry.make_einsum())[0]).key


def test_drawn_einsums_are_those_of_their_seed() -> None:
    """Numpy computes all of them; a process finds by name what another one drew."""
    entries = list_drawn(1)
    assert [e.name for e in entries] == [f"drawn-1-{k}" for k in range(64)]
    assert {len(e.terms) for e in entries} == {1, 2, 3}
    assert entries != list_drawn(2)
    for entry in entries:
        assert find_entry(entry.suite, entry.name, entry.sizes) == entry
        shapes = map(entry.get_shape, entry.terms)
        tiny = [np.ones([2] * len(shape), entry.dtype) for shape in shapes]
        assert np.einsum(entry.subscripts, *tiny).ndim == len(entry.output)
        assert entry.footprint_bytes <= MOST_BYTES


@pytest.mark.parametrize("max_gflop", [20.0, 1.0, 0.05])
def test_scaling_keeps_within_the_bound(max_gflop: float) -> None:
    """Small entries stay; in others all extents shrink, to multiples of 8."""
    for entry in list_tccg():
        scaled = limit_operations(entry, max_gflop)
        if entry.flops <= max_gflop * 1e9:
            assert scaled == entry
            continue
        assert all(n % MULTIPLE == 0 for n in scaled.sizes.values())
        assert all(scaled.sizes[i] <= n for i, n in entry.sizes.items())
        is_least = MULTIPLE in scaled.sizes.values()
        assert is_least or scaled.flops <= max_gflop * 1e9


def test_the_largest_contractions_become_what_is_documented() -> None:
    """Six indices of 72 become 40 each; the ratio of extents is kept."""
    by_name = {entry.name: limit_operations(entry, 20) for entry in list_tccg()}
    assert set(by_name["abcd-aebf-dfce"].sizes.values()) == {40}
    assert by_name["ab-ac-cb"].sizes == {"a": 2152, "b": 2144, "c": 2152}


@pytest.mark.parametrize("entry", KINDS, ids=lambda e: e.name)
def test_memory_that_is_kept_gets_what_a_new_array_would(entry) -> None:
    """Both ways to evaluate an operand agree, and the shape is that of the einsum."""
    values = entry.draw_values()
    for function, term in entry.operands.items():
        fresh = function.evaluate(np, values)
        kept = function.evaluate_into(np, values, np.empty(entry.get_shape(term)))
        assert fresh.shape == entry.get_shape(term)
        assert np.array_equal(fresh, kept)
