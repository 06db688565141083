"""The process in which trials run: it may crash or hang, and nothing is lost.

Reads a :class:`Request` per line from standard input and writes an
:class:`Answer` per line to standard output.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from feinsum.errors import FeinsumError
from feinsum.records import TransformSpec, from_json, to_json
from feinsum.tune.bench import Bench
from feinsum.tune.messages import Answer, Request
from feinsum.tune.outcome import OK, TrialOutcome

__all__ = ["main", "serve", "try_specs"]


def main() -> None:
    """Keep the answers apart from what libraries print to standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


def serve(requests: TextIO, answers: TextIO) -> None:
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
        return tuple(_trial(bench, spec) for spec in request.specs)
    try:
        measured = bench.compare(request.specs)
    except FeinsumError as error:
        return tuple(_failed(spec, error) for spec in request.specs)
    return tuple(
        TrialOutcome(spec, OK, measurement=m)
        for spec, m in zip(request.specs, measured, strict=True)
    )


def _trial(bench: Bench, spec: TransformSpec) -> TrialOutcome:
    try:
        return TrialOutcome(spec, OK, measurement=bench.trial(spec))
    except FeinsumError as error:
        return _failed(spec, error)


def _failed(spec: TransformSpec, error: FeinsumError) -> TrialOutcome:
    return TrialOutcome(spec, error.code, str(error))


if __name__ == "__main__":
    main()
