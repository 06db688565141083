"""The process in which recipes are verified and timed: whatever happens, happens here.

It reads a :class:`Question` per line from standard input, and writes a
:class:`Verdict` per line to standard output. Every question is answered by a fork of
it, so that Loopy is loaded once, and what a recipe breaks is gone after the answer. It
ends with its input, or when nobody asks for a while.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from constantdict import constantdict

from feinsum.errors import (
    FeinsumError,
    InvalidRecordError,
    TransformError,
    TrialCrashError,
    TrialTimeoutError,
    WrongResultError,
)
from feinsum.ir import BatchedEinsum, from_text
from feinsum.measure import (
    CompiledKernel,
    OpenDevice,
    compile_kernel,
    einsum_operations,
    footprint_bytes,
    open_device,
    verify,
)
from feinsum.measure.cases import Case, make_case, ragged_cases, ragged_unit
from feinsum.measure.sparse_cases import (
    SparseCase,
    make_sparse_case,
    ragged_sparse_cases,
)
from feinsum.measure.speedup import Race, built_baseline, in_turns, quick_sizes
from feinsum.processes import Ended, limit_memory
from feinsum.records import OK, TransformSpec, from_json, to_json, utc_now
from feinsum.records.document import STRICT
from feinsum.targets.host import HOST
from feinsum.transforms import apply_spec, check_spec, suits_device, take_over

__all__ = ["Question", "Verdict", "judge_recipe"]

LITERAL_BYTES = 16_000_000
LITERAL_OPERATIONS = 200_000_000
"""An einsum of literal extents is tried at these as well, if it is no larger."""
IDLE_S = 60.0
"""After so long without a question the process ends."""

_PART = 65536


@dataclass(frozen=True)
class Question:
    """Does a recipe compute on a device what its einsum says, and does it pay there?

    Attributes:
        frame: the text of the workload whose names the recipe speaks of.
        device: the id of the device.
        memory_bytes: how much the process may allocate, if the device is the CPU.
        sizes: of the size parameters of the workload, at which the recipe is timed.
        limit_s: after which it is stopped.
        timing_lock: a file that is locked while times are taken, by all processes that
            answer at the same time; there is none if this one is alone.
    """

    __pydantic_config__ = STRICT

    frame: str
    spec: TransformSpec
    device: str
    memory_bytes: int
    sizes: Mapping[str, int] = field(default_factory=constantdict)
    limit_s: float = 60.0
    timing_lock: str = ""


@dataclass(frozen=True)
class Verdict:
    """What was found out about a recipe.

    Attributes:
        code: ``ok``, or the code of an error of :mod:`feinsum.errors`.
        message: what went wrong, in words.
        found_at: UTC, ISO 8601.
        least_s, baseline_s: the time of the recipe and that of the untransformed
            kernel, in turns; zero if it was not timed.
        sizes: at which it was timed.
    """

    __pydantic_config__ = STRICT

    code: str
    message: str = ""
    found_at: str = field(default_factory=utc_now)
    least_s: float = 0.0
    baseline_s: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=constantdict)

    @property
    def is_ok(self) -> bool:
        """Whether it is right; it may yet be slow."""
        return self.code == OK

    @property
    def speedup(self) -> float:
        """Over the untransformed kernel; zero if it was not timed."""
        return self.baseline_s / self.least_s if self.least_s > 0 else 0.0


def main() -> None:
    """Keep the answers apart from what libraries print to standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    take_over(sys.argv[1:])
    for line in _lines():
        question = from_json(Question, line)
        _prepare(question)
        print(to_json(_answer(question)), file=answers, flush=True)


def _prepare(question: Question) -> None:
    """Build what the forks share: the untransformed kernel of all recipes of an einsum.

    Drivers of devices do not survive a fork; the host has none.
    """
    if question.device not in {device.id for device in HOST.devices()}:
        return
    einsum = from_text(question.frame)
    if einsum.sparse_position is not None:
        return
    timed = _timed_einsum(einsum)
    sizes = _timed_sizes(einsum, timed, question.sizes)
    lock = _locked(question.timing_lock, fcntl.LOCK_SH)
    with lock, suppress(FeinsumError):  # the fork says what is wrong
        built_baseline(timed, constantdict(sizes), open_device(question.device))


def judge_recipe(question: Question, opened: OpenDevice) -> Verdict:
    """Compare a recipe with numpy, and time it against the untransformed kernel.

    It is compared at extents that no tile divides, and at 1, and at those at which it
    is timed.

    Raises:
        TransformError, BuildError, MeasurementError, WrongResultError: what went wrong.
    """
    einsum, spec = from_text(question.frame), question.spec
    check_spec(spec, einsum)
    if not suits_device(spec, opened.device.kind):
        raise TransformError(f"{spec} is not for devices like {opened.device}")
    if einsum.sparse_position is not None:
        return _judge_sparse(question, einsum, opened)
    last: tuple[CompiledKernel, Case] | None = None
    with _locked(question.timing_lock, fcntl.LOCK_SH):
        for unit, cases in _units(spec, einsum):
            compiled = compile_kernel(unit, opened)
            for case in cases:
                _verify(compiled, case)
            last = compiled, cases[-1]
        assert last is not None
        sizes = _timed_sizes(einsum, last[1].einsum, question.sizes)
        race = Race.of(*last, sizes, opened)
    with _locked(question.timing_lock, fcntl.LOCK_EX):
        mine_s, others_s = race.run()
    return Verdict(OK, least_s=mine_s, baseline_s=others_s, sizes=sizes)


@contextmanager
def _locked(path: str, kind: int) -> Iterator[None]:
    """Those who compute share a lock; who takes times has it alone."""
    if not path:
        yield
        return
    with Path(path).open("ab") as file:  # closing it releases the lock
        fcntl.flock(file, kind)
        yield


def _judge_sparse(
    question: Question, einsum: BatchedEinsum, opened: OpenDevice
) -> Verdict:
    """A recipe for a sparse operand, on ragged trees, and on one that is timed."""
    spec, timed = question.spec, quick_sizes(einsum, question.sizes)
    with _locked(question.timing_lock, fcntl.LOCK_SH):
        for case in ragged_sparse_cases(einsum):
            _verify_tree(case, spec, opened)
        case = make_sparse_case(einsum, timed)
        plain = case.untransformed(opened)
        kernel = case.kernel(spec, opened).sharing(plain)
    with _locked(question.timing_lock, fcntl.LOCK_EX):
        plain.poison()
        baseline_s = plain.run()
        verify(kernel, plain.read(), tolerance=2 * case.tolerance)
        mine_s, others_s = in_turns(kernel, plain, baseline_s)
    return Verdict(OK, least_s=mine_s, baseline_s=others_s, sizes=timed)


def _verify_tree(case: SparseCase, spec: TransformSpec, opened: OpenDevice) -> None:
    try:
        verify(case.kernel(spec, opened), case.expected, tolerance=case.tolerance)
    except WrongResultError as error:
        where = f"for a tree of the sizes {dict(case.sizes)}"
        raise WrongResultError(f"{where}: {error}") from None


def _verify(compiled: CompiledKernel, case: Case) -> None:
    try:
        kernel = compiled.bind(case.arguments)
        verify(kernel, case.expected, tolerance=case.tolerance)
    except WrongResultError as error:
        where = f"at the sizes {dict(case.sizes)}"
        raise WrongResultError(f"{where}: {error}") from None


def _timed_sizes(
    einsum: BatchedEinsum, timed: BatchedEinsum, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Sizes of the einsum that is timed, which may be one with run-time extents."""
    if einsum.size_params:
        return quick_sizes(timed, sizes)
    literal = {
        x.name: extent
        for x, extent in (
            (timed.extents[i], einsum.extents[i]) for i in timed.free_indices
        )
        if not isinstance(x, int) and isinstance(extent, int)
    }
    return quick_sizes(timed, literal)


def _timed_einsum(einsum: BatchedEinsum) -> BatchedEinsum:
    """The einsum that is timed: that of the last of :func:`_units`."""
    variant, sizes = ragged_cases(einsum)
    return einsum if not sizes or _is_tried_as_it_is(einsum) else variant


def _units(
    spec: TransformSpec, einsum: BatchedEinsum
) -> Iterator[tuple[Any, list[Case]]]:
    """The kernels to run, and the cases of each; the last one is to be timed."""
    variant, sizes = ragged_cases(einsum)
    ragged = [make_case(variant, s) for s in sizes]
    if ragged:
        yield ragged_unit(spec, ragged[0]), ragged
    if not ragged or _is_tried_as_it_is(einsum):
        case = make_case(einsum, {})
        yield apply_spec(spec, case.t_unit, case.nest), [case]


def _is_tried_as_it_is(einsum: BatchedEinsum) -> bool:
    """Whether all extents are known, and small."""
    if einsum.size_params:
        return False
    n_operations = sum(einsum_operations(einsum, {}).values())
    is_short = n_operations <= LITERAL_OPERATIONS
    return is_short and footprint_bytes(einsum, {}) <= LITERAL_BYTES


def _answer(question: Question) -> Verdict:
    """What a fork of this process says; how it ended, if it says nothing."""
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
        os._exit(code)


def _lead_group(process: int) -> None:
    """What a fork starts is ended with it; said by both, for either may be first."""
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(process, 0)


def _verdict(question: Question) -> Verdict:
    try:
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
            raise SystemExit("nobody waits for the answer any more")
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
