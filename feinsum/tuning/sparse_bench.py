"""Trials of recipes for a sparse operand: a kernel is generated for each of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from feinsum.errors import TransformError, WrongResultError
from feinsum.measure import check_outputs
from feinsum.measure.sparse_cases import (
    SparseCase,
    SparseKernel,
    make_sparse_case,
    ragged_sparse_cases,
)
from feinsum.records import Measurement, TransformSpec
from feinsum.transforms import suits_device
from feinsum.tuning.bench import Bench
from feinsum.tuning.device_lock import Turn
from feinsum.tuning.problem import Problem

__all__ = ["SparseBench", "bench_of"]


def bench_of(problem: Problem, turn: Turn) -> Bench:
    """The bench for the operands of a problem."""
    is_sparse = problem.einsum.sparse_position is not None
    return SparseBench(problem, turn) if is_sparse else Bench(problem, turn)


class SparseBench(Bench):
    """A bench with a random tree of the problem's profile.

    The untransformed kernel multiplies all operands in one loop over all indices.
    """

    case: SparseCase  # type: ignore[assignment]
    ragged: list[SparseCase]  # type: ignore[assignment]

    def _make_cases(self) -> None:
        self.case = make_sparse_case(self.problem.einsum, self.problem.sizes)
        self.ragged = ragged_sparse_cases(self.problem.einsum)

    @property
    def _pairwise(self) -> Any:
        return None

    @cached_property
    def _first_run(self) -> tuple[Any, float]:
        kernel = self.case.untransformed(self.opened)
        kernel.poison()
        with self.turn():
            first_s = kernel.run()
        check_outputs(kernel, self.case.expected, tolerance=self.case.tolerance)
        return kernel, first_s

    def verified_kernel(self, spec: TransformSpec) -> Any:
        """The kernel of a recipe, verified for the tuned profile.

        Raises:
            TransformError, BuildError, WrongResultError: what went wrong.
        """
        if spec in self._kernels:
            return self._kernels[spec]
        if not suits_device(spec, self.opened.device.kind):
            raise TransformError(f"{spec} is not for devices like {self.opened.device}")
        kernel = self.case.kernel(spec, self.opened)
        self._errors[spec] = self._checked(kernel, self.case)
        self._kernels[spec] = kernel.sharing(self.baseline)  # type: ignore[assignment, arg-type]
        return self._kernels[spec]

    def confirmed(self, spec: TransformSpec, measurement: Measurement) -> Measurement:
        """The measurement of a recipe that is also correct for ragged trees.

        Raises:
            TransformError, BuildError, WrongResultError: what went wrong.
        """
        errors = []
        for case in self.ragged:
            try:
                kernel = case.kernel(spec, self.opened)
                errors.append(self._checked(kernel, case))
            except WrongResultError as error:
                where = f"for a tree of the sizes {dict(case.sizes)}"
                raise WrongResultError(f"{where}: {error}") from None
        known = measurement.verification
        checked = replace(
            known,
            reference="feinsum.measure.sparse_cases",
            largest_error=max(known.largest_error, *errors),
            sizes=(*known.sizes, *(case.sizes for case in self.ragged)),
        )
        return replace(measurement, verification=checked)

    def _checked(self, kernel: SparseKernel, case: SparseCase) -> float:
        kernel.poison()
        with self.turn():
            kernel.run()
        return check_outputs(kernel, case.expected, tolerance=case.tolerance)
