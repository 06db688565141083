"""Trials in this process: apply, build, verify, and only then time.

Several kernels share one set of arrays, so that they are timed under equal conditions::

    case.arguments ---> baseline (untransformed)      arrays A, B, out
                   ---> kernel of a recipe            arrays of its own: verify
                                  |                         |
                                  +--- sharing(baseline) ---+---> timed on A, B, out

Processes of a machine take turns on a device. Each turn has it exclusively: a process
waits for a lock on a file, which the operating system releases when the process ends.
The file represents the device on this machine, for one user and one temporary folder.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import loopy as lp
from filelock import FileLock, Timeout

from feinsum.errors import MeasurementError, TransformError
from feinsum.measure import (
    BoundKernel,
    OpenDevice,
    Timer,
    check_outputs,
    choose_common_timer,
    compile_kernel,
    count_footprint_bytes,
    count_operations,
    interleave,
    open_device,
    verify,
)
from feinsum.measure.cases import (
    Case,
    make_case,
    make_ragged_cases,
    make_ragged_unit,
)
from feinsum.measure.reference import make_reference
from feinsum.measure.sparse_cases import (
    SparseCase,
    SparseKernel,
    make_ragged_sparse_cases,
    make_sparse_case,
)
from feinsum.measure.timing import thin_samples
from feinsum.measure.verification import locate_wrong_results
from feinsum.records import (
    OK,
    Environment,
    Measurement,
    TransformSpec,
    Verification,
    is_noisy,
)
from feinsum.select import MIN_SAMPLES, compute_paired_ratio
from feinsum.transforms import apply_spec, suits_device
from feinsum.tuning.problem import TuningProblem
from feinsum.tuning.trials import TrialOutcome, choose_round_interval

logger = logging.getLogger(__name__)

HOPELESS = 1.25
"""Multiple of the reference's time from which on a recipe is not timed to the end."""

BASELINE_S = 1.0
"""Seconds to run the untransformed kernel for its own times."""


@dataclass(frozen=True)
class _Reference:
    """A verified kernel and its recipe; None for the untransformed one."""

    spec: TransformSpec | None
    kernel: BoundKernel


class Bench:
    """Everything that the trials of one problem share.

    The reference evaluator runs once; so does the untransformed kernel.

    Args:
        turn: context entered while kernels run, but not while they are built; by
            default the device is not shared.
    """

    ragged_reference = "numpy.einsum"
    ragged_at = "at the run-time sizes"

    def __init__(self, problem: TuningProblem, turn: Turn = nullcontext) -> None:
        self.problem = problem
        self.turn = turn
        self.opened: OpenDevice = open_device(problem.device)
        self._make_cases()
        self._errors: dict[TransformSpec, float] = {}
        self._kernels: dict[TransformSpec, BoundKernel] = {}
        self._best: _Reference | None = None

    def _make_cases(self) -> None:
        problem = self.problem
        self.case = make_case(problem.einsum, problem.sizes)
        variant, sizes = make_ragged_cases(problem.einsum)
        self.ragged = [make_case(variant, s) for s in sizes]

    @property
    def baseline(self) -> BoundKernel:
        """The untransformed kernel, verified like every other."""
        return self._first_run[0]

    @cached_property
    def _pairwise(self) -> lp.TranslationUnit | None:
        return make_reference(self.case.einsum).baseline(self.case.sizes)

    @cached_property
    def _first_run(self) -> tuple[BoundKernel, float]:
        """The untransformed kernel, and the time of the run that was verified."""
        kernel = self._bind_untransformed()
        kernel.poison()
        with self.turn():
            first_s = kernel.run()
        check_outputs(kernel, self.case.expected, tolerance=self.case.tolerance)
        return kernel, first_s

    def _bind_untransformed(self) -> Any:
        unit = self._pairwise or self.case.t_unit
        return compile_kernel(unit, self.opened).bind(self.case.arguments)

    def _bind(self, spec: TransformSpec) -> Any:
        """Build the kernel of a recipe, unless its compiler's figures rule it out."""
        case = self.case
        compiled = compile_kernel(apply_spec(spec, case.t_unit, case.nest), self.opened)
        compiled.built.check_figures()
        return compiled.bind(case.arguments)

    def _ragged_kernels(self, spec: TransformSpec) -> Iterator[tuple[Any, Case]]:
        """Yield the kernel of a recipe on arrays of sizes that no tile divides."""
        if self.ragged:
            compiled = compile_kernel(
                make_ragged_unit(spec, self.ragged[0]), self.opened
            )
            for case in self.ragged:
                yield compiled.bind(case.arguments), case

    @cached_property
    def baseline_s(self) -> tuple[float, ...]:
        """The times of the untransformed kernel alone.

        One that uses up the available time has a single sample, from the verification
        run: that is accurate enough for a recipe that is much faster.
        """
        baseline, first_s = self._first_run
        # A naive contraction may take minutes: it is not run a second time.
        if first_s > self.problem.max_total_s:
            return (first_s,)
        return self._time([baseline], warmup=0, max_total_s=BASELINE_S)[0]

    @property
    def baseline_every(self) -> int:
        """The untransformed kernel runs in every k-th round; 1 means all."""
        problem = self.problem
        return choose_round_interval(
            median(self.baseline_s), problem.rounds, problem.max_total_s
        )

    @property
    def policy(self) -> dict[str, str | int | float]:
        """The measuring policy, and the baseline."""
        return {**self._timing, **({"baseline": "pairwise"} if self._pairwise else {})}

    @property
    def _timing(self) -> dict[str, Any]:
        problem = self.problem
        return {
            "rounds": problem.rounds,
            "warmup": problem.warmup,
            "max_total_s": problem.max_total_s,
        }

    @property
    def environment(self) -> Environment:
        return self.opened.environment(self.policy)

    def trial(
        self, spec: TransformSpec, reference: TransformSpec | None
    ) -> TrialOutcome:
        """Verify a recipe, and time it in turns with a reference.

        Args:
            spec: the recipe to try.
            reference: a recipe that passed; by default, or if that is unavailable, the
                untransformed kernel.

        Raises:
            TransformError, BuildError, WrongResultError: what went wrong.
        """
        kernel = self.verified_kernel(spec)
        against = self._find_reference(reference)
        if against is None:
            timed = [kernel]
            (samples,), reference_s = self._time(timed), self.baseline_s
            ratio = median(samples) / median(reference_s)
        else:
            timed = [kernel, against.kernel]
            samples, reference_s = self._time_in_turns(timed)
            ratio = compute_paired_ratio(samples, reference_s)
        # The best kernel stays bound: the next trial is timed against it.
        if against is None or against.spec is None or ratio < 1:
            self._best = _Reference(spec, kernel)
        timer = choose_common_timer(timed)
        measurement = self._make_measurement(spec, timer, samples, self.baseline_s)
        return TrialOutcome(
            spec,
            OK,
            measurement=measurement,
            ratio=ratio,
            reference=None if against is None else against.spec,
        )

    def _time_in_turns(
        self, kernels: Sequence[BoundKernel]
    ) -> tuple[tuple[float, ...], ...]:
        """Time two kernels in turns; stop early if the first one is far behind."""
        # Most recipes are far behind: three rounds show it.
        rough = self._time(kernels, rounds=MIN_SAMPLES, warmup=1, min_total_s=0.005)
        if compute_paired_ratio(*rough) > HOPELESS:
            return rough
        return self._time(kernels, rounds=max(MIN_SAMPLES, self.problem.rounds // 2))

    def compare(
        self, kernels: Mapping[TransformSpec, BoundKernel]
    ) -> dict[TransformSpec, Measurement]:
        """Time verified kernels and the untransformed one in one run.

        The order rotates. The untransformed kernel takes part in every round that
        :attr:`baseline_every` divides; if that would take too long, its initial times
        are used.
        """
        samples: Sequence[tuple[float, ...]]
        if max(self.baseline_s) > self.problem.max_total_s:
            timed = [*kernels.values()]
            samples = self._time(timed, is_rotating=True)
            baseline = self.baseline_s
        else:
            timed = [*kernels.values(), self.baseline]
            *samples, baseline = self._time(
                timed,
                every=[*[1] * len(kernels), self.baseline_every],
                is_rotating=True,
            )
        timer = choose_common_timer(timed)
        return {
            spec: self._make_measurement(spec, timer, times, baseline)
            for spec, times in zip(kernels, samples, strict=True)
        }

    def verified_kernel(self, spec: TransformSpec) -> BoundKernel:
        """Build the kernel of a recipe and verify it at the tuned sizes.

        It is verified on separate arrays, so that it cannot corrupt those of others,
        and then bound to those of the untransformed kernel. It is kept for the
        comparison.

        Raises:
            TransformError, BuildError, WrongResultError: what went wrong.
        """
        if spec in self._kernels:
            return self._kernels[spec]
        if not suits_device(spec, self.opened.device.kind):
            raise TransformError(f"{spec} is not for devices like {self.opened.device}")
        kernel = self._bind(spec)
        self._errors[spec] = self._verify(kernel, self.case)
        self._kernels[spec] = kernel.sharing(self.baseline)
        return self._kernels[spec]

    def confirmed(self, spec: TransformSpec, measurement: Measurement) -> Measurement:
        """Verify a recipe at ragged run-time extents, too.

        This needs a separate kernel, which takes longer to build than the trial of a
        recipe that is soon beaten; so only recipes to be recorded are confirmed.

        Raises:
            TransformError, BuildError, WrongResultError: what went wrong.
        """
        errors = []
        for kernel, case in self._ragged_kernels(spec):
            with locate_wrong_results(f"{self.ragged_at} {dict(case.sizes)}"):
                errors.append(self._verify(kernel, case))
        if not errors:
            return measurement
        verification = measurement.verification
        checked = replace(
            verification,
            reference=self.ragged_reference,
            largest_error=max(verification.largest_error, *errors),
            sizes=(*verification.sizes, *(case.sizes for case in self.ragged)),
        )
        return replace(measurement, verification=checked)

    def _find_reference(self, spec: TransformSpec | None) -> _Reference | None:
        """Return the reference of a trial; None if it would take too long."""
        if spec is not None:
            if self._best is not None and self._best.spec == spec:
                return self._best
            try:
                return _Reference(spec, self.verified_kernel(spec))
            except Exception:  # the recipe on trial did not cause this
                logger.exception("the reference %s failed", spec)
        # A baseline that is too slow for every round would decide how long trials take.
        return _Reference(None, self.baseline) if self.baseline_every == 1 else None

    def _time(
        self, kernels: Sequence[BoundKernel], **policy: Any
    ) -> tuple[tuple[float, ...], ...]:
        """Time kernels in turns; once more if the clock of a GPU changed."""
        policy = {**self._timing, **policy}
        # Both attempts in one turn: another process would change the clock again.
        with self.turn():
            samples = interleave(kernels, **policy)
            if self.opened.device.kind == "gpu" and any(map(is_noisy, samples)):
                samples = interleave(kernels, **policy)
        return samples

    def _verify(self, kernel: BoundKernel, case: Case) -> float:
        with self.turn():
            return verify(kernel, case.expected, tolerance=case.tolerance)

    def _make_measurement(
        self,
        spec: TransformSpec,
        timer: Timer,
        samples: tuple[float, ...],
        baseline: tuple[float, ...],
    ) -> Measurement:
        einsum, sizes = self.problem.einsum, self.problem.sizes
        return Measurement(
            samples_s=thin_samples(samples),
            baseline_s=thin_samples(baseline),
            timer=timer,
            n_warmup=self.problem.warmup,
            sizes=sizes,
            operations=count_operations(einsum, sizes),
            footprint_bytes=count_footprint_bytes(einsum, sizes),
            verification=Verification(
                "numpy.einsum", self.case.tolerance, self._errors[spec], (sizes,)
            ),
        )


Turn: TypeAlias = Callable[[], AbstractContextManager[None]]


def lock_file(opened: OpenDevice) -> Path:
    """Return the file that represents a device; indistinguishable devices share one."""
    # Another user could not open the file of the first one, hence one for each.
    name = f"feinsum-{os.geteuid()}-{opened.device.id[:16]}-{opened.slot}.lock"
    return Path(tempfile.gettempdir()) / re.sub(r"[^\w.-]", "_", name)


@contextmanager
def lock_device(path: Path, on_wait: Callable[[bool], None]) -> Iterator[None]:
    """Hold the device exclusively in the body.

    Args:
        path: the file of the lock.
        on_wait: called with True before a wait and with False after it, if the
            device is not free.

    Raises:
        MeasurementError: if the file cannot be created.
    """
    lock = FileLock(path, mode=0o600)
    try:
        # the tuner stops the clock of a waiting trial, so report real waits only
        try:
            lock.acquire(blocking=False)
        except Timeout:
            on_wait(True)
            lock.acquire()
            on_wait(False)
    except OSError as error:
        raise MeasurementError(
            f"cannot lock the device: {path}: {error.strerror}"
        ) from None
    try:
        yield
    finally:
        lock.release()


def make_bench(problem: TuningProblem, turn: Turn) -> Bench:
    """Make a bench for the operands of a problem, dense or sparse."""
    is_sparse = problem.einsum.sparse_position is not None
    return SparseBench(problem, turn) if is_sparse else Bench(problem, turn)


class SparseBench(Bench):
    """A bench with a random tree of the problem's profile.

    The untransformed kernel multiplies all operands in one loop over all indices.
    """

    case: SparseCase  # type: ignore[assignment]
    ragged: list[SparseCase]  # type: ignore[assignment]
    ragged_reference = "feinsum.measure.sparse_cases"
    ragged_at = "for a tree of the sizes"
    _pairwise = None

    def _make_cases(self) -> None:
        self.case = make_sparse_case(self.problem.einsum, self.problem.sizes)
        self.ragged = make_ragged_sparse_cases(self.problem.einsum)

    def _bind_untransformed(self) -> SparseKernel:
        return self.case.untransformed(self.opened)

    def _bind(self, spec: TransformSpec) -> SparseKernel:
        return self.case.kernel(spec, self.opened)

    def _ragged_kernels(self, spec: TransformSpec) -> Iterator[tuple[Any, Any]]:
        for case in self.ragged:
            yield case.kernel(spec, self.opened), case
