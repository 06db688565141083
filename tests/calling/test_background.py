"""Builds in threads, as forked processes must know of them."""

from __future__ import annotations

import threading

from feinsum.calling import background


def test_a_build_counts_before_its_thread_runs(monkeypatch):
    """A process that is forked in between lacks the thread, and has to know it."""
    counts, before = [], background._BUILDING.n_running

    class Counting(threading.Thread):
        def start(self):
            counts.append(background._BUILDING.n_running - before)
            super().start()

    monkeypatch.setattr(background.threading, "Thread", Counting)
    assert background.build_in_background(lambda: 3).result(60) == 3
    assert counts == [1]


def test_a_build_without_a_thread_does_not_count(monkeypatch):
    """The future has the error, and later forks lack nothing."""

    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    before = background._BUILDING.n_running
    monkeypatch.setattr(background.threading, "Thread", Refused)
    error = background.build_in_background(lambda: 3).exception(60)
    assert "can't start new thread" in str(error)
    assert background._BUILDING.n_running == before
