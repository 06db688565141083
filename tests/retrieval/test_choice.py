"""Which recipe is applied: of the right workload, the best that can be."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from feinsum import retrieve
from feinsum.errors import (
    RecordNotFoundError,
)
from feinsum.records import MatchLevel, TransformSpec
from feinsum.retrieval import look_up, query
from feinsum.transforms import REGISTRY, Transform
from tests.db.factories import make_device
from tests.retrieval.facts import fact, fact_of, here
from tests.retrieval.kernels import (
    reduction,
)
from tests.retrieval.support import (
    assert_right,
    given,
    why_unchanged,
)


def _breaks(t_unit, nest, parameters):
    raise KeyError("no such loop")


@pytest.fixture
def _breaking(monkeypatch):
    """A registered transform that fails on every kernel."""
    space = cache(lambda einsum: {"n": (1,)})
    transform = Transform("breaking", 1, "a test transform", space, _breaks)
    monkeypatch.setitem(REGISTRY, ("breaking", 1), transform)


BAD_SPECS = {
    "breaking@1(n=1)": "no such loop",
    "alien@1(n=1)": "no transform alien@1 is registered here",
    "rowwise@7(block=8, index='i')": "did you mean rowwise@2",
    "rowwise@1(block=7, index='i')": "block=7 is outside its space",
    "rowwise@1(block=8)": "expected the parameters",
    "packed_contraction@2(n=1)": "does not fit the einsum",
}


@pytest.mark.usefixtures("_breaking")
@pytest.mark.parametrize("bad", BAD_SPECS)
def test_a_recipe_that_cannot_be_applied_is_passed_over(bad):
    """The next best recipe is applied; the look-up says what was passed over."""
    example = reduction()
    worse = fact_of(example)
    better = fact(example.einsum, TransformSpec.parse(bad), speedup=100.0)
    found = look_up(example.kernel, database=given(worse, better))
    assert [record.spec for record in found.nests[0].match.ranking] == [
        better.spec,
        worse.spec,
    ]
    assert found.nests[0].applied == worse.spec
    ((spec, why),) = found.nests[0].failures
    assert spec == better.spec
    assert BAD_SPECS[bad] in why
    assert f"skipped {spec}: {why}" in str(found)
    assert_right(example, found.t_unit)


@pytest.mark.usefixtures("_breaking")
def test_where_no_recipe_can_be_applied_the_kernel_is_unchanged():
    """All recipes are passed over: the warning gives every reason."""
    example = reduction()
    specs = [TransformSpec.parse(bad) for bad in BAD_SPECS]
    store = given(*(fact(example.einsum, spec) for spec in specs))
    text = why_unchanged(example.kernel, database=store)
    assert "no recorded recipe could be applied" in text
    assert all(why in text for why in BAD_SPECS.values())
    with pytest.raises(RecordNotFoundError):
        retrieve(example.kernel, database=store, on_miss="raise")


def test_a_worse_level_is_taken_where_the_best_has_no_usable_recipe():
    """A recipe that is unknown here does not hide one of a similar machine."""
    example = reduction()
    alien = fact(example.einsum, TransformSpec("alien", 1, {}))
    elsewhere = replace(here(), driver_version="another")
    usable = fact_of(example, environment=elsewhere)
    found = look_up(example.kernel, database=given(alien, usable))
    assert found.nests[0].applied == usable.spec
    assert found.nests[0].match.level == MatchLevel.SAME_DEVICE_OTHER_DRIVER
    assert [spec for spec, _ in found.nests[0].failures] == [alien.spec]
    strict = look_up(example.kernel, database=given(alien, usable), policy="strict")
    assert (strict.applied, strict.t_unit) == ((), example.kernel)


def test_a_recipe_that_is_no_faster_is_never_applied():
    """A fact that says slower than untransformed is no reason to transform."""
    example = reduction()
    facts = fact_of(example, speedup=0.9), fact_of(example, speedup=1.0)
    text = why_unchanged(example.kernel, database=given(*facts))
    last = max(fact.recorded_at for fact in facts)[:10]
    assert f"2 facts are recorded, the last on {last}, but none beats" in text


def environments():
    """Environments from here to far away, by the level of their fit."""
    device = here().device
    neighbour = replace(device, name="another", compute_units=device.compute_units + 1)
    far = replace(make_device(), kind="gpu", architecture="far")
    return {
        MatchLevel.EXACT: here(),
        MatchLevel.SAME_DEVICE_OTHER_DRIVER: replace(here(), driver_version="another"),
        MatchLevel.SAME_ARCHITECTURE: replace(here(), device=neighbour),
        MatchLevel.GENERIC: replace(here(), device=far),
    }


@pytest.mark.parametrize(
    ("policy", "worst"),
    [
        ("strict", MatchLevel.EXACT),
        ("default", MatchLevel.NEAREST_EXTENTS),
        ("loose", MatchLevel.GENERIC),
    ],
)
def test_a_policy_is_the_worst_level_accepted(policy, worst):
    """Facts from further away than the policy allows are not used."""
    example = reduction()
    for level, environment in environments().items():
        store = given(fact_of(example, environment=environment))
        found = look_up(example.kernel, database=store, policy=policy)
        assert (found.nests[0].applied is not None) == (level <= worst)
        known = query(example.einsum, database=store, policy=policy)
        assert known.level == (level if level <= worst else MatchLevel.MISS)
        if level > worst:
            text = why_unchanged(example.kernel, database=store, policy=policy)
            assert f"policy {policy!r}" in text
            assert str(level) in text


def test_the_nearest_level_is_preferred():
    """A slower recipe from here is taken before a faster one from further away."""
    example = reduction()
    records = [
        fact_of(example, environment=environment, speedup=10.0 ** (1 + level))
        for level, environment in environments().items()
    ]
    for k, (level, _) in enumerate(environments().items()):
        found = look_up(example.kernel, database=given(*records[k:]), policy="loose")
        assert found.nests[0].match.level == level
        assert found.nests[0].match.ranking == (records[k],)
