"""A service that failed is left alone by all processes, until it answers."""

from __future__ import annotations

import time

import pytest

from feinsum.db.address import address_of
from feinsum.db.remote.cache import PAUSE_S, Breaker
from tests.remote.conftest import forget

HERE = address_of("https://facts.example/team")


def test_a_failure_is_known_to_other_processes_until_it_is_reset():
    """So is the reset: a process that starts later asks again."""
    Breaker(HERE, "key").trip("no answer")
    forget()
    assert Breaker(HERE, "key").why_open() == "no answer"
    Breaker(HERE, "key").reset()
    forget()
    assert Breaker(HERE, "key").why_open() == ""


def test_with_another_key_a_service_may_be_asked():
    """What one key was refused, another may get."""
    Breaker(HERE, "key").trip("refused")
    assert Breaker(HERE, "other").why_open() == ""
    assert Breaker(HERE, None).why_open() == ""


@pytest.mark.parametrize("later_s", [PAUSE_S + 1, -1])
def test_a_failure_counts_for_a_minute(later_s, monkeypatch):
    """And one from the future, of another clock, does not count at all."""
    Breaker(HERE, "key").trip("no answer")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + later_s)
    assert Breaker(HERE, "key").why_open() == ""
