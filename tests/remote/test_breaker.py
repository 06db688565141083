"""A service that failed is left alone by all processes, until it answers."""

from __future__ import annotations

import time

from feinsum.db.address import parse_address
from feinsum.db.remote.answers import PAUSE_S, Breaker
from tests.remote.conftest import forget

HERE = parse_address("https://facts.example/team")


def test_a_failure_is_known_to_other_processes_until_it_is_reset():
    """So is the reset: a process that starts later asks again."""
    Breaker(HERE, "key").open("no answer")
    forget()
    assert Breaker(HERE, "key").explain_open() == "no answer"
    for other in ("other", None):  # what one key was refused, another may get
        assert Breaker(HERE, other).explain_open() == ""
    Breaker(HERE, "key").reset()
    forget()
    assert Breaker(HERE, "key").explain_open() == ""


def test_a_failure_counts_for_a_minute(monkeypatch):
    """And one from the future, of another clock, does not count at all."""
    for later_s in (PAUSE_S + 1, -1):
        Breaker(HERE, "key").open("no answer")
        moment = time.time() + later_s
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda moment=moment: moment)
            assert Breaker(HERE, "key").explain_open() == ""
