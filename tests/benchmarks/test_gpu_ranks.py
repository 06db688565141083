"""The benchmark's plans on real ranks, with arrays of a GPU that does not exist."""

from __future__ import annotations

import re
import sys

from tests.children import run_command
from tests.distributed.test_mpi import MPIEXEC, needs_mpi

PROGRAM = """
import sys

from mpi4py import MPI

from benchmarks.gpu import ranks
from feinsum.distributed.local import compute_with_numpy
from tests.distributed import gpu_arrays

sys.modules["cupy"] = gpu_arrays.make_cupy()
ranks.CASES = {
    name: (subscripts, {index: n // 10 + 2 for index, n in sizes.items()})
    for name, (subscripts, sizes) in ranks.CASES.items()
}
for tolerance in 1e-11, -1.0:
    ranks.TOLERANCE = tolerance
    is_right = ranks.run_all(MPI.COMM_WORLD, gpu_arrays.to_gpu, compute_with_numpy)
    if MPI.COMM_WORLD.rank == 0:
        print(f"all right: {is_right}", flush=True)
"""


@needs_mpi
def test_results_of_ranks_are_compared_with_numpys():
    """A line for each plan, and whether all were right."""
    done = run_command(MPIEXEC, "-n", "2", sys.executable, "-c", PROGRAM)
    right, wrong, end = re.split(r"all right: (?:True|False)\n", done.stdout)
    assert right.count("entries received") == 4
    assert wrong.count("failed: off by") == 4
    assert re.findall("all right: (.*)", done.stdout) == ["True", "False"]
    assert not end
