"""Whole programs whose kernels are built meanwhile: on ranks, by users, without room.

Each program calls einsums until a build is over, whatever came of it, and checks every
result. What a build costs is said to be nothing, so that it begins with the first call.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from pwd import getpwnam

import pytest

from tests.docs.pages import ROOT

PROGRAM = """
import json, time, warnings
import numpy as np
warnings.simplefilter("ignore")
from feinsum.calling import call_einsum
from feinsum.calling.host import general
from feinsum.calling.kernel_cache import Calls
from feinsum.memory import get_remembered

general.SHORT_S = general.LOOK_UP_S = get_remembered(Calls).builds.expected_s = 0.0
A, B = np.ones((60, 70)), np.ones((70, 80))
longest_s, end_s = 0.0, time.monotonic() + 300
for n in range(10**9):
    start_s = time.perf_counter()
    result = call_einsum("ij,jk->ik", A, B)
    if n:
        longest_s = max(longest_s, time.perf_counter() - start_s)
    assert (result == 70).all()
    call = next(iter(get_remembered(Calls).general.values()), None)
    is_idle = not get_remembered(Calls).builds.lock.locked()
    if n > 50 and is_idle and (call is None or call.trial is None):
        break
    assert time.monotonic() < end_s
    time.sleep(0.01)
used = call is None or call.built is not None
print(json.dumps([n, used, call is not None and call.has_had_trial, longest_s]))
"""
LONG_S = 30.0
"""A build that a call waited for would take that long on the slowest machine."""


def run(folder: Path, *command: str):
    own = {
        "FEINSUM_CACHE_DIR": str(folder / "cache"),
        "FEINSUM_DATABASE": str(folder / "facts.sqlite"),
        "FEINSUM_EFFORT": "",
        "FEINSUM_DEVICE": "",
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def entries(folder: Path) -> int:
    return len([*(folder / "cache").glob("**/*.entry")])


MPIEXEC = Path(sys.executable).with_name("mpiexec")


@pytest.mark.long
@pytest.mark.skipif(
    find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="needs mpiexec"
)
def test_ranks_of_one_program_share_a_build(tmp_path):
    """Every rank computes what it should, and one of them leaves the kernel."""
    ranks = run(tmp_path, str(MPIEXEC), "-n", "2")
    assert len(ranks) == 2
    assert all(had_trial or used for _, used, had_trial, _ in ranks)
    assert all(longest_s < LONG_S for *_, longest_s in ranks)
    assert entries(tmp_path) >= 1


def test_without_room_on_disk_calls_go_on(tmp_path):
    """Files cannot grow: nothing is built or kept, and every call has its result."""
    limit = 'trap "" XFSZ; ulimit -f 0; exec "$@"'
    ((n, used, _, _),) = run(tmp_path, "sh", "-c", limit, "sh")
    assert n > 50
    assert not used
    assert entries(tmp_path) == 0


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_cache_of_another_user_is_left_alone(tmp_path):
    """The folder of one user is closed to the other, whose calls go on without it."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    run(tmp_path)
    n_entries = entries(tmp_path)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    nobody = str(getpwnam("nobody").pw_uid)
    command = ["setpriv", "--reuid", nobody, "--clear-groups"]
    ((n, _, _, longest_s),) = run(tmp_path, *command)
    assert n > 50
    assert longest_s < LONG_S
    assert entries(tmp_path) == n_entries
