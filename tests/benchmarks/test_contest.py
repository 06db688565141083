"""A contest: nobody runs while the threads of another still work."""

from __future__ import annotations

import threading

import numpy as np

from benchmarks.experiments.contest import settle


def test_a_run_waits_until_all_threads_are_at_rest():
    """Work that goes on behind a call is over when the next one begins."""
    is_over = threading.Event()

    def work():
        x = np.random.default_rng(0).random(200_000)
        for _ in range(200):
            np.sort(x)
        is_over.set()

    thread = threading.Thread(target=work)
    thread.start()
    settle(0.0, limit_s=60.0)
    assert is_over.is_set()
    thread.join()
