"""The work of a cluster worker: one task at a time, from text to text.

It keeps the child process of the latest problem, and no state that matters.
"""

from __future__ import annotations

import json
import threading

from feinsum.errors import FeinsumError
from feinsum.records import from_json, to_json
from feinsum.tuning.isolation import IsolatedBench
from feinsum.tuning.messages import Answer, Request, Task
from feinsum.tuning.problem import Problem

__all__ = ["abandon", "answer", "release"]

_BUSY = threading.Lock()
_BENCHES: dict[Problem, IsolatedBench] = {}
"""At most one: the bench of the latest problem."""
_RUNNING: dict[str, IsolatedBench] = {}
"""At most one: the bench that does a task, by the text of the task."""


def answer(text: str) -> str:
    """Do a :class:`Task`; the :class:`Answer` has the environment in any case.

    Trials run in a child process, as they do without a cluster, and take turns with
    those of other workers of the same device.
    """
    task = from_json(Task, text)
    with _BUSY:
        _RUNNING[text] = _bench_of(task)
        try:
            return to_json(_answer(_RUNNING[text], task.request))
        finally:
            del _RUNNING[text]


def abandon(texts: str) -> None:
    """End the running task and its child process if it is in a list.

    It is called concurrently with the task, whose answer is then ignored.
    """
    for text in json.loads(texts):
        bench = _RUNNING.get(text)
        if bench is not None:
            bench.is_abandoned = True


def release(text: str) -> None:
    """End the child process of a problem, if it is still the latest."""
    with _BUSY:
        bench = _BENCHES.pop(from_json(Problem, text), None)
        if bench is not None:
            bench.close()


def _answer(bench: IsolatedBench, request: Request) -> Answer:
    try:
        environment = bench.start()
        if request.is_comparison:
            return Answer(bench.compare(request.specs), environment)
        outcomes = (bench.trial(spec, request.reference) for spec in request.specs)
        return Answer(tuple(outcomes), environment)
    except FeinsumError as error:  # the problem cannot be set up here
        return Answer(error_code=error.code, error=str(error))


def _bench_of(task: Task) -> IsolatedBench:
    known = _BENCHES.get(task.problem)
    if known is None or known.is_abandoned:
        while _BENCHES:
            _BENCHES.popitem()[1].close()
        _BENCHES[task.problem] = IsolatedBench(task.problem, is_shared=True)
    bench = _BENCHES[task.problem]
    bench.time_limit_s = task.time_limit_s
    return bench
