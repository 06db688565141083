"""Compiling candidates in this process, so that the one that runs them starts at once.

That process would first have to load Loopy, which takes longer than the rest of its
work. So code for our own recipes is generated here, where Loopy is loaded, and compiled
in the background. None of it runs here.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from constantdict import constantdict

from feinsum.errors import (
    DeviceUnavailableError,
    FeinsumError,
    TransformError,
    TrialTimeoutError,
)
from feinsum.ir import BatchedEinsum, from_text, to_text
from feinsum.measure.cases import Case, bare_case, pairwise_baseline
from feinsum.measure.judging import kernels_to_try, timed_einsum, timed_sizes
from feinsum.measure.kernel import generate_for_host
from feinsum.measure.question import (
    Comparison,
    Program,
    Question,
    Sizes,
    Trial,
    Verdict,
)
from feinsum.records import Device
from feinsum.retrieval.installation import is_ours
from feinsum.retrieval.verifiers import request_verdict, start_early
from feinsum.targets.host import HOST, HostDevice
from feinsum.targets.host.kernel import HostCode, pool
from feinsum.targets.layout import array_layout, entry_kernel
from feinsum.targets.quiet import quiet
from feinsum.targets.units import LibraryUnit
from feinsum.transforms import check_spec, suits_device

__all__ = ["Prepared", "all_prepared", "prepared"]

logger = logging.getLogger(__name__)

Arguments = tuple[tuple[str, str], ...]


class _Compiled(NamedTuple):
    """A kernel that is being compiled."""

    arguments: Arguments
    content: Future[bytes]


class _Tried(NamedTuple):
    """A kernel with the recipe, and where it is compared."""

    einsum: str
    outputs: tuple[str, ...]
    compiled: _Compiled
    cases: tuple[Sizes, ...]


@dataclass(frozen=True)
class Prepared:
    """A question whose kernels are generated and being compiled."""

    question: Question
    tried: Sequence[_Tried]
    baseline: _Compiled
    timed: Sizes

    def wait(self) -> None:
        """Wait until nothing is being compiled."""
        wait(
            [one.content for one in (self.baseline, *(t.compiled for t in self.tried))]
        )

    def ask(self, *, limit_s: float, timing_lock: str) -> Verdict:
        """The answer of the process that runs the kernels, or why there are none."""
        end_s = monotonic() + limit_s
        with tempfile.TemporaryDirectory(prefix="feinsum-trial-") as folder:

            def written(name: str, content: bytes) -> str:
                path = Path(folder, name)
                path.write_bytes(content)
                return str(path)

            def program(name: str, compiled: _Compiled) -> Program:
                content = compiled.content.result(max(0.0, end_s - monotonic()))
                return Program(written(name, content), compiled.arguments)

            try:
                trial = self._trial(written("pool.so", pool().content), program)
            except TimeoutError:
                why = f"it was not compiled within {limit_s:g} s"
                return Verdict(TrialTimeoutError.code, why)
            except FeinsumError as error:
                return Verdict(error.code, str(error))
            left_s = max(0.0, end_s - monotonic())
            asking = replace(self.question, limit_s=left_s, timing_lock=timing_lock)
            return request_verdict(replace(asking, trial=trial))

    def _trial(
        self, threads: str, program: Callable[[str, _Compiled], Program]
    ) -> Trial:
        compared = tuple(
            Comparison(
                one.einsum, one.outputs, program(f"{k}.so", one.compiled), one.cases
            )
            for k, one in enumerate(self.tried)
        )
        baseline = program("baseline.so", self.baseline)
        return Trial(threads, compared, baseline, self.timed)


def prepared(question: Question) -> Prepared | Verdict | None:
    """The question with its kernels, or why they cannot be generated.

    Returns:
        None if the answering process has to generate the code: user-defined transforms
        may do anything, devices with drivers share nothing, and library calls have no
        code.
    """
    return next(all_prepared([question]))


def all_prepared(
    questions: Iterable[Question],
) -> Iterator[Prepared | Verdict | None]:
    """The same for several questions, which share the threads that compile."""
    compiling = ThreadPoolExecutor(2, "feinsum-compiler")
    try:
        for question in questions:
            yield _prepared_or_why(question, compiling)
    finally:
        compiling.shutdown(wait=False)


def _prepared_or_why(
    question: Question, compiling: ThreadPoolExecutor
) -> Prepared | Verdict | None:
    einsum, host = from_text(question.frame), _host(question.device)
    if host is None or einsum.sparse_position is not None or not is_ours(question.spec):
        return None
    start_early()
    try:
        with quiet(Warning):
            return _prepared(question, einsum, HOST.open(host), compiling)
    except FeinsumError as error:
        return Verdict(error.code, str(error))
    except Exception:
        logger.info("generated by the process that answers", exc_info=True)
        return None


def _host(device_id: str) -> Device | None:
    """The host, if it is the device that is meant and has a compiler."""
    try:
        return next((d for d in HOST.devices() if d.id == device_id), None)
    except DeviceUnavailableError:
        return None


def _prepared(
    question: Question,
    einsum: BatchedEinsum,
    opened: HostDevice,
    compiling: ThreadPoolExecutor,
) -> Prepared | None:
    spec = question.spec
    check_spec(spec, einsum)
    if not suits_device(spec, opened.device.kind):
        raise TransformError(f"{spec} is not for devices like {opened.device}")

    def compiled(code: HostCode) -> _Compiled:
        arguments = tuple(
            (name, "" if dtype is None else dtype.str) for name, dtype in code.arguments
        )
        return _Compiled(arguments, compiling.submit(code.compiled))

    timed = timed_einsum(einsum)
    sizes = timed_sizes(einsum, timed, question.sizes)
    plain = _untransformed(timed, constantdict(sizes), opened)
    if plain is None:
        return None
    baseline = compiled(plain)
    tolerance = bare_case(timed, sizes).tolerance
    tried = []
    for unit, cases in kernels_to_try(spec, einsum, bare_case):
        if isinstance(unit, LibraryUnit) or not _is_plain(unit, cases[-1]):
            return None
        tried.append(
            _Tried(
                to_text(cases[0].einsum),
                tuple(cases[0].nest.outputs),
                compiled(generate_for_host(unit, opened)),
                tuple(Sizes(one.sizes, one.tolerance) for one in cases),
            )
        )
    return Prepared(question, tried, baseline, Sizes(sizes, 2 * tolerance))


@lru_cache(maxsize=4)
def _untransformed(
    einsum: BatchedEinsum, sizes: Mapping[str, int], opened: HostDevice
) -> HostCode | None:
    """The code of the untransformed kernel, once for all recipes of an einsum."""
    case = bare_case(einsum, sizes)
    unit = pairwise_baseline(case) or case.t_unit
    return generate_for_host(unit, opened) if _is_plain(unit, case) else None


def _is_plain(unit: Any, case: Case) -> bool:
    """Whether the arguments are the sizes, operands and results, in C order."""
    kernel, sizes = entry_kernel(unit), case.sizes
    operands = {op.name for op in case.einsum.operands}
    if {arg.name for arg in kernel.args} != {*sizes, *operands, *case.nest.outputs}:
        return False
    layouts = (array_layout(a, sizes) for a in kernel.args if a.name not in sizes)
    return all(layout.is_in_c_order for layout in layouts)
