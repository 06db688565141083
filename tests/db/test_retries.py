"""A call waits for a database server that restarts, for a limited time."""

from __future__ import annotations

import pytest

from feinsum.db.sql.engine import MAX_WAIT_S, LostConnectionError, RetryPolicy


class Clock:
    """Time that passes only during ``sleep``."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s


class Server:
    """Answers from a time on, and counts the calls."""

    def __init__(self, clock: Clock, back_at_s: float) -> None:
        self._clock, self.back_at_s, self.n_calls = clock, back_at_s, 0

    def call(self) -> str:
        self.n_calls += 1
        if self._clock.now_s < self.back_at_s:
            raise LostConnectionError("ended")
        return "an answer"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("feinsum.db.sql.engine.time", clock)
    return clock


def test_a_call_waits_for_a_server_that_comes_back(clock: Clock) -> None:
    """A server that is back within the time limit costs a delay and no error."""
    server = Server(clock, MAX_WAIT_S - 1)
    assert RetryPolicy().run(server.call) == "an answer"


def test_without_a_time_limit_nothing_is_retried(clock: Clock) -> None:
    """A client that waits 0 s calls once."""
    server = Server(clock, 0.01)
    with pytest.raises(LostConnectionError):
        RetryPolicy(0.0).run(server.call)
    assert server.n_calls == 1


def test_calls_fail_at_once_until_the_server_is_back(clock: Clock) -> None:
    """After one call waited in vain, the next ones fail at once, until one succeeds."""
    server, policy = Server(clock, 2 * MAX_WAIT_S), RetryPolicy()
    with pytest.raises(LostConnectionError):
        policy.run(server.call)
    assert MAX_WAIT_S < clock.now_s < MAX_WAIT_S + 1
    n_calls, now_s = server.n_calls, clock.now_s
    with pytest.raises(LostConnectionError):
        policy.run(server.call)
    assert (server.n_calls, clock.now_s) == (n_calls + 1, now_s)
    clock.now_s = server.back_at_s
    assert policy.run(server.call) == "an answer"
    server.back_at_s = clock.now_s + MAX_WAIT_S - 1
    assert policy.run(server.call) == "an answer"
