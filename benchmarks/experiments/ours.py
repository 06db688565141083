"""Our contenders: the user's kernel, untransformed and retrieved, and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import feinsum
from benchmarks.experiments.contender import Called, NotApplicableError, Ready
from benchmarks.experiments.entries import Entry, limit_operations, scale_elements
from benchmarks.experiments.functions import Values
from benchmarks.experiments.user_kernel import make_user_kernel
from feinsum.calling import CallKernel, prepare_call, read_call
from feinsum.measure import BoundKernel, Timer, compile_kernel, open_device
from feinsum.records import InMemoryStore
from feinsum.retrieval import look_up
from feinsum.suites import EVERYDAY

_SMALL_POINTS = 2e7


@dataclass
class Bound:
    """A kernel that is bound to its arguments, timed by the wall clock."""

    kernel: BoundKernel
    outputs: list[str]
    note: str
    timer: Timer = "wall"

    def run(self, timer: Timer | None = None) -> float:
        return self.kernel.run("wall")

    def read_results(self) -> list[np.ndarray]:
        read = self.kernel.read()
        return [read[name] for name in self.outputs]


@dataclass(frozen=True)
class Retrieved:
    """The retrieved kernel; it is skipped if no recipe applies."""

    device: str | None = None
    database: str | None = None
    package: str = "loopy"

    @property
    def name(self) -> str:
        return OURS if self.device is None else f"{OURS} on {self.device}"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        kernel = make_user_kernel(entry)
        retrieval = look_up(kernel, device=self.device, database=self.database)
        if not retrieval.applied:
            raise NotApplicableError(_explain_miss(retrieval))
        recipes = ", ".join(map(str, retrieval.applied))
        return _bind_kernel(retrieval.t_unit, entry, values, self.device, recipes)


@dataclass(frozen=True)
class Untransformed:
    """The user's kernel, if a run takes at most ``limit_s``."""

    device: str | None = None
    limit_s: float = 20.0
    name: str = "untransformed"
    package: str = "loopy"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        estimate_s = self._estimate_s(entry)
        if estimate_s > self.limit_s:
            raise NotApplicableError(
                f"about {estimate_s:.3g} s a run, estimated at a smaller size; "
                f"the limit is {self.limit_s:g} s"
            )
        return _bind_kernel(make_user_kernel(entry), entry, values, self.device, "")

    def _estimate_s(self, entry: Entry) -> float:
        """Estimate the time of a run from one at a smaller size, by points of the loop
        nest.
        """
        small = shrink_entry(entry)
        bound = _bind_kernel(
            make_user_kernel(small), small, small.draw_values(), self.device, ""
        )
        bound.run()
        return bound.run() / small.n_points * entry.n_points


@dataclass
class Evaluated(Called):
    """A call whose note is made after the first runs, which build its kernel."""

    describe: Callable[[], str] = str

    def read_results(self) -> list[np.ndarray]:
        self.note = self.describe()
        return super().read_results()


@dataclass(frozen=True)
class Calls:
    """``feinsum.call_einsum``, as users call it.

    Attributes:
        database: facts; without one, recipes are predicted.
    """

    name: str = "feinsum untuned"
    database: str | None = None
    package: str = "loopy"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        operands = [values[f.name] for row in entry.rows for f in row]
        if self.database is None and self.name != "feinsum untuned":
            raise NotApplicableError("not tuned: give --tune and --database")
        store = self.database or InMemoryStore()

        def call() -> list[Any]:
            return [feinsum.call_einsum(entry.subscripts, *operands, database=store)]

        def describe() -> str:
            kernel = prepare_call(entry.subscripts, *operands, database=store).kernel
            return _describe_kernel(kernel)

        return Evaluated(call, describe=describe)


def _describe_kernel(kernel: CallKernel | None) -> str:
    if kernel is None:
        return "a view"
    if kernel.is_retrieved:
        return "recorded"
    return str(kernel.spec) if kernel.spec else "untransformed"


OURS = "feinsum"


def shrink_entry(entry: Entry) -> Entry:
    """Scale an entry down to some ten million points at most."""
    if entry.parametric:
        return scale_elements(entry, min(1.0, _SMALL_POINTS / entry.n_points))
    return limit_operations(entry, _SMALL_POINTS * 2 / 1e9)


def tune(
    entry: Entry, n_trials: int, device: str | None, database: str | None
) -> list[str]:
    """Tune the idealized einsum at the sizes of the entry; return the recorded
    recipes.
    """
    target, sizes = entry.make_einsum(), entry.parameters
    if entry.suite == EVERYDAY:
        operands = [entry.draw_values()[f.name] for row in entry.rows for f in row]
        reading = read_call(entry.subscripts, *operands)
        target, sizes = reading.einsum, dict(reading.sizes)
    report = feinsum.autotune(
        target,
        sizes=sizes,
        device=device,
        database=database,
        n_trials=n_trials,
    )
    return [str(record.spec) for record in report.records]


def _bind_kernel(
    t_unit: Any, entry: Entry, values: Values, device: str | None, note: str
) -> Bound:
    compiled = compile_kernel(t_unit, open_device(device))
    bound = compiled.bind({**values, **entry.parameters})
    bound.poison()
    return Bound(bound, entry.outputs, note)


def _explain_miss(retrieval: Any) -> str:
    for nest in retrieval.unchanged:
        return f"no recipe: {nest.match.level}: {nest.why_unchanged}"
    return f"no recipe: not raised: {[r.reason for r in retrieval.raised.refused]}"
