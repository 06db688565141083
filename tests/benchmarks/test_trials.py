"""What is tried, so that a model can be fitted to it."""

from __future__ import annotations

import pytest

from benchmarks.trials import N_BEST, chosen


@pytest.mark.parametrize("n_ranked", [0, 3, 6, 100])
@pytest.mark.parametrize("n", [1, 5, 6, 40])
def test_recipes_are_chosen_once_and_from_all_ranks(n_ranked, n):
    """The first ones always; no more than were asked for, all if there are few."""
    ranked = [*range(n_ranked)]
    found = chosen(ranked, n)
    assert len(found) == len(set(found)) == min(n, n_ranked)
    assert found == sorted(found)
    assert found[:N_BEST] == ranked[: min(n, N_BEST)]
