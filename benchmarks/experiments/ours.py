"""Ours: the user's kernel, untransformed, and as ``feinsum.retrieve`` gives it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import feinsum
from benchmarks.experiments.contender import Called, NotApplicableError, Ready
from benchmarks.experiments.entries import Entry, scaled_to, with_elements
from benchmarks.experiments.functions import Values
from benchmarks.experiments.user_kernel import user_kernel
from feinsum.calling import CallKernel, prepare_call, read_call
from feinsum.measure import BoundKernel, Timer, compile_kernel, open_device
from feinsum.records import InMemoryStore
from feinsum.retrieval import look_up
from feinsum.suites import EVERYDAY

_SMALL_POINTS = 2e7


@dataclass
class Bound:
    """A kernel on the device, by the wall clock."""

    kernel: BoundKernel
    outputs: list[str]
    note: str
    timer: Timer = "wall"

    def run(self, timer: Timer | None = None) -> float:
        return self.kernel.run("wall")

    def results(self) -> list[np.ndarray]:
        read = self.kernel.read()
        return [read[name] for name in self.outputs]


@dataclass(frozen=True)
class Retrieved:
    """What retrieval gives back; it does not take part if that is the same kernel."""

    device: str | None = None
    database: str | None = None
    package: str = "loopy"

    @property
    def name(self) -> str:
        return OURS if self.device is None else f"{OURS} on {self.device}"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        kernel = user_kernel(entry)
        retrieval = look_up(kernel, device=self.device, database=self.database)
        if not retrieval.applied:
            raise NotApplicableError(_why(retrieval))
        recipes = ", ".join(map(str, retrieval.applied))
        return _bound(retrieval.t_unit, entry, values, self.device, recipes)


@dataclass(frozen=True)
class Untransformed:
    """The user's kernel, as long as a run of it takes no more than ``limit_s``."""

    device: str | None = None
    limit_s: float = 20.0
    name: str = "untransformed"
    package: str = "loopy"

    def prepare(self, entry: Entry, values: Values) -> Ready:
        estimate_s = self._estimate_s(entry)
        if estimate_s > self.limit_s:
            raise NotApplicableError(
                f"about {estimate_s:.3g} s a run, judged by a smaller size; "
                f"the limit is {self.limit_s:g} s"
            )
        return _bound(user_kernel(entry), entry, values, self.device, "")

    def _estimate_s(self, entry: Entry) -> float:
        """Time per point of the loop nest at a smaller size, times the points."""
        small = smaller(entry)
        bound = _bound(user_kernel(small), small, small.values(), self.device, "")
        bound.run()
        return bound.run() / small.n_points * entry.n_points


@dataclass
class Evaluated(Called):
    """A call of which is said afterwards what it was: the first ones build nothing."""

    describe: Callable[[], str] = str

    def results(self) -> list[np.ndarray]:
        self.note = self.describe()
        return super().results()


@dataclass(frozen=True)
class Calls:
    """``feinsum.call_einsum``, as a user types it.

    Attributes:
        database: that knows recipes; without one nothing is recorded of anything, and
            recipes are predicted.
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
            return _note(kernel)

        return Evaluated(call, describe=describe)


def _note(kernel: CallKernel | None) -> str:
    if kernel is None:
        return "a view"
    if kernel.is_retrieved:
        return "recorded"
    return str(kernel.spec) if kernel.spec else "untransformed"


OURS = "feinsum"


def smaller(entry: Entry) -> Entry:
    """The entry with some ten million points at most."""
    if entry.parametric:
        return with_elements(entry, min(1.0, _SMALL_POINTS / entry.n_points))
    return scaled_to(entry, _SMALL_POINTS * 2 / 1e9)


def tune(
    entry: Entry, n_trials: int, device: str | None, database: str | None
) -> list[str]:
    """Tune the idealized einsum at the sizes of the entry; the recorded recipes."""
    target, sizes = entry.einsum(), entry.parameters
    if entry.suite == EVERYDAY:
        operands = [entry.values()[f.name] for row in entry.rows for f in row]
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


def _bound(
    t_unit: Any, entry: Entry, values: Values, device: str | None, note: str
) -> Bound:
    compiled = compile_kernel(t_unit, open_device(device))
    bound = compiled.bind({**values, **entry.parameters})
    bound.poison()
    return Bound(bound, entry.outputs, note)


def _why(retrieval: Any) -> str:
    for nest in retrieval.unchanged:
        return f"no recipe: {nest.match.level}: {nest.why_unchanged}"
    return f"no recipe: not raised: {[r.reason for r in retrieval.raised.refused]}"
