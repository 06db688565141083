"""Facts from machines with longer vectors are no use where gcc has shorter ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from constantdict import constantdict

from feinsum import array, canonicalize, einsum
from feinsum.records import Device, Processor, TransformSpec
from feinsum.records.environment import HOST_PLATFORM
from feinsum.retrieval.matching import LookupForm, MatchingFacts, find_nearest
from tests.retrieval.facts import fact, here
from tests.retrieval.support import given

PRODUCT = einsum("ij,jk->ik", array("A", (96, 96)), array("B", (96, 96)))
WIDE = ("avx2", "avx512f")


def spec_of(lanes):
    parameters = {"lanes": lanes, "vector": "b"}
    return TransformSpec("packed_contraction", 2, parameters)


def environment_of(*features):
    processor = Processor("v", 1, 1, 1, features[-1], features, 2, constantdict())
    device = Device(HOST_PLATFORM, "a CPU", "", "cpu", "x86_64", 2, processor)
    return replace(here(), device=device)


@pytest.mark.parametrize(
    ("measured_on", "lanes", "served"),
    [(WIDE, 8, False), (WIDE, 4, True), (("avx2",), 8, True)],
)
def test_facts_in_longer_vectors_than_the_processor_has_are_left_out(
    measured_on, lanes, served
):
    """But for those that were measured on this very processor."""
    there = environment_of(*measured_on)
    record = fact(PRODUCT, spec_of(lanes), environment=there)
    form = canonicalize(PRODUCT)
    environment = environment_of("avx2")
    facts = MatchingFacts(given(record), environment.device, "loose")
    found, match = find_nearest([LookupForm(form, {})], facts, environment, "loose")
    assert found.records == ([record] if served else [])
    assert bool(match.ranking) is served
