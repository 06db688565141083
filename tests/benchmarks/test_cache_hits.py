"""The simulation of caches counts as caches do, and obeys their laws."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.cache_hits import (
    Requests,
    Scenario,
    count_versions,
    draw,
    forward_requests,
    list_scenarios,
    report,
    simulate,
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
    assert forward_requests(group, time, max_age).tolist() == expected.tolist()


@given(MOMENTS, MOMENTS)
def test_a_version_is_the_number_of_changes_until_then(changes, moments):
    """Counted one by one."""
    changed, at = arrays(changes)
    workload, time = arrays(moments)
    found = count_versions(Requests(at, np.zeros_like(at), changed), workload, time)
    expected = [sum(c == w and t <= now for c, t in changes) for w, now in moments]
    assert found.tolist() == expected


@pytest.mark.parametrize("scenario", list_scenarios(SMALL, (0, 60, 3600)), ids=str)
def test_all_look_ups_are_answered_by_somebody(scenario):
    """Shares are of [0, 1] and add up to 1; without a cache nothing is of a cache."""
    shares = simulate(scenario)
    parts = (shares.disk, shares.proxy, shares.unchanged, shares.full)
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
        kind = list_scenarios(SMALL, ages)[start : start + len(ages)]
        rates = [simulate(one).per_s for one in kind]
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] < rates[0]


def test_table_and_figure_show_every_scenario(tmp_path):
    """A row and a bar for each."""
    found = {one: simulate(one) for one in list_scenarios(SMALL, (60, 900))}
    console = Console(file=io.StringIO(), width=80)
    report(console, found)
    assert console.file.getvalue().count(" %") == 4 * len(found)
    draw(found, tmp_path / "shares.png")
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
