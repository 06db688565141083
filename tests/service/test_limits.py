"""What one caller may send: a rate, lengths and kinds of bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import (
    InvalidRequestError,
    TooLargeError,
    WrongContentTypeError,
)
from feinsum.service.middleware import (
    MAX_CALLERS,
    RateLimit,
    check_length,
    check_media_type,
    check_values,
    read_body,
    replayed,
)


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


@pytest.mark.parametrize("announced", [b"0", b"9", b"10"])
def test_a_body_may_be_as_long_as_the_limit(announced):
    """Any length up to it, and none that is announced."""
    check_length({b"content-length": announced}, 10)
    check_length({}, 10)


@pytest.mark.parametrize("announced", [b"11", b"100", b"-1", b"", b"ten", b"0" * 16])
def test_a_length_beyond_the_limit_is_refused(announced):
    """So is what is no length, and one of so many digits."""
    with pytest.raises(TooLargeError):
        check_length({b"content-length": announced}, 10)


JSON = {b"content-type": b"application/json"}
BODIES = {
    "none": ({}, True),
    "an empty one": ({b"content-length": b"0"}, True),
    "JSON": (JSON | {b"content-length": b"3"}, True),
    "JSON with a charset": (
        {b"content-type": b"Application/JSON; charset=utf-8", b"content-length": b"3"},
        True,
    ),
    "no type": ({b"content-length": b"3"}, False),
    "of unknown length without a type": ({b"transfer-encoding": b"chunked"}, False),
    "a form": ({b"content-type": b"text/plain", b"content-length": b"3"}, False),
    "compressed": (
        JSON | {b"content-length": b"3", b"content-encoding": b"gzip"},
        False,
    ),
    "compressed otherwise": (
        JSON | {b"content-length": b"3", b"content-encoding": b"zstd"},
        False,
    ),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_is_json_and_not_compressed(kind):
    """Or there is none."""
    headers, is_taken = BODIES[kind]
    with nullcontext() if is_taken else pytest.raises(WrongContentTypeError):
        check_media_type(headers)


class Sender:
    """Sends messages, and counts what was received."""

    def __init__(self, messages: Iterable[dict[str, object]]) -> None:
        self._messages, self.n_received = iter(messages), 0

    async def receive(self) -> dict[str, object]:
        self.n_received += 1
        return next(self._messages)


GONE = {"type": "http.disconnect"}


def in_parts(parts: list[bytes]) -> list[dict[str, object]]:
    """The messages of a body; the last one says so by saying nothing."""
    *others, last = [{"type": "http.request", "body": part} for part in parts]
    return [*({**one, "more_body": True} for one in others), last]


@given(
    parts=st.lists(st.binary(max_size=4), min_size=1, max_size=4),
    most=st.integers(0, 9),
)
def test_a_body_is_read_whole_or_not_beyond_the_limit(parts, most):
    """A body up to the limit is all its parts; of a longer one, no more is received."""
    sender = Sender([*in_parts(parts), GONE])
    body = b"".join(parts)
    if len(body) <= most:
        assert asyncio.run(read_body(sender.receive, most)) == body
        assert sender.n_received == len(parts)
    else:
        with pytest.raises(TooLargeError):
            asyncio.run(read_body(sender.receive, most))
        so_far = accumulate(map(len, parts), initial=0)
        assert sender.n_received == sum(length <= most for length in so_far)


def test_a_body_without_an_end_is_refused():
    """The sender went away in the middle."""
    sender = Sender([in_parts([b"[1,", b"2]"])[0], GONE])
    with pytest.raises(InvalidRequestError):
        asyncio.run(read_body(sender.receive, 10))


def test_a_body_is_given_once_and_whole():
    """Whoever reads a body after the gate finds it, and then what the sender sends."""
    receive = replayed(b"[1]", Sender([GONE]).receive)
    assert asyncio.run(read_body(receive, 3)) == b"[1]"
    assert asyncio.run(receive()) == GONE


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
    check_values(body, 2 * n)
    with pytest.raises(TooLargeError):
        check_values(body, n // 2 - 1)
