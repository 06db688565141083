"""Certificates: what they prove, by brute force and by what is known of extents."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import exp, log

import pytest

from feinsum.bounds import (
    FastMemory,
    SoapStatement,
    certify,
    compute_intensity,
    make_statement,
)
from feinsum.bounds.finite import (
    certify_all,
    compute_extent_exponents,
    compute_log_largest,
    survey_statements,
)
from tests.portions import spread

S = 6144
"""Entries of 8 bytes in 48 KiB, a first cache."""


def of_compulsory(subscripts: str, extents: dict[str, int]) -> tuple[float, float]:
    """The bound and the figure of the paper, over all arrays once."""
    found = make_statement(subscripts, extents)
    compulsory = float(found.compulsory_bytes)
    asymptotic = found.n_points / compute_intensity(found).steps_per_byte(S)
    return certify(found, FastMemory(S)).n_bytes / compulsory, asymptotic / compulsory


@pytest.mark.parametrize(
    ("subscripts", "extents", "asymptotic", "proved"),
    [
        ("bda,dc->abc", {"a": 312, "b": 312, "c": 24, "d": 312}, 0.57, 1.013),
        (
            "dega,gfbc->abcdef",
            dict(zip("abcdefg", (24, 16, 16, 24, 16, 16, 24), strict=True)),
            *(0.605, 1.0825),
        ),
        ("aedf,fbec->abcd", dict.fromkeys("abcdef", 72), 44, 44),
    ],
)
def test_extents_turn_bounds_below_all_arrays_into_ones_above(
    subscripts, extents, asymptotic, proved
):
    """Contractions of TCCG and CCSD(T), by the figure of the paper and with extents;
    of long extents, both agree.
    """
    found = of_compulsory(subscripts, extents)
    assert found == pytest.approx((proved, asymptotic), rel=0.01)


def test_mttkrp_of_few_columns_reads_its_tensor_once():
    """I = 88, R = 24: 0.21 by the paper's figure; that of many segments tends to 1."""
    extents = {"i": 88, "j": 88, "k": 88, "a": 24}
    with_extents, plain = of_compulsory("ijk,ja,ka->ia", extents)
    assert plain == pytest.approx(0.21, abs=0.005)
    assert 0.85 < with_extents <= 1
    long = of_compulsory("ijk,ja,ka->ia", {**extents, "i": 88 * 10**4})
    assert long[0] == pytest.approx(1, abs=0.01)


def test_the_finite_form_is_below_the_asymptotic_one():
    """By the last piece: much where few pieces are, nothing where many are."""
    for extent, share in ((30, 0), (300, 0.93), (10_000, 0.9999)):
        found = make_statement("ij,jk->ik", dict.fromkeys("ijk", extent))
        asymptotic = found.n_points / compute_intensity(found).steps_per_byte(S)
        proved = certify(found, FastMemory(S)).n_bytes
        assert share * asymptotic <= proved < asymptotic


def random_statement(rng: random.Random) -> SoapStatement:
    letters = "ijk"[: rng.randint(2, 3)]
    terms = [
        "".join(rng.sample(letters, rng.randint(1, len(letters))))
        for _ in range(rng.randint(2, 4))
    ]
    missing = set(letters).difference(*terms)
    text = f"{','.join([*terms, ''.join(missing)] if missing else terms)}->{terms[0]}"
    return make_statement(text, {i: rng.randint(1, 3) for i in letters})


def random_exponents(found: SoapStatement, rng: random.Random) -> tuple[Fraction, ...]:
    return tuple(Fraction(rng.randint(0, 6), 6) for _ in found.accesses)


@pytest.mark.parametrize("seed", spread(range(40), 10))
def test_no_set_of_steps_is_larger_than_any_exponents_allow(seed):
    """Random sets of index tuples against H(X) for random exponents."""
    rng = random.Random(seed)
    found = random_statement(rng)
    exponents = random_exponents(found, rng)
    if not any(exponents):
        exponents = (Fraction(1), *exponents[1:])
    points = list(itertools.product(*(range(n) for n in found.extents.values())))
    for _ in range(300):
        chosen = rng.sample(points, rng.randint(1, len(points)))
        at = [dict(zip(found.extents, point, strict=True)) for point in chosen]
        touched = sum(
            len({tuple(one[v] for v in access.indices) for one in at})
            for access in found.accesses
        )
        most = compute_log_largest(
            found,
            exponents,
            compute_extent_exponents(found, exponents),
            Decimal(touched),
        )
        assert log(len(chosen)) <= float(most) + 1e-9


@pytest.mark.parametrize("seed", spread(range(40), 10))
def test_no_steps_of_rows_that_share_arrays_are_more_than_exponents_allow(seed):
    """The same for batches: three rows, of which some share the first array."""
    rng = random.Random(seed)
    n_rows = 3
    names = [[rng.choice("AB"[: rng.randint(1, 2)]), "uvw"[r]] for r in range(n_rows)]
    if seed % 3 == 0:
        names = [["A", "u"], ["A", "u"], ["A", "u"]]
    base = make_statement("ij,jk->ik", {"i": 2, "j": 3, "k": 2})
    most_shared = [
        max([row[p] for row in names].count(row[p]) for row in names) for p in (0, 1)
    ]
    accesses = tuple(
        replace(access, most_shared=m)
        for access, m in zip(base.accesses, [*most_shared, 1], strict=True)
    )
    found = replace(base, accesses=accesses, n_instances=n_rows)
    exponents = random_exponents(found, rng)
    if not any(exponents):
        exponents = (Fraction(1, 2),) * 3
    points = list(itertools.product(range(n_rows), range(2), range(3), range(2)))
    for _ in range(300):
        chosen = rng.sample(points, rng.randint(1, len(points)))
        touched = {(names[r][0], i, j) for r, i, j, _ in chosen}
        touched |= {(names[r][1], j, k) for r, _, j, k in chosen}
        touched |= {("out", r, i, k) for r, i, _, k in chosen}
        most = compute_log_largest(
            found,
            exponents,
            compute_extent_exponents(found, exponents),
            Decimal(len(touched)),
        )
        assert log(len(chosen)) <= float(most) + 1e-9


@pytest.mark.parametrize("seed", spread(range(60), 12))
def test_certificates_of_random_statements_are_valid(seed):
    """And prove what their numbers say, never less than nothing."""
    rng = random.Random(seed)
    found = random_statement(rng)
    extents = {i: rng.choice([1, 2, 50, 1000, 10**7]) for i in found.extents}
    found = replace(found, extents=extents)
    for made in certify_all(
        survey_statements([found], memories := [FastMemory(8), FastMemory(500, 2)]),
        memories,
    )[0]:
        assert made.is_valid()
        assert made.n_bytes >= 0
        assert all(1 <= made.tile[i] <= extents[i] for i in extents)


def test_a_certificate_that_misses_an_index_is_invalid():
    """So is one of negative exponents, and one whose segment fits the memory."""
    made = certify(
        make_statement("ij,jk->ik", dict.fromkeys("ijk", 100)), FastMemory(100)
    )
    half = Fraction(1, 2)
    assert made.is_valid()
    assert not replace(made, exponents=(half, half, Fraction(0))).is_valid()
    assert not replace(made, exponents=(Fraction(2), Fraction(-1), half)).is_valid()
    assert not replace(made, segment_bytes=100).is_valid()
    filled = replace(
        made,
        exponents=(half, half, Fraction(0)),
        extent_exponents={"i": half, "k": half},
    )
    assert filled.is_valid()
    assert filled.n_bytes <= made.n_bytes


def test_poor_exponents_and_segments_prove_less_but_nothing_wrong():
    """Whatever a search returns is valid; the best is only the largest."""
    found = make_statement("ij,jk->ik", dict.fromkeys("ijk", 200))
    best = certify(found, FastMemory(300))
    rng = random.Random(0)
    for _ in range(50):
        exponents = tuple(Fraction(rng.randint(1, 20), 20) for _ in range(3))
        other = replace(
            best,
            exponents=exponents,
            extent_exponents=compute_extent_exponents(found, exponents),
            segment_bytes=rng.randint(301, 5000),
        )
        assert other.is_valid()
        assert other.n_bytes <= best.n_bytes * (1 + 1e-4)


def test_rows_that_share_an_array_have_the_intensity_of_one():
    """As long as what they do not share has exponents of 1: b times the bound."""
    one = make_statement("ik,kj->ij", dict.fromkeys("ijk", 2000))
    for most_shared in ((1, 1), (8, 1)):
        accesses = tuple(
            replace(access, most_shared=m)
            for access, m in zip(one.accesses, [*most_shared, 1], strict=True)
        )
        batch = replace(one, accesses=accesses, n_instances=8)
        ratio = (
            certify(batch, FastMemory(5000)).n_bytes
            / certify(one, FastMemory(5000)).n_bytes
        )
        assert ratio == pytest.approx(8, rel=1e-3)


def test_counts_of_any_size_are_exact():
    """Steps and bytes far beyond 64 bits, and beyond what a float can hold."""
    huge = make_statement("ij,jk->ik", dict.fromkeys("ijk", 2**62))
    made = certify(huge, FastMemory(10_000))
    assert made.statement.n_points == 2**186
    assert made.n_bytes == pytest.approx(2**187 / 100, rel=1e-6)
    names = [f"{c}{k}" for c in "ijk" for k in range(6)]
    extents = dict.fromkeys(names, 2**62)
    i, j, k = names[:6], names[6:12], names[12:]
    template = make_statement("ij,jk->ik", dict.fromkeys("ijk", 2))
    accesses = tuple(
        replace(access, indices=tuple(its))
        for access, its in zip(template.accesses, (i + j, j + k, i + k), strict=True)
    )
    beyond = SoapStatement(accesses, extents)
    proved = certify(beyond, FastMemory(10_000))
    assert beyond.n_points == 2 ** (62 * 18)
    exact = Decimal(proved.n_bytes).ln() - Decimal(2).ln() * (62 * 18 + 1)
    assert exp(float(exact)) * 100 == pytest.approx(1, rel=1e-3)
