"""The process in which trials run; it may crash or hang without loss.

It answers each :class:`TrialRequest` with a :class:`TrialAnswer`; see
:mod:`feinsum.processes`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from feinsum.errors import FeinsumError, MeasurementError
from feinsum.measure import open_device
from feinsum.processes import Channel, limit_memory
from feinsum.records import OK, Measurement, TransformSpec, from_json, to_json
from feinsum.select import rank_by_ratio
from feinsum.transforms import import_transforms
from feinsum.tuning.bench import Bench, Turn, lock_device, lock_file, make_bench
from feinsum.tuning.problem import TuningProblem
from feinsum.tuning.requirements import check_requirements, get_memory_limit_bytes
from feinsum.tuning.trials import N_RECORDED, TrialAnswer, TrialOutcome, TrialRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")


def main() -> None:
    """Answer requests until the tuner closes the channel, or is gone."""
    channel = Channel()
    channel.end_with_parent()
    import_transforms(sys.argv[1:])

    def limit_trials(problem: TuningProblem) -> None:
        # trials end this process before others run short of memory
        if open_device(problem.device).device.kind == "cpu":
            limit_memory(get_memory_limit_bytes())

    serve_requests(channel.requests(), channel.answer, limit_trials)


def serve_requests(
    requests: Iterable[str],
    send: Callable[[str], None],
    prepare: Callable[[TuningProblem], None] = lambda _: None,
) -> None:
    """Answer every request until the input ends.

    Args:
        requests: a :class:`TrialRequest` per line, as JSON.
        send: takes an :class:`TrialAnswer` as JSON.
        prepare: called before a problem is set up.
    """
    bench: Bench | None = None
    for line in requests:
        request = from_json(TrialRequest, line)
        if request.problem is not None:
            bench, answer = _set_up(request, send, prepare)
        elif bench is None:
            answer = TrialAnswer(
                error_code="feinsum-error", error="no problem was given"
            )
        else:
            answer = TrialAnswer(try_specs(bench, request))
        send(to_json(answer))


def _set_up(
    request: TrialRequest,
    send: Callable[[str], None],
    prepare: Callable[[TuningProblem], None],
) -> tuple[Bench | None, TrialAnswer]:
    assert request.problem is not None
    try:
        # Again here: a worker of a cluster may have less memory than the tuner.
        check_requirements(request.problem)
        prepare(request.problem)
        bench = make_bench(request.problem, _make_turn(request, send))
        # Its time counts as set-up, which may take longer than a trial.
        bench.baseline_s  # noqa: B018  (measured before the first trial)
    except FeinsumError as error:
        return None, TrialAnswer(error_code=error.code, error=str(error))
    return bench, TrialAnswer(environment=bench.environment)


def _make_turn(request: TrialRequest, send: Callable[[str], None]) -> Turn:
    """Let kernels run at once, or only while no other process uses the device."""
    if request.problem is None or not request.is_shared:
        return nullcontext

    def on_wait(_: bool) -> None:
        send(to_json(TrialAnswer(is_waiting=True)))

    path = lock_file(open_device(request.problem.device))
    return partial(lock_device, path, on_wait)


def try_specs(bench: Bench, request: TrialRequest) -> tuple[TrialOutcome, ...]:
    """Try recipes one by one, or compare them in one run; one outcome for each."""
    if request.is_comparison:
        return _compare(bench, request.specs)
    outcomes = (
        (spec, _attempt(partial(bench.trial, spec, request.reference), spec))
        for spec in request.specs
    )
    return tuple(_make_outcome(spec, outcome) for spec, outcome in outcomes)


def _compare(bench: Bench, specs: Sequence[TransformSpec]) -> tuple[TrialOutcome, ...]:
    """Time all recipes that pass in one run; failures do not affect the others.

    The best, which may be recorded, are confirmed; those that fail there drop out.
    """
    results: dict[TransformSpec, Measurement | FeinsumError] = {}
    kernels = {}
    for spec in specs:
        built = _attempt(partial(bench.verified_kernel, spec), spec)
        if isinstance(built, FeinsumError):
            results[spec] = built
        else:
            kernels[spec] = built
    if kernels:
        measured = _attempt(lambda: bench.compare(kernels), *kernels)
        if isinstance(measured, FeinsumError):
            results |= dict.fromkeys(kernels, measured)
        else:
            results |= measured | _confirm_best(bench, measured)
    return tuple(_make_outcome(spec, results[spec]) for spec in specs)


def _make_outcome(
    spec: TransformSpec, result: TrialOutcome | Measurement | FeinsumError
) -> TrialOutcome:
    match result:
        case FeinsumError():
            return TrialOutcome(spec, result.code, str(result))
        case Measurement():
            return TrialOutcome(spec, OK, measurement=result)
    return result


def _confirm_best(
    bench: Bench, measured: Mapping[TransformSpec, Measurement]
) -> dict[TransformSpec, Measurement | FeinsumError]:
    """Confirm the best candidates until enough of them can be recorded."""
    results: dict[TransformSpec, Measurement | FeinsumError] = {}
    n_passed = 0
    for spec, _ in rank_by_ratio({s: m.samples_s for s, m in measured.items()}):
        results[spec] = _attempt(partial(bench.confirmed, spec, measured[spec]), spec)
        n_passed += not isinstance(results[spec], FeinsumError)
        if n_passed == N_RECORDED:
            break
    return results


def _attempt(work: Callable[[], T], *specs: TransformSpec) -> T | FeinsumError:
    """Return the result of ``work``, or the error that it raises."""
    try:
        return work()
    except FeinsumError as error:
        logger.info("a trial of %s failed", ", ".join(map(str, specs)), exc_info=True)
        return error
    except Exception as error:  # candidates may fail in any other way
        logger.exception("a trial of %s failed", ", ".join(map(str, specs)))
        return MeasurementError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
