"""A contest: nobody runs while the threads of another still work."""

from __future__ import annotations

from itertools import chain, repeat

from benchmarks.experiments.contest import WARM_S, IdleTimed
from benchmarks.timing import STEP_S, wait_until_idle


def test_a_run_waits_until_all_threads_are_at_rest():
    """It is asked what was worked until that stands still."""
    busy = [k * STEP_S for k in range(20)]
    asked = chain(busy, repeat(busy[-1]))
    wait_until_idle(0.0, measure=lambda: next(asked))
    assert next(asked) == busy[-1]


class Scripted:
    """Takes the times of a script, one after the other."""

    def __init__(self, *times_s):
        self.times_s = list(times_s)

    def run(self, timer):
        assert timer == "wall"
        return self.times_s.pop(0)


def test_runs_that_wake_threads_do_not_count():
    """The one does that comes when they have lasted long enough."""
    noted = []
    script = Scripted(0.5 * WARM_S, 0.5 * WARM_S, 0.01, 7.0)
    assert IdleTimed("mine", script, noted.append, 0.0).run() == 0.01
    assert noted == ["mine"]
    assert script.times_s == [7.0]
