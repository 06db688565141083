"""Random patterns have the numbers that were asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import InvalidSparseArrayError
from feinsum.sparse import pattern_digest, random_profile, random_uniform


@st.composite
def profiles(draw):
    """A shape, an order of levels and a profile that a tree over it can have."""
    order = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(order))
    axes = tuple(draw(st.permutations(range(order))))
    profile, parents = [], 1
    for axis in axes:
        parents = draw(st.integers(parents, min(parents * shape[axis], 200)))
        profile.append(parents)
    return shape, axes, tuple(profile)


@given(profiles(), st.integers(0, 99), st.sampled_from([0.0, 0.5, 1.0, 3.0, 50.0]))
def test_a_pattern_has_the_profile_that_was_asked_for(wanted, seed, skew):
    """Exactly, in any order of levels, and whatever the skew."""
    shape, axes, profile = wanted
    tree = random_profile(shape, profile, seed=seed, skew=skew, axes=axes)
    assert (tree.shape, tree.axes, tree.profile) == (shape, axes, profile)


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_uniform_pattern_has_the_entries_that_were_asked_for(rows, columns, data):
    """From none to all."""
    nnz = data.draw(st.integers(0, rows * columns))
    assert random_uniform((rows, columns), nnz, seed=0).nnz == nnz


def test_equal_seeds_give_equal_arrays():
    """And others give others."""

    def digest(seed):
        tree = random_profile((90, 90, 90), (50, 400, 900), seed=seed, skew=1.0)
        return pattern_digest(tree), tree.values.tobytes()

    assert digest(1) == digest(1)
    assert digest(1)[0] != digest(2)[0]


def test_skew_makes_fibers_uneven():
    """Without, lengths differ by little; with it, a few fibers have most."""

    def longest(skew):
        tree = random_profile((1000, 5000), (1000, 20_000), seed=0, skew=skew)
        return int(np.diff(tree.pointers[0]).max())

    assert longest(0.0) < 30
    assert longest(1.0) > 1000
    assert longest(2.0) == 5000


def test_uniform_places_are_equally_likely():
    """Each row has about its share."""
    tree = random_uniform((10, 1000, 1000), 100_000, seed=5)
    share = np.add.reduceat(np.diff(tree.pointers[1]), tree.pointers[0][:-1])
    assert abs(share - 10_000).max() < 500


@pytest.mark.parametrize("dtype", ["f4", "c16", "i4"])
def test_values_have_the_dtype_and_are_not_zero(dtype):
    """So that a pattern is not mistaken."""
    tree = random_uniform((20, 20), 50, seed=0, dtype=dtype)
    assert tree.values.dtype == dtype
    assert tree.values.all()


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        ("profile", lambda: random_uniform((2, 2), 5, seed=0)),
        ("profile", lambda: random_uniform((2, 2), -1, seed=0)),
        ("shape", lambda: random_uniform((2**40, 2**40), 5, seed=0)),
        ("profile", lambda: random_profile((2, 2), (2,), seed=0)),
        ("profile", lambda: random_profile((2, 2), (2, 1), seed=0)),
        ("profile", lambda: random_profile((2, 2), (3, 4), seed=0)),
        ("profile", lambda: random_profile((2, 2), (2, 5), seed=0)),
        ("profile", lambda: random_profile((2, 2), (2, 3), seed=0, skew=-1.0)),
        ("axes", lambda: random_profile((2, 2), (2, 3), seed=0, axes=(1, 1))),
    ],
)
def test_what_no_pattern_has_is_refused(rule, make):
    """By the rule that is broken."""
    with pytest.raises(InvalidSparseArrayError) as caught:
        make()
    assert caught.value.rule == rule
