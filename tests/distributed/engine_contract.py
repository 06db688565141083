"""The laws of an engine, for each of them in its own surroundings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from feinsum.distributed import Plan, Prepared, plan, with_cyclic
from feinsum.errors import FeinsumError
from tests.distributed import test_planned, test_sparse, test_sparse_statements
from tests.distributed.cases import KERNELS, by_numpy, operands_of
from tests.distributed.test_sparse import as_dense

Prepare = Callable[[Plan], Prepared]


def check_engine(prepare: Prepare, prepare_program, n: int, *, is_root=True) -> None:
    """Assert the laws of an engine with n processes.

    Args:
        prepare: prepares a plan, with numpy's leaf.
        prepare_program: prepares a plan of a program.
        is_root: whether this process has the arrays and gets the results.
    """
    for name in ("paper", "total", "chain of one"):
        made = plan(KERNELS[name], processes=n)
        check_results(prepare(made), made, is_root)
        check_results(prepare(with_cyclic(made, made.extents)), made, is_root)
    check_programs(prepare_program, n, is_root)
    check_sparse(prepare, n, is_root)
    check_streams(prepare, n, is_root)
    check_refusals(prepare, n, is_root)


def check_results(ready: Prepared, made: Plan, is_root: bool) -> None:
    """Results are numpy's, what is received is what was predicted, leaves are told."""
    told: list[tuple[int, int]] = []
    operands = operands_of(made.batched_einsum)
    outcome = ready.run(operands if is_root else None, lambda *n: told.append(n))
    assert outcome.report.counted == outcome.report.predicted == ready.plan.counts.moved
    if is_root:
        expected = by_numpy(made.batched_einsum, operands)
        assert (outcome.results[made.outputs[0]] == expected).all()
        assert told[-1][0] == told[-1][1]
    else:
        assert not outcome.results


def check_programs(prepare_program, n: int, is_root: bool) -> None:
    """Any bodies and reductions: attention with a mask."""
    made, arrays, expected = test_planned.on_processes(n)
    outcome = prepare_program(made).run(arrays if is_root else None)
    assert outcome.report.counted == made.counts.moved
    for name, value in expected.items() if is_root else ():
        assert np.allclose(outcome.results[name], value, rtol=1e-12, atol=1e-12)


def check_sparse(prepare: Prepare, n: int, is_root: bool) -> None:
    """Entries stay, factors and sums move as predicted, results are numpy's."""
    for name, made, arrays in (
        *test_sparse.on_processes(n), *test_sparse_statements.on_processes(n),
    ):  # fmt: skip
        outcome = prepare(made).run(arrays if is_root else None)
        assert outcome.report.counted == made.counts.moved, name
        dense = {operand: as_dense(array) for operand, array in arrays.items()}
        for output, expected in by_numpy(made.problem, dense).items():
            if is_root:
                assert np.allclose(as_dense(outcome.results[output]), expected), name


def check_streams(prepare: Prepare, n: int, is_root: bool) -> None:
    """Each input gives its own result, although its array is used again."""
    einsum = KERNELS["1mm"]
    arrays = operands_of(einsum)

    def inputs():
        for k in range(3):
            arrays["A"][...] = k
            yield arrays if is_root else None

    outcomes = prepare(plan(einsum, processes=n)).stream(inputs())
    for k, outcome in enumerate(outcomes):
        if is_root:
            whole = np.full_like(arrays["A"], k) @ arrays["B"]
            assert (outcome.results["out"] == whole).all()
    assert k == 2


def check_refusals(prepare: Prepare, n: int, is_root: bool) -> None:
    """Missing and wrong arrays are an error of all, and the engine stays usable."""
    made = plan(KERNELS["1mm"], processes=n)
    ready = prepare(made)
    for wrong, words in (({}, "operands"), ({"A": np.ones(3)}, "has shape")):
        arrays = operands_of(KERNELS["1mm"]) | wrong if wrong else {}
        with pytest.raises(FeinsumError, match=words):
            ready.run(arrays if is_root else None)
    check_results(ready, made, is_root)
