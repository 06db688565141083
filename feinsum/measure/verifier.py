"""The process in which recipes are verified and timed, isolated from the caller.

It reads a :class:`Question` per line from standard input, and writes a :class:`Verdict`
per line to standard output. A fork answers each question, so imports are loaded once,
and any damage by a recipe is gone after the answer. Loopy is loaded only for questions
about kernels that are not generated yet. The process ends with its input, or when idle
for a while.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic

from feinsum.errors import (
    FeinsumError,
    InvalidRecordError,
    TrialCrashError,
    TrialTimeoutError,
)
from feinsum.measure.question import Question, Verdict
from feinsum.measure.trial import compare_kernels
from feinsum.processes import Ended, limit_memory
from feinsum.records import from_json, to_json

IDLE_S = 60.0
"""After so long without a question the process ends."""

_PART = 65536


def main() -> None:
    """Keep the answers apart from what libraries print to standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if sys.argv[1:]:
        # transforms of the user need Loopy
        from feinsum.transforms import import_transforms

        import_transforms(sys.argv[1:])
    for line in _lines():
        question = from_json(Question, line)
        if question.kernels is None:
            from feinsum.measure.judging import prepare  # needs the code generator

            prepare(question)
        print(to_json(_answer(question)), file=answers, flush=True)


def _answer(question: Question) -> Verdict:
    """The answer of a fork of this process, or how it ended without one."""
    with tempfile.TemporaryFile() as log:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _answer_and_exit(question, writer, log.fileno())
        os.close(writer)
        _lead_group(child)
        try:
            said = _said(reader, question.limit_s)
        finally:
            os.close(reader)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # with all that it started
            _, status = os.waitpid(child, 0)
        if said is None:
            why = f"no answer within {question.limit_s:g} s; it was stopped"
            return Verdict(TrialTimeoutError.code, why)
        try:
            return from_json(Verdict, said)
        except InvalidRecordError:
            log.seek(0)
            logged = log.read()[-_PART:].decode(errors="replace")
            ended = Ended(os.waitstatus_to_exitcode(status), logged=logged)
            return Verdict(TrialCrashError.code, f"its process ended with {ended}")


def _answer_and_exit(question: Question, writer: int, log: int) -> None:
    """The part of the fork, which never returns."""
    code = 1
    try:
        _lead_group(0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.write(writer, to_json(_verdict(question)).encode())
        code = 0
    except BaseException:  # noqa: BLE001  (its end is what is told)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # without the exit handlers of the process that forked
        os._exit(code)


def _lead_group(process: int) -> None:
    """Make a fork lead a group that ends as a whole; both call this, in any order."""
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(process, 0)


def _verdict(question: Question) -> Verdict:
    try:
        if question.kernels is not None:
            limit_memory(question.memory_bytes)
            return compare_kernels(question.kernels, question.timing_lock)
        from feinsum.measure.judging import judge_recipe
        from feinsum.targets.devices import open_device

        opened = open_device(question.device)
        if opened.device.kind == "cpu":
            limit_memory(question.memory_bytes)
        return judge_recipe(question, opened)
    except FeinsumError as error:
        return Verdict(error.code, str(error)[:_PART])


def _said(reader: int, limit_s: float) -> str | None:
    """All that comes from a fork; None if that takes too long.

    The process ends with its fork if nobody is there any more who asked.
    """
    end_s, said = monotonic() + limit_s, b""
    sources = [reader, 0]
    while (left_s := end_s - monotonic()) > 0:
        ready, _, _ = select.select(sources, (), (), left_s)
        if reader in ready:
            part = os.read(reader, _PART)
            if not part:
                return said.decode(errors="replace")
            said += part
        elif ready:
            raise SystemExit("the process that asked has ended")
    return None


def _lines() -> Iterator[str]:
    """Lines of standard input, read past the buffer that select does not see."""
    rest = b""
    while select.select([0], (), (), IDLE_S)[0]:
        part = os.read(0, _PART)
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        yield from (line.decode() for line in lines)


if __name__ == "__main__":
    main()
