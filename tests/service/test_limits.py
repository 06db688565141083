"""The rate of one caller: what comes back, and what never does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feinsum.service.limits import MOST_CALLERS, RateLimit


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(
    rate=st.floats(0.1, 100),
    burst=st.integers(1, 20),
    pauses=st.lists(st.floats(0, 1e6), min_size=1, max_size=30),
)
def test_no_pause_saves_up_more_than_a_burst(rate, burst, pauses):
    """However long a caller was silent, a full bucket is all that it has."""
    clock = Clock()
    limit = RateLimit(rate, burst, clock)
    for pause_s in pauses:
        clock.now_s += pause_s
        n_served = 0
        while limit.wait_s("ann") == 0.0:
            n_served += 1
            assert n_served <= burst


@given(rate=st.floats(0.1, 100), burst=st.integers(1, 20))
def test_whoever_waits_as_told_is_served(rate, burst):
    """The wait that is told suffices, and half of it does not."""
    clock = Clock()
    limit = RateLimit(rate, burst, clock)
    while not (wait_s := limit.wait_s("ann")):
        pass
    clock.now_s += wait_s / 2
    assert limit.wait_s("ann") > 0
    clock.now_s += wait_s
    assert limit.wait_s("ann") == 0


def test_callers_have_buckets_of_their_own_and_the_oldest_is_forgotten():
    """One caller takes no tokens of another; memory is bounded."""
    limit = RateLimit(1.0, 1, Clock())
    assert [limit.wait_s(name) for name in ("ann", "bob", "ann")] == [0.0, 0.0, 1.0]
    for k in range(MOST_CALLERS):
        limit.wait_s(f"caller {k}")
    assert len(limit._buckets) == MOST_CALLERS
    assert limit.wait_s("bob") == 0.0
