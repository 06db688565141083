"""A call waits for a database server that restarts, for a limited time."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, make_url

from feinsum.db.address import Location
from feinsum.db.sql.engine import MAX_WAIT_S, LostConnectionError, SqlDatabase


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
def database():
    """One to which no connection is made."""
    url = make_url("sqlite://")
    return SqlDatabase(create_engine(url), Location(url, None, False, 1.0))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("feinsum.db.sql.engine.time", clock)
    return clock


def test_a_call_waits_for_a_server_that_comes_back(clock, database):
    """A server that is back within the time limit costs a delay and no error."""
    server = Server(clock, MAX_WAIT_S - 1)
    assert database.retry(server.call) == "an answer"


def test_without_a_time_limit_nothing_is_retried(clock, database):
    """A client that waits 0 s calls once."""
    server = Server(clock, 0.01)
    database.max_wait_s = 0.0
    with pytest.raises(LostConnectionError):
        database.retry(server.call)
    assert server.n_calls == 1


def test_calls_fail_at_once_until_the_server_is_back(clock, database):
    """After one call waited in vain, the next ones fail at once, until one succeeds."""
    server = Server(clock, 2 * MAX_WAIT_S)
    with pytest.raises(LostConnectionError):
        database.retry(server.call)
    assert MAX_WAIT_S < clock.now_s < MAX_WAIT_S + 1
    n_calls, now_s = server.n_calls, clock.now_s
    with pytest.raises(LostConnectionError):
        database.retry(server.call)
    assert (server.n_calls, clock.now_s) == (n_calls + 1, now_s)
    clock.now_s = server.back_at_s
    assert database.retry(server.call) == "an answer"
    server.back_at_s = clock.now_s + MAX_WAIT_S - 1
    assert database.retry(server.call) == "an answer"
