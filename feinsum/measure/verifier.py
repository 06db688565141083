"""The process in which one recipe is verified: whatever happens, it happens here.

Reads a :class:`Question` from standard input, writes a :class:`Verdict` to standard
output, and ends.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from feinsum.errors import FeinsumError, TransformError, WrongResultError
from feinsum.ir import BatchedEinsum, from_text
from feinsum.measure import (
    OpenDevice,
    compile_kernel,
    einsum_operations,
    footprint_bytes,
    open_device,
    verify,
)
from feinsum.measure.cases import Case, make_case, ragged_cases, ragged_unit
from feinsum.records import OK, TransformSpec, from_json, to_json, utc_now
from feinsum.records.document import STRICT
from feinsum.transforms import apply_spec, check_spec, suits_device

__all__ = ["Question", "Verdict", "verify_recipe"]

LITERAL_BYTES = 16_000_000
LITERAL_OPERATIONS = 1_000_000_000
"""An einsum of literal extents is verified at these as well, if it is no larger."""


@dataclass(frozen=True)
class Question:
    """Does a recipe compute on a device what its einsum says?

    Attributes:
        frame: the text of the workload whose names the recipe speaks of.
        device: the id of the device.
        memory_bytes: how much the process may allocate, if the device is the CPU.
    """

    __pydantic_config__ = STRICT

    frame: str
    spec: TransformSpec
    device: str
    memory_bytes: int


@dataclass(frozen=True)
class Verdict:
    """What a verification found.

    Attributes:
        code: ``ok``, or the code of an error of :mod:`feinsum.errors`.
        message: what went wrong, in words.
        found_at: UTC, ISO 8601.
    """

    __pydantic_config__ = STRICT

    code: str
    message: str = ""
    found_at: str = field(default_factory=utc_now)

    @property
    def is_ok(self) -> bool:
        return self.code == OK


def main() -> None:
    """Keep the answer apart from what libraries print to standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        question = from_json(Question, sys.stdin.read())
        opened = open_device(question.device)
        if opened.device.kind == "cpu":
            _limit_memory(question.memory_bytes)
        verify_recipe(question, opened)
        verdict = Verdict(OK)
    except FeinsumError as error:
        verdict = Verdict(error.code, str(error))
    print(to_json(verdict), file=answers, flush=True)


def verify_recipe(question: Question, opened: OpenDevice) -> None:
    """Compare a recipe with numpy at extents that no tile divides, and at 1.

    Raises:
        TransformError, BuildError, WrongResultError: what went wrong.
    """
    einsum, spec = from_text(question.frame), question.spec
    check_spec(spec, einsum)
    if not suits_device(spec, opened.device.kind):
        raise TransformError(f"{spec} is not for devices like {opened.device}")
    for unit, cases in _units(spec, einsum):
        compiled = compile_kernel(unit, opened)
        for case in cases:
            try:
                kernel = compiled.bind(case.arguments)
                verify(kernel, case.expected, tolerance=case.tolerance)
            except WrongResultError as error:
                where = f"at the sizes {dict(case.sizes)}"
                raise WrongResultError(f"{where}: {error}") from None


def _units(
    spec: TransformSpec, einsum: BatchedEinsum
) -> Iterator[tuple[object, list[Case]]]:
    """The kernels to run, and the cases of each."""
    variant, sizes = ragged_cases(einsum)
    ragged = [make_case(variant, s) for s in sizes]
    if ragged:
        yield ragged_unit(spec, ragged[0]), ragged
    if not ragged or (not einsum.size_params and _is_small(einsum)):
        case = make_case(einsum, {})
        yield apply_spec(spec, case.t_unit, case.nest), [case]


def _is_small(einsum: BatchedEinsum) -> bool:
    n_operations = sum(einsum_operations(einsum, {}).values())
    is_short = n_operations <= LITERAL_OPERATIONS
    return is_short and footprint_bytes(einsum, {}) <= LITERAL_BYTES


def _limit_memory(n_bytes: int) -> None:
    """Address space of a GPU's driver is no memory, so this is for CPUs only."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = n_bytes if hard == resource.RLIM_INFINITY else min(n_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


if __name__ == "__main__":
    main()
