"""The thread pool: one for a process, whatever becomes of the process."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import loopy as lp
import numpy as np
import pytest

from feinsum.errors import DeviceUnavailableError
from feinsum.targets.host.kernel import get_pool
from feinsum.threads import count_cores, get_n_threads
from tests.children import run_python
from tests.targets.host.kernels import make

VARIABLES = ("FEINSUM_NUM_THREADS", "OMP_NUM_THREADS")


@pytest.fixture
def _unset(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_unset")
@pytest.mark.parametrize(
    ("own", "openmp", "expected"),
    [
        ("3", "2", 3),
        (" 3 ", "", 3),
        ("", "2", 2),
        ("", "4,2,1", 4),
        ("", "0", None),
        ("", "many", None),
        ("", "", None),
    ],
)
def test_the_number_of_threads(own, openmp, expected, monkeypatch):
    """Of FEINSUM_NUM_THREADS, else OpenMP's, else the cores of the process."""
    monkeypatch.setenv(VARIABLES[0], own)
    monkeypatch.setenv(VARIABLES[1], openmp)
    assert get_n_threads() == (expected or count_cores())


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000\n", "cpu.max": "max 100000\n"}, 1),
        ("0::/host/name\n", {"cpu.max": "100000 100000\n"}, 1),
        ("3:cpu,cpuacct:/a\n", {"cpu,cpuacct/a/cpu.cfs_quota_us": "150000\n",
                                "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"}, 1),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n",
                       "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "10000000000 100000\n"}, None),
        ("5:cpuset:/\n", {}, None),
        ("", {}, None),
    ],
)  # fmt: skip
def test_the_time_of_a_control_group_limits_the_threads(tmp_path, own, files, expected):
    """In versions 1 and 2, of the group or one around it; at least one is left."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    everything = len(os.sched_getaffinity(0))
    assert count_cores(tmp_path, tmp_path / "own") == (expected or everything)


@pytest.mark.usefixtures("_unset")
@pytest.mark.parametrize("named", ["0", "-1", "two", "1.5"])
def test_what_is_no_number_of_threads_is_refused(named, monkeypatch):
    """By the variable and its value."""
    monkeypatch.setenv("FEINSUM_NUM_THREADS", named)
    with pytest.raises(DeviceUnavailableError, match=f"NUM_THREADS is '{named}'"):
        get_n_threads()


PROLOGUE = """
import os, signal, sys, threading, warnings
import numpy as np
warnings.simplefilter("ignore")
from tests.targets.host.test_pool import check, long_kernel
def n_tasks():
    return len(os.listdir("/proc/self/task"))
"""


def long_kernel():
    """Enough work for every thread: a sum for each of many numbers."""
    t_unit = make("{[i,k]: 0<=i<n and 0<=k<200}", "y[i] = sum(k, x[i]*k)", {"x,y": "n"})
    t_unit = lp.split_iname(t_unit, "i", 16, outer_tag="g.0", inner_tag="l.0")
    return t_unit.executor()


def check(executor, n=50_000):
    """Run and compare."""
    x = np.arange(n, dtype=np.float64)
    _, (y,) = executor(x=x)
    np.testing.assert_array_equal(y, x * 199 * 200 / 2)


def run(statements, **variables):
    """The lines that a process with threads of its own prints."""
    variables = {"FEINSUM_NUM_THREADS": "4"} | variables
    return run_python("-c", PROLOGUE + statements, **variables).stdout.split()


def test_a_process_has_as_many_threads_as_it_was_told():
    """They are started once, and the results do not depend on them."""
    before, after, later = run(
        "executor = long_kernel()\n"
        "print(n_tasks())\n"
        "check(executor); print(n_tasks())\n"
        "for _ in range(20): check(executor)\n"
        "print(n_tasks())",
        FEINSUM_NUM_THREADS="7",
        OPENBLAS_NUM_THREADS="1",
    )
    assert int(after) - int(before) == 6
    assert after == later


FORKED_IN_A_RUN = """
executor = long_kernel()
check(executor)
is_over = threading.Event()
def keep_running():
    while not is_over.is_set():
        check(executor)
thread = threading.Thread(target=keep_running)
thread.start()
for _ in range(8):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        check(executor)
        check(long_kernel(), n=20_000)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
is_over.set()
thread.join()
"""


def test_a_child_may_be_forked_while_a_kernel_runs():
    """What the threads of the parent held is free in the child, which has a pool of its
    own. Both go on computing; libgomp hangs there.
    """
    assert run(FORKED_IN_A_RUN) == ["0"] * 8


def test_workers_of_multiprocessing_compute():
    """By whichever method they are started after the pool of the parent."""
    statements = """
import multiprocessing
if __name__ == "__main__":
    check(long_kernel())
    for method in ("fork", "fork", "forkserver", "spawn"):
        worker = multiprocessing.get_context(method).Process(target=check_kernel)
        worker.start()
        worker.join(60)
        print(worker.exitcode)
"""
    found = run(
        "from tests.targets.host.test_pool import check_kernel\n" + statements,
        PYTHONWARNINGS="ignore",
    )
    assert found == ["0"] * 4


def check_kernel():
    """What a worker does."""
    check(long_kernel())


def test_threads_of_python_share_the_pool():
    """One has it, the others compute alone; all results are right."""
    executor = long_kernel()

    def work(k):
        for _ in range(10):
            check(executor, n=10_000 + k)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


INTERRUPTED = """
executor = long_kernel()
check(executor)
n = 3_000_000
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for _ in range(100):
        check(executor, n)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
check(executor, n)
print("right")
"""


def test_control_c_is_an_exception_after_the_run():
    """The kernel ends, Python raises, and the next run is right."""
    assert run(INTERRUPTED) == ["interrupted", "right"]


def test_what_is_small_is_not_shared():
    """A kernel runs alone for at most half a millisecond, however long threads took to
    wake when the process started.
    """
    assert 0 <= get_pool().threshold_s <= 5e-4
