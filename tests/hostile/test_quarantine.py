"""Quarantine holds: no key vouches for itself, and few keys for each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from feinsum.db.server import open_serving_store, trust
from feinsum.errors import TooManyRequestsError
from feinsum.records import TransformSpec
from tests.hostile.world import HONEST, World, faster

BEST, SECOND = HONEST[0], HONEST[1]

NEW = TransformSpec("unroll_and_jam", 1, {"block": 3})
"""A recipe that no honest fact has."""


def test_one_key_climbs_no_ladder(world: World) -> None:
    """Facts each 1.95 times faster than the one before are never served."""
    before = world.served()
    fact = SECOND
    for _ in range(10):
        fact = replace(fact, measurement=faster(fact.measurement, 1.95))
        status, kept = world.attacker.record(fact)
        if status == 422:
            break
        assert kept["is_quarantined"]
    assert world.served() == before


def test_three_keys_release_nothing_of_their_own(world: World) -> None:
    """They agree on a recipe that nobody else measured, as often as they like."""
    before = world.served()
    fake = replace(BEST, spec=NEW, measurement=faster(BEST.measurement, 1.9))
    for n in range(9):
        said = replace(fake, provenance={"n": f"{n}"})
        status, kept = world.attacker.record(said, who=n % 3)
        assert (status, kept["is_quarantined"]) == (201, True)
    assert world.served() == before


def test_a_refutation_of_an_honest_recipe_is_not_served(world: World) -> None:
    """Three keys say of the best recipe that it is slow; it stays the best."""
    before = world.served()
    for n in range(9):
        said = replace(BEST, provenance={"n": f"{n}"})
        slow = replace(said, measurement=faster(BEST.measurement, 1 / (10 + n)))
        assert world.attacker.record(slow, who=n % 3)[1]["is_quarantined"]
    assert world.served() == before


def test_what_claims_no_more_is_released_once(world: World) -> None:
    """Of a recorder one fact is released that a vouched one reaches."""
    before = world.served()
    said = [replace(BEST, provenance={"n": f"{n}"}) for n in range(4)]
    states = [world.attacker.record(fact)[1]["is_quarantined"] for fact in said]
    assert Counter(states) == {False: 1, True: 3}
    assert world.served() == before


def test_no_recorder_fills_the_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More facts of a workload than there is room for are refused; others go on."""
    monkeypatch.setattr(trust, "MOST_WAITING", 3)
    fakes = [replace(BEST, spec=NEW, provenance={"n": f"{n}"}) for n in range(5)]
    with open_serving_store(str(tmp_path / "facts.sqlite")) as store:
        for fact in fakes[:3]:
            store.receive(fact, "eve", 3)
        with pytest.raises(TooManyRequestsError, match="3 facts of 'eve'"):
            store.receive(fakes[3], "eve", 3)
        assert store.receive(fakes[4], "ann", 3)
        assert store.missing([fact.id for fact in fakes]) == [fakes[3].id]
        assert store.receive(fakes[3], "eve", 3, is_trusted=True)


def test_unknown_transforms_wait_however_many_agree(world: World) -> None:
    """Sixty fakes of a transform that is not registered displace nobody."""
    before = world.served()
    for n in range(60):
        spec = TransformSpec("miracle", 1, {"n": n % 20})
        fake = replace(BEST, spec=spec, provenance={"n": f"{n}"})
        status, kept = world.attacker.record(fake, who=n % 3)
        assert (status, kept["is_quarantined"]) == (201, True)
    assert world.served() == before


def test_a_recorder_is_rejected_as_a_whole(world: World) -> None:
    """What was accepted by mistake is taken back at once, and stays away."""
    before = world.served()
    fake = replace(BEST, spec=NEW, measurement=faster(BEST.measurement, 1.9))
    assert world.attacker.record(fake)[0] == 201
    with open_serving_store(world.database) as store:
        since = store.reputations()[0].first_at
        dry = store.judge_recorder("eve", since, is_accepted=True, is_dry=True)
        assert dry.ids == (fake.id,)
        assert store.trust(fake.id).is_quarantined
        store.judge_recorder("eve", since, is_accepted=True, is_dry=False)
    assert world.served() != before
    with open_serving_store(world.database) as store:
        store.judge_recorder("eve", since, is_accepted=False, is_dry=False)
        (eve,) = store.reputations()
        assert (eve.n_sent, eve.n_served, eve.n_rejected) == (1, 0, 1)
        assert not eve.is_trusted
        store.add_all([fake])  # a merge brings it along
        assert store.trust(fake.id).is_rejected
    assert world.served() == before
    assert world.attacker.record(fake, who=1)[1]["is_quarantined"]
    assert world.served() == before


def test_trusted_keys_are_served_at_once(world: World) -> None:
    """The operator's mark decides; taken away, later facts wait."""
    key_id = world.attacker.secrets[2].split("_")[1]
    with open_serving_store(world.database) as store:
        store.trust_key(key_id, is_trusted=True)
    fresh = replace(BEST, spec=NEW)
    assert not world.attacker.record(fresh, who=2)[1]["is_quarantined"]
    assert str(NEW.name) in str(world.served())
    same = replace(fresh, provenance={"by": "eve"})
    assert not world.attacker.record(same, who=0)[1]["is_quarantined"]
    beyond = replace(fresh, measurement=faster(BEST.measurement, 1.3))
    assert world.attacker.record(beyond, who=0)[1]["is_quarantined"]
