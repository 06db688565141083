"""The benchmark's plans on real ranks, with arrays of a GPU that does not exist."""

from __future__ import annotations

import subprocess
import sys

from tests.distributed.test_mpi import MPIEXEC, needs_mpi
from tests.docs.pages import ROOT

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
ranks.TOLERANCE = float(sys.argv[1])
is_right = ranks.run_all(MPI.COMM_WORLD, gpu_arrays.to_gpu, compute_with_numpy)
raise SystemExit(0 if is_right else 3)
"""


def run(tolerance):
    command = [MPIEXEC, "-n", "2", sys.executable, "-c", PROGRAM, str(tolerance)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


@needs_mpi
def test_results_of_ranks_are_compared_with_numpys():
    """A line for each plan; the exit code says whether all were right."""
    right, wrong = run(1e-11), run(-1.0)
    assert right.returncode == 0, right.stderr
    assert right.stdout.count("entries received") == 4
    assert wrong.returncode != 0
    assert wrong.stdout.count("failed: off by") == 4
