"""Whatever numpy.einsum takes."""

from __future__ import annotations

from hypothesis import given

from feinsum.calling.kernel_cache import BoundedCache
from tests.calling.comparing import assert_as_numpy
from tests.calling.random_calls import calls
from tests.strategies import counts


@counts(40, 1500)
@given(calls())
def test_a_call_gives_what_numpy_gives(call):
    """The result of a random call is numpy's, entry by entry, with its dtype."""
    subscripts, operands = call
    assert_as_numpy(subscripts, *operands)


def test_a_cache_keeps_no_more_than_its_bound():
    """The value that was asked for longest ago is made anew."""
    cache, made = BoundedCache(2), []

    def ask(key):
        return cache.get(key, lambda: made.append(key) or key)

    assert [ask(k) for k in "ababcab"] == list("ababcab")
    assert made == list("abcab")
    assert len(cache) == 2
