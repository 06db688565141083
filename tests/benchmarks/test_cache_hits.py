"""The simulation of caches counts as caches do, and obeys their laws."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.cache_hits import (
    Requests,
    Scenario,
    draw,
    is_same_as_before,
    random_requests,
    report,
    scenarios,
    sent_on,
    simulate,
    versions,
)

SMALL = Scenario(builds=2000, kernels=5, workloads=50, machines=20, new_facts=100)

MOMENTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=40
)
AGES = st.integers(0, 20)


def arrays(moments):
    """Requests in any order: of what, and when."""
    found = np.array(moments, np.int64)
    return found[:, 0], found[:, 1]


@given(MOMENTS, AGES)
def test_a_cache_asks_for_what_it_has_not_or_what_is_too_old(moments, max_age):
    """One request after another, with a dictionary, gives the same."""
    group, time = arrays(moments)
    expected = np.zeros(len(group), bool)
    fetched: dict[int, int] = {}
    for k in np.lexsort((np.arange(len(time)), time)):
        if group[k] not in fetched or time[k] - fetched[group[k]] >= max_age:
            fetched[group[k]] = time[k]
            expected[k] = True
    assert sent_on(group, time, max_age).tolist() == expected.tolist()


@given(MOMENTS, AGES, AGES)
def test_answers_that_may_be_kept_longer_are_asked_for_less_often(moments, age, more):
    """A longer max-age never makes one cache ask more, whoever asks it when."""
    group, time = arrays(moments)
    longer = sent_on(group, time, age + more).sum()
    assert longer <= sent_on(group, time, age).sum()


@given(MOMENTS, AGES)
def test_one_cache_asks_less_often_than_several(moments, max_age):
    """Caches that are put together never ask more."""
    group, time = arrays(moments)
    together = sent_on(group // 2, time, max_age).sum()
    assert together <= sent_on(group, time, max_age).sum()


@given(MOMENTS, MOMENTS)
def test_a_version_is_the_number_of_changes_until_then(changes, moments):
    """Counted one by one."""
    changed, at = arrays(changes)
    workload, time = arrays(moments)
    found = versions(Requests(at, np.zeros_like(at), changed), workload, time)
    expected = [sum(c == w and t <= now for c, t in changes) for w, now in moments]
    assert found.tolist() == expected


def test_the_first_answer_is_never_the_same_as_before():
    """An answer is compared with the one before it of its group, in time."""
    group, time = np.array([1, 1, 2, 1]), np.array([30, 10, 20, 20])
    version = np.array([6, 5, 5, 5])
    assert is_same_as_before(group, time, version).tolist() == [
        False, False, False, True,
    ]  # fmt: skip


def test_a_build_asks_for_a_workload_once():
    """No pair of a build and a workload is there twice; equal seeds, equal days."""
    noise = [np.random.default_rng(3) for _ in range(2)]
    alone = replace(SMALL, machines=0)
    first, second = (random_requests(alone, one) for one in noise)
    pairs = first.machine * alone.workloads + first.workload
    assert len(np.unique(pairs)) == len(pairs) <= alone.builds * alone.kernels
    assert np.array_equal(first.time, second.time)
    assert np.array_equal(first.workload, second.workload)


@pytest.mark.parametrize("scenario", scenarios(SMALL, (0, 60, 3600)), ids=str)
def test_all_look_ups_are_answered_by_somebody(scenario):
    """Shares are of [0, 1] and add up to 1; without a cache nothing is of a cache."""
    shares = simulate(scenario)
    parts = (shares.disk, shares.proxy, shares.unchanged, shares.made)
    assert all(0 <= part <= 1 for part in parts)
    assert sum(parts) == pytest.approx(1)
    assert shares == simulate(scenario)
    if not scenario.machines:
        assert shares.disk == 0
    if not scenario.proxies or not scenario.max_age_s:
        assert shares.proxy == 0


def test_the_service_answers_less_the_longer_answers_may_be_kept():
    """At one seed, for every kind of machines and proxies."""
    ages = (0, 60, 900, 7200)
    for start in range(0, 3 * len(ages), len(ages)):
        kind = scenarios(SMALL, ages)[start : start + len(ages)]
        rates = [simulate(one).per_s for one in kind]
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] < rates[0]


def test_nothing_changes_without_new_facts():
    """Then a proxy gets each body once, and 304 ever after."""
    still = replace(SMALL, new_facts=0, proxies=1, max_age_s=60)
    assert simulate(still).made == 0
    assert simulate(replace(still, new_facts=5000)).made > 0


def test_table_and_figure_show_every_scenario(tmp_path):
    """A row and a bar for each."""
    found = {one: simulate(one) for one in scenarios(SMALL, (60, 900))}
    console = Console(file=io.StringIO(), width=80)
    report(console, found)
    assert console.file.getvalue().count(" %") == 4 * len(found)
    draw(found, tmp_path / "shares.png")
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
