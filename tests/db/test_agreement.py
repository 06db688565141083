"""What may leave quarantine, as a pure function of who saw what."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from statistics import median_low

from hypothesis import given
from hypothesis import strategies as st

from feinsum.db.server.trust import AGREEMENT, NOISE, Witness, agreed

SPEEDUPS = st.one_of(st.floats(0.1, 100), st.sampled_from([1.0, 1.95, 2.0, 3.8]))


def witnesses(names: str, standings: tuple[str, ...]) -> st.SearchStrategy[Witness]:
    """Facts of recorders with one letter."""

    def made(
        name: str, speedup: float, ends: tuple[float, float], standing: str, n: int
    ) -> Witness:
        low, high = speedup * ends[0], speedup * ends[1]
        return Witness(f"{name}{n}", name, speedup, low, high, standing)

    ends = st.tuples(st.floats(0.5, 1), st.floats(1, 5))
    return st.builds(
        made,
        st.sampled_from(names),
        SPEEDUPS,
        ends,
        st.sampled_from(standings),
        st.integers(0, 10**9),
    )


def distinct(facts: list[Witness]) -> list[Witness]:
    return list({fact.id: fact for fact in facts}.values())


HONEST = st.lists(witnesses("abcdef", ("waiting", "served")), max_size=8)
FAKES = st.lists(witnesses("xyz", ("waiting",)), min_size=1, max_size=12)


@given(HONEST, FAKES, st.integers(3, 5))
def test_few_keys_claim_no_more_than_somebody_saw(honest, fakes, n_confirmations):
    """With three keys or fewer and three confirmations, an honest fact reaches it."""
    facts = {fact.id: fact for fact in distinct(honest + fakes)}
    for fact_id in agreed(facts.values(), n_confirmations):
        if facts[fact_id].recorder in "xyz":
            for k, claim in enumerate(facts[fact_id].claims):
                assert claim <= NOISE * max(fact.claims[k] for fact in honest)


@given(st.lists(witnesses("v", ("vouched",)), min_size=1, max_size=4), FAKES)
def test_where_a_claim_is_vouched_for_nothing_goes_beyond(vouched, fakes):
    """However many agree, each that is released is within one that is vouched for."""
    facts = {fact.id: fact for fact in distinct(vouched + fakes)}
    for fact_id in agreed(facts.values(), 1):
        fact = facts[fact_id]
        assert any(
            all(fact.claims[k] <= v.claims[k] for k in range(3))
            and v.speedup <= AGREEMENT * fact.speedup
            for v in vouched
        )


@given(HONEST, FAKES, st.integers(1, 4))
def test_what_is_released_releases_nothing_more(honest, fakes, n_confirmations):
    """A second look after a release finds nothing new for the same recorders."""
    facts = {fact.id: fact for fact in distinct(honest + fakes)}
    first = agreed(facts.values(), n_confirmations)
    for fact_id in first:
        facts[fact_id] = replace(facts[fact_id], standing="served")
    assert agreed(facts.values(), n_confirmations) == ()


@given(HONEST, FAKES, st.integers(1, 4))
def test_most_recorders_agree_with_what_is_released(honest, fakes, n_confirmations):
    """Where nothing is vouched for; each counts once, by the median of its facts."""
    facts = {fact.id: fact for fact in distinct(honest + fakes)}
    speedups = defaultdict(list)
    for fact in facts.values():
        speedups[fact.recorder].append(fact.speedup)
    for fact in map(facts.get, agreed(facts.values(), n_confirmations)):
        own = fact.speedup
        others = [median_low(speedups[name]) for name in {*speedups} - {fact.recorder}]
        n_agree = sum(1 / AGREEMENT <= other / own <= AGREEMENT for other in others)
        assert 1 + n_agree > len(others) - n_agree


@given(HONEST, FAKES, st.integers(1, 4))
def test_of_a_recorder_one_fact_is_released(honest, fakes, n_confirmations):
    """And none of one that has a fact in look-ups already."""
    facts = {fact.id: fact for fact in distinct(honest + fakes)}
    shown = {fact.recorder for fact in honest if fact.standing == "served"}
    released = [facts[one].recorder for one in agreed(facts.values(), n_confirmations)]
    assert len(released) == len(set(released))
    assert not shown & set(released)


@given(HONEST, FAKES)
def test_what_is_rejected_is_neither_released_nor_counted(honest, fakes):
    """An operator's decision takes a fact out of all comparisons."""
    rejected = [replace(fact, standing="rejected") for fact in fakes]
    known = distinct(honest)
    assert sorted(agreed(known + rejected, 1)) == sorted(agreed(known, 1))


def test_a_recorder_does_not_confirm_itself():
    """However many facts it sends that agree."""
    facts = [Witness(f"{n}", "eve", 3.0, 2.9, 3.1) for n in range(9)]
    assert agreed(facts, 1) == ()


def test_tolerances_do_not_add_up():
    """A ladder of facts, each within the tolerance of the one before, ends at once."""
    base = Witness("base", "", 2.0, 1.9, 2.1, "vouched")
    steps = [
        Witness(f"{n}", "eve", 2.0 * 1.95**n, 1.9 * 1.95**n, 2.1 * 1.95**n)
        for n in range(1, 60)
    ]
    assert agreed([base, *steps], 1) == ()
