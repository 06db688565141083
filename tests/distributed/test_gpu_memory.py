"""Plans with blocks on GPUs: nothing is converted, and results are numpy's.

The arrays are those of a GPU that does not exist (see :mod:`.gpu_arrays`); on real
ranks, :mod:`.test_mpi` runs them.
"""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.distributed import plan, plan_program, plan_statements
from feinsum.distributed.local import run_here
from feinsum.distributed.storage import is_on_gpu
from feinsum.errors import PlanError, ProgramError
from tests.distributed import gpu_arrays, test_sparse
from tests.distributed.cases import KERNELS, PROGRAMS, by_numpy, operands_of
from tests.distributed.gpu_arrays import GpuArray, to_gpu
from tests.distributed.test_facts import softmax


def to_gpus(operands):
    return {name: to_gpu(array) for name, array in operands.items()}


@pytest.mark.parametrize("name", ["1mm", "mttkrp-3-0", "ttm", "innerprod"])
def test_buffers_are_where_the_operands_are(name):
    made, operands = plan(KERNELS[name], processes=6), operands_of(KERNELS[name])
    GpuArray.copies = 0
    result = run_here(made, to_gpus(operands))
    assert is_on_gpu(result)
    assert GpuArray.copies == 0
    expected = by_numpy(KERNELS[name], operands)
    assert np.allclose(result.get(), expected, rtol=1e-12)


def test_the_engine_returns_results_on_the_gpu():
    made, operands = plan(KERNELS["1mm"], processes=4), operands_of(KERNELS["1mm"])
    outcome = made.prepare().run(to_gpus(operands))
    expected = by_numpy(KERNELS["1mm"], operands)
    assert np.allclose(outcome.results["out"].get(), expected)


def test_the_memory_that_must_suffice_is_the_gpu_s(monkeypatch):
    full = replace_free_bytes(100)
    monkeypatch.setattr(GpuArray, "device", full)
    made, operands = plan(KERNELS["1mm"], processes=4), operands_of(KERNELS["1mm"])
    with pytest.raises(PlanError, match="100 are free") as caught:
        made.prepare().run(to_gpus(operands))
    assert caught.value.rules == ("memory",)


def replace_free_bytes(n_bytes):
    fields = {**vars(gpu_arrays.DEVICE), "mem_info": (n_bytes, n_bytes)}
    return type(gpu_arrays.DEVICE)(**fields)


def test_some_operands_on_the_host_are_refused():
    """Nothing is copied silently."""
    made, operands = plan(KERNELS["1mm"], processes=4), operands_of(KERNELS["1mm"])
    (first, *_) = operands
    mixed = {**operands, first: to_gpu(operands[first])}
    with pytest.raises(PlanError, match=f"{first} on a GPU, .* on the host"):
        run_here(made, mixed)


def test_arrays_of_other_libraries_are_refused():
    class Tensor:
        __cuda_array_interface__ = {}  # noqa: RUF012

    made, operands = plan(KERNELS["1mm"], processes=4), operands_of(KERNELS["1mm"])
    with pytest.raises(PlanError, match=r"cupy\.from_dlpack"):
        run_here(made, dict.fromkeys(operands, Tensor()))


def test_other_statements_run_on_the_host():
    statements = PROGRAMS["read twice"]
    made = plan_statements(statements, processes=4)
    operands = to_gpus(operands_of(statements))
    with pytest.raises(PlanError, match="arrays of numpy") as caught:
        run_here(made, operands, meaning=OtherSemantics())
    assert caught.value.rules == ("gpu",)


class OtherSemantics:
    """Not those of einsums; nothing of it is used before the refusal."""


def test_programs_refuse_arrays_on_a_gpu():
    made = plan_program(softmax(), processes=3)
    with pytest.raises(ProgramError, match=r"'X' .* array on the host"):
        made.prepare().run({"X": to_gpu(np.ones((8, 6)))})


def test_sparse_operands_stay_on_the_host():
    einsum = test_sparse.einsum_of(*test_sparse.KERNELS["mttkrp"])
    arrays = test_sparse.arrays_of(einsum)
    dense = {name: to_gpu(a) for name, a in arrays.items() if name != "T"}
    made = plan(einsum, processes=2, nonzeros=arrays["T"].nnz)
    with pytest.raises(PlanError, match="on the host"):
        run_here(made, {**arrays, **dense})
