"""What one caller may send: a rate, and a number of values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import TooLargeError
from feinsum.service.middleware import MAX_CALLERS, RateLimit, check_value_count
from tests.service.conftest import Clock


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


@given(rate=st.floats(0.1, 100), burst=st.integers(1, 20), n_tokens=st.integers(1, 30))
def test_whoever_waits_as_told_is_served(rate, burst, n_tokens):
    """The wait that is told suffices, and half of it does not."""
    clock = Clock()
    limit = RateLimit(rate, burst, clock)
    while not (wait_s := limit.wait_s("ann", n_tokens)):
        pass
    clock.now_s += wait_s / 2
    assert limit.wait_s("ann", n_tokens) > 0
    clock.now_s += wait_s
    assert limit.wait_s("ann", n_tokens) == 0


def test_callers_have_buckets_of_their_own_and_the_oldest_is_forgotten():
    """One caller takes no tokens of another; memory is bounded."""
    limit = RateLimit(1.0, 1, Clock())
    assert [limit.wait_s(name) for name in ("ann", "bob", "ann")] == [0.0, 0.0, 1.0]
    for k in range(MAX_CALLERS):
        limit.wait_s(f"caller {k}")
    assert len(limit._buckets) == MAX_CALLERS
    assert limit.wait_s("bob") == 0.0


def test_without_a_rate_nobody_waits():
    """However many requests come at once."""
    limit = RateLimit(0.0, 1, Clock())
    assert [limit.wait_s("ann") for _ in range(3)] == [0.0, 0.0, 0.0]


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
)


def n_values(document: object) -> int:
    """All of a document: containers, names, and what has no parts."""
    if isinstance(document, dict):
        return 1 + len(document) + sum(map(n_values, document.values()))
    return 1 + sum(map(n_values, document)) if isinstance(document, list) else 1


@given(document=JSON)
def test_values_are_counted_whatever_texts_say(document):
    """Twice as many as a document has are enough, and half as many are too few."""
    body = json.dumps([document, ""]).encode()
    n = n_values([document, ""])
    check_value_count(body, 2 * n)
    with pytest.raises(TooLargeError):
        check_value_count(body, n // 2 - 1)
