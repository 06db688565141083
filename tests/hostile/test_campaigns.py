"""Random attacks: whatever is accepted, honest facts stand before it, and it goes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feinsum.records import (
    Environment,
    Measurement,
    TransformSpec,
    TuningRecord,
    Verification,
)
from tests.db.factories import make_device, make_environment, make_processor
from tests.hostile.conftest import world_of
from tests.hostile.world import DEVICES, HONEST, SPECS, WORKLOADS, World

N_CAMPAIGNS, N_LONG = 3, 1000

MOST_FAKES, N_KEYS, EACH_WORLD = 100, 3, 10

TRANSFORMS = (
    *SPECS,
    TransformSpec("rowwise", 2, {"index": "a", "lanes": 1}),
    TransformSpec("library_contraction", 1, {}),
    TransformSpec("miracle", 1, {"n": 1}),
)

ENVIRONMENTS = (
    *(make_environment(device) for device in DEVICES),
    make_environment(DEVICES[0], "9.9"),
    make_environment(make_device(9, make_processor())),
    make_environment(make_device(0)),
)


def fake(source: random.Random) -> TuningRecord:
    """A fact that somebody made up: mostly plausible, and near to an honest one."""
    honest = source.choice(HONEST)
    factor = source.choice([1.0, 1.01, 1.95, 0.5, 0.1, 10 ** source.uniform(-2, 5)])
    n = source.choice([3, 3, 5, 20])
    spread = source.choice([0.0, 0.01, 0.5, 3.0])
    middle = honest.measurement.median_s / factor
    samples = tuple(middle * (1 + spread * source.uniform(0, 1)) for _ in range(n))
    measured = replace(
        honest.measurement,
        samples_s=samples,
        baseline_s=tuple(
            sample * source.choice([1.0, 1.0, 1.9, 100.0])
            for sample in honest.measurement.baseline_s
        ),
        sizes={"n": source.choice([1000, 1000, 10, 10**6])},
    )
    return replace(
        honest,
        spec=source.choice(TRANSFORMS),
        environment=source.choice([honest.environment, *ENVIRONMENTS]),
        measurement=measured,
        provenance={"salt": f"{source.getrandbits(64)}"},
    )


def assert_nothing_is_displaced(world: World, seed: int) -> None:
    """Some fakes by some keys, in any order, then again some of them by others."""
    source = random.Random(seed)
    n_keys = source.randint(1, N_KEYS)
    before = world.served()
    sent: list[TuningRecord] = []
    for _ in range(source.randint(1, MOST_FAKES)):
        again = sent and source.random() < 0.2
        fact = source.choice(sent) if again else fake(source)
        sent.append(fact)
        status, said = world.attacker.record(fact, source.randrange(n_keys))
        assert status in (200, 201, 422), said
    world.check(before)
    world.retract_attackers()
    assert world.served() == before, f"campaign {seed}"


def test_no_campaign_displaces_an_honest_answer(world):
    """Up to a hundred fakes by up to three keys, and one command that removes them."""
    for seed in range(N_CAMPAIGNS):
        assert_nothing_is_displaced(world, seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, N_LONG, EACH_WORLD))
def test_no_campaign_of_many_displaces_an_honest_answer(tmp_path, first):
    """The same a thousand times, each few against a new database."""
    with world_of(str(tmp_path / "facts.sqlite"), tmp_path) as world:
        for seed in range(first, first + EACH_WORLD):
            assert_nothing_is_displaced(world, seed)


seconds = st.one_of(
    st.sampled_from([1e-3, 1e-3 / 3, 1e-2]),
    st.floats(min_value=1e-320, max_value=1e308),
)
counts = st.one_of(st.just(1000), st.integers(-(2**63), 2**63 - 1))
texts = st.one_of(st.just("n"), st.text(max_size=20))


def fuzzed() -> st.SearchStrategy[TuningRecord]:
    """Facts of any values, biased to what honest ones have."""
    verifications = st.builds(
        Verification,
        texts,
        st.one_of(st.just(1e-9), st.floats(allow_nan=False, allow_infinity=False)),
        st.one_of(st.just(1e-15), st.floats(allow_nan=False, allow_infinity=False)),
        st.lists(st.dictionaries(texts, counts, max_size=2), max_size=2).map(tuple),
    )
    measurements = st.builds(
        Measurement,
        samples_s=st.lists(seconds, min_size=1, max_size=5).map(tuple),
        baseline_s=st.lists(seconds, min_size=1, max_size=3).map(tuple),
        timer=st.sampled_from(["wall", "wall", "hour-glass"]),
        n_warmup=st.just(1),
        sizes=st.one_of(
            st.just({"n": 1000}), st.dictionaries(texts, counts, max_size=2)
        ),
        operations=st.just({"float64": 2000}),
        footprint_bytes=st.integers(0, 2**63 - 1),
        verification=st.one_of(
            st.just(HONEST[0].measurement.verification), verifications
        ),
    )
    environments: st.SearchStrategy[Environment] = st.sampled_from(ENVIRONMENTS)
    return st.builds(
        replace,
        st.sampled_from(HONEST),
        workload=st.sampled_from(WORKLOADS),
        spec=st.sampled_from(TRANSFORMS),
        environment=environments,
        measurement=st.one_of(st.just(HONEST[0].measurement), measurements),
        provenance=st.dictionaries(texts, texts, max_size=2),
        recorded_at=st.sampled_from(
            [HONEST[0].recorded_at, "9999-01-01", "now", "2025-01-31T12:00:00-23:00"]
        ),
    )


@pytest.fixture(scope="module")
def before(lasting):
    return lasting.served()


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(fact=fuzzed(), who=st.integers(0, N_KEYS - 1))
def test_no_fact_that_is_accepted_changes_an_answer(lasting, before, fact, who):
    """Whatever a fact says, it is refused, or stands behind the honest ones."""
    status, said = lasting.attacker.record(fact, who)
    assert status in (200, 201, 422), said
    if status != 422:
        lasting.check(before)
