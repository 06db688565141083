"""Predictions for sizes that nobody means: an answer, of little work, and no error."""

from __future__ import annotations

from itertools import product
from math import isfinite

import pytest

from feinsum import array, einsum
from feinsum.canonical import canonicalize
from feinsum.predict import predict_recipes
from feinsum.records import Device
from feinsum.transforms import REGISTRY
from feinsum.transforms.registry import list_proposed
from tests.portions import spread

CPU = Device("host", "a CPU", "", "cpu", "x86_64", 2)
GPU = Device("CUDA", "a GPU", "", "gpu", "sm_90", 132)
CLASSES = [
    "ij,jk->ik", "bhqd,bhkd->bhqk", "ijk,ja,ka->ia", "ij->i", "ij,ij->", "ii->",
    "baa,bcc->ac", "i,j->ij", "ij,jk,kl,lm->im", "ai,bi,aj,bj->", "i,j,k,l->",
    "xre,rij,ej->xei", "ij->ji", "ab,bc,cd,de,ef,fg,gh->ah",
]  # fmt: skip
HOSTILE = [0, 1, 2**31 - 1, 2**40]


def at(subscripts, extents):
    """The canonical einsum with these extents, in turn for all of its indices."""
    indices = sorted(set(subscripts) - set(",->"))
    named = dict(zip(indices, [*extents] * len(indices), strict=False))
    terms = subscripts.split("->")[0].split(",")
    arrays = [
        array(f"A{k}", tuple(named[i] for i in term)) for k, term in enumerate(terms)
    ]
    return canonicalize(einsum(subscripts, *arrays)).einsum


def assert_answered(e, sizes, is_empty):
    for device in (CPU, GPU):
        found = predict_recipes(e, sizes, device)
        assert bool(found) != is_empty
        assert all(isfinite(one.seconds) and one.seconds > 0 for one in found)


@pytest.mark.parametrize("subscripts", spread(CLASSES, 3))
def test_every_size_has_a_prediction_or_nothing_to_compute(subscripts):
    """Extents that are known, alike or not; and those of size parameters."""
    for extents in product(HOSTILE, repeat=2):
        e = at(subscripts, extents)
        assert_answered(e, {}, 0 in e.extents.values())
    general = at(subscripts, ["M", "N"])
    names = [x.name for x in general.size_params]
    for sizes in product(HOSTILE, repeat=len(names)):
        assert_answered(general, dict(zip(names, sizes, strict=True)), 0 in sizes)


@pytest.mark.parametrize("subscripts", spread(CLASSES, 5))
def test_large_extents_make_no_more_work(subscripts):
    """The number of proposals is bounded, whatever the extents."""
    for extents in (*product(HOSTILE[1:], repeat=2), ("M", 2**40)):
        e = at(subscripts, extents)
        for kind in ("cpu", "gpu"):
            families = [
                family
                for family in REGISTRY.values()
                if kind in family.devices
                and family.cost is not None
                # costs of families for all devices are those of CPUs
                and (kind == "cpu" or family.devices == {kind})
            ]
            n = sum(1 for family in families for _ in list_proposed(family, e))
            assert 0 < n <= 1000
