"""How long a question waits for a server of databases."""

from __future__ import annotations

import pytest

from feinsum.db.server.patience import PATIENCE_S, Patience
from feinsum.db.sql.failures import LostConnectionError


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s


class Server:
    """Is there from a time on, and counts who asks."""

    def __init__(self, clock: Clock, back_at_s: float) -> None:
        self._clock, self.back_at_s, self.n_asked = clock, back_at_s, 0

    def ask(self) -> str:
        self.n_asked += 1
        if self._clock.now_s < self.back_at_s:
            raise LostConnectionError("ended")
        return "an answer"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("feinsum.db.server.patience.time", made)
    return made


def test_a_question_waits_for_a_server_that_comes_back(clock: Clock) -> None:
    """As long as the patience lasts."""
    server = Server(clock, PATIENCE_S - 1)
    assert Patience()(server.ask) == "an answer"


def test_patience_ends_and_comes_back_with_the_server(clock: Clock) -> None:
    """The first question waits in vain, others fail at once, until one is answered."""
    server, patience = Server(clock, 2 * PATIENCE_S), Patience()
    with pytest.raises(LostConnectionError):
        patience(server.ask)
    assert PATIENCE_S < clock.now_s < PATIENCE_S + 1
    n_asked, now_s = server.n_asked, clock.now_s
    with pytest.raises(LostConnectionError):
        patience(server.ask)
    assert (server.n_asked, clock.now_s) == (n_asked + 1, now_s)
    clock.now_s = server.back_at_s
    assert patience(server.ask) == "an answer"
    server.back_at_s = clock.now_s + PATIENCE_S - 1
    assert patience(server.ask) == "an answer"
