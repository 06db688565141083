"""Exponents of the least sum, their proof, and the intensities that follow."""

from __future__ import annotations

import random
from fractions import Fraction
from math import prod

import numpy as np
import pytest

from feinsum.bounds import Cover, compute_intensity, find_least_cover, make_statement

F = Fraction
S = 10.0**6


def hypergraph(seed: int) -> list[str]:
    """Random index lists, in which every index occurs."""
    rng = random.Random(seed)
    letters = "abcdefgh"[: rng.randint(1, 8)]
    terms = [
        "".join(rng.sample(letters, rng.randint(1, len(letters))))
        for _ in range(rng.randint(1, 7))
    ]
    missing = set(letters).difference(*terms)
    return [*terms, "".join(sorted(missing))] if missing else terms


def test_random_covers_are_certified():
    """Primal and dual agree exactly."""
    for seed in range(200):
        cover = find_least_cover(hypergraph(seed))
        assert cover.is_certified(), hypergraph(seed)


def test_another_solver_finds_the_same_sums():
    """HiGHS, by scipy, on some of them."""
    scipy = pytest.importorskip("scipy.optimize")
    for seed in range(40):
        terms = hypergraph(seed)
        cover = find_least_cover(terms)
        indices = sorted(set("".join(terms)))
        matrix = [[-float(v in term) for term in terms] for v in indices]
        found = scipy.linprog(np.ones(len(terms)), matrix, -np.ones(len(indices)))
        assert float(cover.total) == pytest.approx(found.fun, abs=1e-7), terms


def test_random_intensities_are_of_a_least_cover():
    """The exponents that are balanced are certified by the same dual solution."""
    for seed in range(60):
        terms = list(dict.fromkeys("".join(sorted(t)) for t in hypergraph(seed)))
        extents = dict.fromkeys("".join(terms), 100)
        found = compute_intensity(
            make_statement(f"{','.join(terms[:-1])}->{terms[-1]}", extents)
        )
        balanced = Cover(found.cover.terms, found.exponents, found.cover.packing)
        assert balanced.is_certified(), terms


def test_what_is_no_proof_is_refused():
    """A cover that misses an index, one that is too large, a packing that is none."""
    good = find_least_cover(["ij", "jk", "ik"])
    half, terms = F(1, 2), good.terms
    assert good.is_certified()
    assert not Cover(terms, (half, half, F(0)), good.packing).is_certified()
    assert not Cover(terms, (F(1), half, half), good.packing).is_certified()
    too_much = {"i": F(1), "j": F(1, 2), "k": F(0)}
    assert not Cover(terms, good.exponents, too_much).is_certified()
    negative = {"i": F(3, 2), "j": F(-1, 2), "k": F(1, 2)}
    assert not Cover(terms, good.exponents, negative).is_certified()


HALF = (F(1, 2),)
TABLE = [
    ("ij,jk->ik", HALF * 3, 3.0, S**0.5 / 2),
    ("ijk,kl->ijl", HALF * 3, 3.0, S**0.5 / 2),
    ("ijk,jka->ia", HALF * 3, 3.0, S**0.5 / 2),
    ("ijk,ja,ka->ia", (F(2, 3), *((F(1, 3),) * 3)), 5 / 2, S ** (2 / 3) / 3),
    ("ijkl,ja,ka,la->ia", (F(3, 4), *((F(1, 4),) * 4)), 7 / 3, S ** (3 / 4) / 4),
    ("ijklm,ja,ka,la,ma->ia", (F(4, 5), *((F(1, 5),) * 5)), 9 / 4, S ** (4 / 5) / 5),
    ("ijklm,la,ma->ijka", (F(2, 3), *((F(1, 3),) * 3)), 5 / 2, S ** (2 / 3) / 3),
    ("ijk,jb,kc->ibc", HALF * 4, 2.0, S / 4),
]


@pytest.mark.parametrize(("subscripts", "exponents", "segment", "rho"), TABLE)
def test_groups_of_the_paper_have_these_exponents_and_intensities(
    subscripts, exponents, segment, rho
):
    """GEMM, TTM, TDOT, MTTKRP of orders 3 to 5, a group of order 5, TTMc as one."""
    found = compute_intensity(
        make_statement(subscripts, dict.fromkeys("abcijklm", 10**6))
    )
    assert found.cover.is_certified()
    assert found.exponents == exponents
    assert found.cover.total == sum(exponents)
    assert found.segment_bytes(S) == pytest.approx(segment * S)
    assert found.steps_per_byte(S) == pytest.approx(rho)


@pytest.mark.parametrize(
    "subscripts",
    ["ijka,ja,ka->ia", "ja,ka->jka", "ijk,k->ij", "ijk,ijk->", "ij->ji", "ij,j->i"],
)
def test_what_is_bound_by_its_arrays_gains_nothing_from_a_memory(subscripts):
    """KRP, TTV, inner products, the last group of order 5: the sum is 1."""
    found = compute_intensity(make_statement(subscripts, dict.fromkeys("aijk", 10**6)))
    assert found.cover.total == 1
    assert found.is_bounded
    assert found.tile(S) == {}
    assert found.steps_per_byte(S) == found.steps_per_byte(100 * S) <= 1


@pytest.mark.parametrize(
    ("subscripts", "tile"),
    [
        ("ij,jk->ik", {"i": S**0.5, "j": S**0.5, "k": S**0.5}),
        (
            "ijk,ja,ka->ia",
            {**dict.fromkeys("ijk", S ** (1 / 3)), "a": S ** (2 / 3) / 2},
        ),
        ("ijkl,ja,ka,la->ia", {**dict.fromkeys("ijkl", S**0.25), "a": S**0.75 / 3}),
        ("ijklm,ja,ka,la,ma->ia", {**dict.fromkeys("ijklm", S**0.2), "a": S**0.8 / 4}),
    ],
)
def test_tiles_are_those_of_the_paper(subscripts, tile):
    """At X0, where the intensity is reached."""
    found = compute_intensity(
        make_statement(subscripts, dict.fromkeys("aijklm", 10**6))
    )
    assert found.tile(S) == pytest.approx(tile)


@pytest.mark.parametrize("subscripts", [row[0] for row in TABLE])
def test_a_tile_accesses_its_segment_and_has_the_intensity(subscripts):
    """Entries of the tile's arrays add up to X0; its steps over X0 - S are rho."""
    found = compute_intensity(
        make_statement(subscripts, dict.fromkeys("abcijklm", 10**6))
    )
    tile, segment = found.tile(S), found.segment_bytes(S)
    touched = sum(prod(tile[v] for v in term) for term in found.cover.terms)
    assert touched == pytest.approx(segment)
    rho = found.steps_per_byte(S)
    assert prod(tile.values()) / (segment - S) == pytest.approx(rho)


def test_arrays_of_one_index_list_count_together():
    """Two arrays at one place of a product: ``1 / sqrt(2)`` of the intensity."""
    extents = dict.fromkeys("ijk", 1000)
    one = compute_intensity(make_statement("ij,jk->ik", extents)).steps_per_byte(S)
    two = compute_intensity(make_statement("ij,ij,jk->ik", extents)).steps_per_byte(S)
    assert two == pytest.approx(one / 2**0.5)
