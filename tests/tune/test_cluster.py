"""Tuning on a cluster: what a local tuning finds, whatever happens to the machines."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import warnings
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from threading import Thread, Timer
from time import monotonic, sleep

import dask
import psutil
import pytest
from distributed import LocalCluster, Nanny, Scheduler, SpecCluster

from feinsum.db import open_store
from feinsum.errors import DeviceUnavailableError, FeinsumError
from feinsum.records import InMemoryStore
from feinsum.tuning import cluster, make_problem, tune_einsum
from feinsum.tuning.cluster import check_agreement, describe_difference
from feinsum.tuning.trials import TrialAnswer
from tests.db.factories import make_device, make_environment, make_processor
from tests.tune.odd_transforms import COUNTER, odd_einsum, odd_spec

LITERAL = odd_einsum(50)

pytestmark = pytest.mark.filterwarnings(  # Loopy's own use of islpy
    "ignore:.*with implicit conversion:DeprecationWarning"
)


def workers_of_this_machine(n_workers=2, port=0):
    """A scheduler, and workers that are processes with one thread."""
    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=True,
        scheduler_port=port,
        dashboard_address="127.0.0.1:0",
    )


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """The file in which transforms write what they did."""
    path = tmp_path_factory.mktemp("cluster") / "counter"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(COUNTER, str(path))
        yield path


@pytest.fixture(scope="module")
def scheduler(counter):
    """The address of a cluster for most tests."""
    with workers_of_this_machine() as made:
        yield made.scheduler_address


@pytest.fixture(autouse=True)
def _nothing_written_yet(counter):
    counter.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def _sockets_that_dask_leaves():
    """Collect what Dask leaves of lost connections before other tests do."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def port():
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def statuses(report):
    return {trial.spec: trial.status for trial in report.trials}


def test_a_cluster_finds_what_one_machine_finds_and_times_one_at_a_time(
    registered, scheduler, tmp_path, counter
):
    """Every recipe is tried once, by both workers; timings never overlap."""
    registered("odd_double", "odd_right", "odd_watched")
    path = tmp_path / "facts.sqlite"
    seen = []
    report = tune_einsum(
        LITERAL,
        database=path,
        n_trials=50,
        scheduler=scheduler,
        on_progress=seen.append,
    )
    good = {odd_spec(n, s) for n in ("odd_right", "odd_watched") for s in (4, 8)}
    bad = {odd_spec("odd_double", size) for size in (4, 8)}
    assert statuses(report) == dict.fromkeys(good, "ok") | dict.fromkeys(
        bad, "wrong-result"
    )
    assert [p.n_done for p in seen] == [1, 2, 3, 4, 5, 6]
    assert {f.spec for f in report.finalists} == good
    with open_store(path) as store:
        assert set(store.records()) == set(report.records)
        assert store.trials(report.problem.form.key) == report.trials
    assert {r.environment for r in report.records} == {report.environment}
    timings = sorted(
        (float(began), float(ended), pid)
        for pid, began, ended in map(str.split, counter.read_text().splitlines())
    )
    assert len({pid for *_, pid in timings}) == 2
    assert all(
        a_ended <= b_began for (_, a_ended, _), (b_began, *_) in pairwise(timings)
    )


def test_a_killed_worker_loses_only_its_trial(registered, scheduler, counter):
    """The trial is made again elsewhere, and every other one once."""
    registered("odd_right", "odd_widows")
    store = InMemoryStore()
    report = tune_einsum(
        LITERAL,
        database=store,
        strategy="exhaustive",
        n_trials=3,
        scheduler=scheduler,
    )
    assert len(counter.read_text().splitlines()) == 1
    assert statuses(report) == dict.fromkeys(
        [odd_spec("odd_right"), odd_spec("odd_right", 8), odd_spec("odd_widows")], "ok"
    )
    assert len(report.trials) == 3
    assert store.trials(report.problem.form.key) == report.trials


def processes_of_trials():
    """Those that this process, or one that it started, has for trials."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "feinsum.tuning.worker" in process.cmdline():
                found.append(process)
    return found


def test_an_interrupt_keeps_what_ended_and_leaves_no_process(registered, scheduler):
    """Control-C while both workers hang: trials that ended are kept and the best is
    recorded, long before the limit of a trial; the workers end what is under way,
    and serve the next tuning.
    """
    registered("odd_right", "odd_sleeps")
    store = InMemoryStore()
    interrupt = Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))

    def watch(progress):
        if progress.n_done == 2:
            interrupt.start()

    options = {"database": store, "strategy": "exhaustive", "scheduler": scheduler}
    reports = []
    began_s = monotonic()
    with pytest.raises(KeyboardInterrupt):
        tune_einsum(
            LITERAL,
            on_progress=watch,
            on_stop=reports.append,
            trial_limit_s=1000.0,
            **options,
        )
    assert monotonic() - began_s < 300
    assert processes_of_trials() == []
    (report,) = reports
    good = {odd_spec("odd_right", size): "ok" for size in (4, 8)}
    assert statuses(report) == good
    assert store.trials(report.problem.form.key) == report.trials
    assert set(store.records()) == set(report.records)
    assert {record.spec for record in report.records} == {*good}
    again = tune_einsum(LITERAL, n_trials=2, **options)
    assert (again.n_known, len(again.records)) == (2, 2)
    assert processes_of_trials() == []


def test_an_interrupt_while_the_problem_is_set_up_leaves_no_process(
    registered, scheduler, monkeypatch
):
    """Workers that are asked for their devices end their processes as well."""
    registered("odd_right")

    def interrupt(seconds):
        if processes_of_trials():
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr(cluster, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tune_einsum(LITERAL, database=InMemoryStore(), scheduler=scheduler)
    assert processes_of_trials() == []


def test_after_an_interrupt_no_worker_is_waited_for(monkeypatch):
    """The best cannot be compared then, and that is said at once."""
    bench = cluster.ClusterBench(make_problem(LITERAL), "tcp://127.0.0.1:1")
    bench.environment = make_environment()
    monkeypatch.setattr(bench._connection, "workers", set)

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(bench.outcomes(lambda: (odd_spec("odd_right"), None)))
    with pytest.raises(DeviceUnavailableError, match="no worker for 0 s"):
        bench.compare([odd_spec("odd_right")])


@pytest.mark.long
def test_a_recipe_that_kills_workers_has_crashed(registered, scheduler, counter):
    """After so many lost workers it is not tried again, and the others are."""
    registered("odd_right", "odd_widows")
    counter.touch()
    report = tune_einsum(
        LITERAL, database=InMemoryStore(), strategy="exhaustive", scheduler=scheduler
    )
    assert len(counter.read_text().splitlines()) == cluster.MAX_LOST
    bad = odd_spec("odd_widows", 8)
    assert {s for s, status in statuses(report).items() if status != "ok"} == {bad}
    (trial,) = [trial for trial in report.trials if trial.spec == bad]
    assert trial.status == "trial-crashed"
    assert "3 workers were lost with it" in trial.message


@pytest.mark.long
def test_a_restart_of_the_scheduler_loses_nothing(registered, port, caplog, counter):
    """The tuner waits, connects again, and makes what was under way again."""
    registered("odd_waits_once")
    clusters = [workers_of_this_machine(1, port)]

    def restart_while_a_trial_is_under_way():
        while not counter.exists():
            sleep(0.05)
        there = clusters.pop()
        there.sync(there.scheduler.close)  # before its workers
        with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
            there.close()
        clusters.append(workers_of_this_machine(1, port))

    restarting = Thread(target=restart_while_a_trial_is_under_way, daemon=True)
    restarting.start()
    store = InMemoryStore()
    report = tune_einsum(LITERAL, database=store, scheduler=f"tcp://127.0.0.1:{port}")
    restarting.join()
    clusters.pop().close()
    assert "waiting for it to return" in caplog.text
    good = [odd_spec("odd_waits_once", size) for size in (4, 8)]
    assert statuses(report) == dict.fromkeys(good, "ok")
    assert len(report.trials) == 2
    assert set(store.records()) == set(report.records)
    assert len(report.records) == 2


def test_a_scheduler_that_stays_away_ends_a_tuning_that_goes_on_elsewhere(
    registered, trials_here, port, tmp_path, monkeypatch
):
    """One clear error within the limit; what ended is kept, and not made again."""
    registered("odd_right")
    monkeypatch.setattr(cluster, "RECONNECT_LIMIT_S", 1.0)
    path = tmp_path / "facts.sqlite"
    there = workers_of_this_machine(1, port)
    address = f"tcp://127.0.0.1:{port}"
    with pytest.raises(DeviceUnavailableError, match=r"no scheduler answers.*resume"):
        tune_einsum(
            LITERAL,
            database=path,
            scheduler=address,
            on_progress=lambda _: there.close(),
        )
    report = tune_einsum(LITERAL, database=path)
    assert report.n_known == 1
    assert len(report.trials) == len(statuses(report)) == 2


@pytest.mark.long
def test_workers_that_disagree_are_refused_and_listed(registered, tmp_path):
    """One error says in what they differ, here in the version of a package."""
    registered("odd_right")
    other = tmp_path / "islpy-1.2.3.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Name: islpy\nVersion: 1.2.3\n")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    options = {"nthreads": 1}
    workers = {
        "same": {"cls": Nanny, "options": options},
        "other": {"cls": Nanny, "options": options | {"env": {"PYTHONPATH": path}}},
    }
    front = {"cls": Scheduler, "options": {"dashboard": False, "port": 0}}
    with (
        SpecCluster(workers=workers, scheduler=front) as mixed,
        pytest.raises(
            DeviceUnavailableError, match=r"islpy 1\.2\.3, not|, not 1\.2\.3"
        ),
    ):
        tune_einsum(
            LITERAL, database=InMemoryStore(), scheduler=mixed.scheduler_address
        )


def test_a_population_has_one_environment():
    """Workers without one are left out; of those with one all have the same."""
    here = make_environment()
    broken = TrialAnswer(error_code="device-unavailable", error="no such device")
    assert check_agreement({"a": broken, "b": TrialAnswer(environment=here)}) == here
    with pytest.raises(DeviceUnavailableError, match="the worker a: no such device"):
        check_agreement({"a": broken, "b": broken})
    newer = replace(here, driver_version="next")
    assert describe_difference(here, here) is None
    assert (
        describe_difference(newer, here)
        == f"driver version next, not {here.driver_version}"
    )
    with pytest.raises(DeviceUnavailableError, match=r"a: .*; b: driver version next"):
        check_agreement(
            {"a": TrialAnswer(environment=here), "b": TrialAnswer(environment=newer)}
        )


def test_processors_of_one_name_are_different_environments():
    """The message says in what they differ, for their names do not."""
    zen4, zen5 = (
        make_environment(make_device(processor=make_processor(name)))
        for name in ("zen4", "zen5")
    )
    found = describe_difference(zen5, zen4)
    assert found is not None
    assert found.endswith(f", not {zen4.device}: it differs in microarchitecture")
    unknown = make_environment(make_device())
    assert describe_difference(unknown, zen4).endswith("it differs in processor")
    with pytest.raises(DeviceUnavailableError, match="it differs in micro"):
        check_agreement(
            {"a": TrialAnswer(environment=zen4), "b": TrialAnswer(environment=zen5)}
        )


def test_a_scheduler_that_is_not_there_is_one_clear_error(
    registered, port, monkeypatch
):
    """It names the address, and nothing was tried."""
    registered("odd_right")
    monkeypatch.setattr(cluster, "CONNECT_LIMIT_S", 0.5)
    with pytest.raises(DeviceUnavailableError, match=f"127.0.0.1:{port}"):
        tune_einsum(
            LITERAL, database=InMemoryStore(), scheduler=f"tcp://127.0.0.1:{port}"
        )


def test_without_dask_it_is_said_how_to_install_it(registered, monkeypatch):
    """Before anything is done."""
    registered("odd_right")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(FeinsumError, match=r"pip install 'feinsum\[cluster\]'"):
        tune_einsum(LITERAL, database=InMemoryStore(), scheduler="tcp://127.0.0.1:1")
