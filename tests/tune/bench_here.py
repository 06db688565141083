"""A bench without a process of its own."""

from __future__ import annotations

from functools import cached_property

from feinsum.tuning import IsolatedBench
from feinsum.tuning.bench import Bench
from feinsum.tuning.trials import TrialRequest
from feinsum.tuning.worker import try_specs


class BenchHere:
    """Stands in for :class:`IsolatedBench`: the same trials, in this process."""

    def __init__(self, problem, time_limit_s):
        self.problem = problem

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    is_here = True

    @cached_property
    def bench(self):
        return Bench(self.problem)

    def start(self):
        return self.bench.environment

    def trial(self, spec, reference=None):
        return try_specs(self.bench, TrialRequest(specs=(spec,), reference=reference))[
            0
        ]

    outcomes = IsolatedBench.outcomes

    def compare(self, specs):
        return try_specs(
            self.bench, TrialRequest(None, tuple(specs), is_comparison=True)
        )
