"""The process in which trials run: it may crash or hang, and nothing is lost.

Reads a :class:`Request` per line from standard input and writes an
:class:`Answer` per line to standard output.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from queue import SimpleQueue
from threading import Thread
from typing import TextIO

from feinsum.errors import FeinsumError, MeasurementError
from feinsum.records import Measurement, TransformSpec, from_json, to_json
from feinsum.tune.bench import Bench
from feinsum.tune.messages import Answer, Request
from feinsum.tune.outcome import OK, TrialOutcome

__all__ = ["main", "serve", "try_specs"]

logger = logging.getLogger(__name__)


def main() -> None:
    """Keep the answers apart from what libraries print to standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(_lines_while_wanted(sys.stdin), answers)


def _lines_while_wanted(stream: TextIO) -> Iterator[str]:
    """Lines as they come; the process ends at once when the tuner is gone.

    A trial that hangs does not outlive its tuner, however that one ended, and
    neither does what it started.
    """
    lines: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        if os.getpgrp() == os.getpid():  # nobody else is in this group
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(0)

    Thread(target=read, daemon=True).start()
    while True:
        yield lines.get()


def serve(requests: Iterable[str], answers: TextIO) -> None:
    """Answer every request until the input ends."""
    bench: Bench | None = None
    for line in requests:
        request = from_json(Request, line)
        if request.problem is not None:
            bench, answer = _set_up(request)
        elif bench is None:
            answer = Answer(error_code="feinsum-error", error="no problem was given")
        else:
            answer = Answer(try_specs(bench, request))
        print(to_json(answer), file=answers, flush=True)


def _set_up(request: Request) -> tuple[Bench | None, Answer]:
    assert request.problem is not None
    try:
        bench = Bench(request.problem)
        bench.baseline_s  # noqa: B018  (measured before the first trial)
    except FeinsumError as error:
        return None, Answer(error_code=error.code, error=str(error))
    return bench, Answer(environment=bench.environment)


def try_specs(bench: Bench, request: Request) -> tuple[TrialOutcome, ...]:
    """The outcome of each recipe."""
    if not request.is_comparison:
        return tuple(chain.from_iterable(_trial(bench, s) for s in request.specs))
    return _measured(request.specs, lambda: bench.compare(request.specs))


def _measured(
    specs: Sequence[TransformSpec], measure: Callable[[], Sequence[Measurement]]
) -> tuple[TrialOutcome, ...]:
    try:
        measured = measure()
    except FeinsumError as error:
        return _failed(specs, error)
    except Exception as error:  # whatever else a candidate does wrong
        logger.exception("a trial of %s failed", ", ".join(map(str, specs)))
        return _failed(specs, MeasurementError(f"{type(error).__name__}: {error}"))
    return tuple(
        TrialOutcome(spec, OK, measurement=measurement)
        for spec, measurement in zip(specs, measured, strict=True)
    )


def _trial(bench: Bench, spec: TransformSpec) -> tuple[TrialOutcome, ...]:
    return _measured([spec], lambda: [bench.trial(spec)])


def _failed(
    specs: Sequence[TransformSpec], error: FeinsumError
) -> tuple[TrialOutcome, ...]:
    return tuple(TrialOutcome(spec, error.code, str(error)) for spec in specs)


if __name__ == "__main__":
    main()
