"""The rule of trust under attack: lies stand behind honest facts, and go at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feinsum.db.server.serving import open_serving_store
from feinsum.records import TransformSpec
from feinsum.service.answers import MAX_ALIKE
from tests.hostile.world import HONEST, Served, faster

BEST, SECOND = HONEST[0], HONEST[1]

NEW = TransformSpec("turned", 1, {"block": 3})
"""A recipe that no honest fact has."""


def test_a_ladder_of_lies_stands_behind(world):
    """Facts each 1.95 times faster than the one before, until one is refused."""
    before = world.served()
    fact = SECOND
    for _ in range(10):
        fact = replace(fact, measurement=faster(fact.measurement, 1.95))
        if world.attacker.record(fact)[0] == 422:
            break
    world.check(before)
    world.retract_attackers()
    assert world.served() == before


def test_nobody_refutes_an_honest_recipe(world):
    """Three keys say of the best recipe that it is slow; no client is told so."""
    before = world.served()
    for n in range(9):
        said = replace(BEST, provenance={"n": f"{n}"})
        slow = replace(said, measurement=faster(BEST.measurement, 1 / (10 + n)))
        assert world.attacker.record(slow, who=n % 3)[0] == 201
    assert world.served() == before


@pytest.mark.parametrize("n_fakes", [60, 250])
def test_a_flood_hides_no_honest_fact(world, n_fakes):
    """Of a workload that is read as a whole, and of one that has too many facts."""
    before = world.served()
    with open_serving_store(world.database) as store:
        for n in range(n_fakes):
            spec = TransformSpec("turned", 1, {"block": n})
            fast = faster(BEST.measurement, 1.9)
            unique = {"of": f"{n_fakes}"}
            fake = replace(BEST, spec=spec, measurement=fast, provenance=unique)
            store.receive(fake, ("eve", "mallory", "oscar")[n % 3])
    world.check(before)
    world.retract_attackers()
    assert world.served() == before


def test_few_facts_of_one_recorder_and_recipe_are_answered(world):
    """However often one sends it; another recorder has as many."""
    before = world.answered(BEST)
    for who in range(2):
        for n in range(9):
            fake = replace(BEST, spec=NEW, provenance={"n": f"{n} of {who}"})
            assert world.attacker.record(fake, who)[0] == 201
    assert len(world.answered(BEST)) == len(before) + 2 * MAX_ALIKE


def test_trusted_keys_rank_first_at_once(world):
    """The operator's mark decides; what a trusted key sends again is trusted, too."""
    honest = world.served()
    # a key that no other test uses: the service caches keys for two seconds
    key_id = world.attacker.secrets[3].split("_")[1]
    with open_serving_store(world.database) as store:
        store.trust_key(key_id, is_trusted=True)
    fast = replace(BEST, spec=NEW, measurement=faster(BEST.measurement, 1.9))
    assert world.attacker.record(fast, who=0)[0] == 201
    world.check(honest)
    assert world.attacker.record(fast, who=3)[0] == 200
    trusted = world.served()
    assert all(recipes[0] == str(NEW) for recipes in trusted_of(trusted))
    beyond = replace(fast, measurement=faster(BEST.measurement, 1.99))
    assert world.attacker.record(beyond, who=0)[0] == 201
    world.check(trusted)
    with open_serving_store(world.database) as store:
        store.trust_key(key_id, is_trusted=False)


def trusted_of(served: Served) -> list[list[str]]:
    """The recipes of the workload and the device of :data:`BEST`."""
    place = BEST.workload, BEST.environment.device.id
    return [recipes for key, recipes in served.items() if key[:2] == place]
