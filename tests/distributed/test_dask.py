"""Plans on workers of Dask: real processes, exactly the elements that were counted."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from itertools import count
from pathlib import Path
from time import sleep

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_worker

from feinsum.distributed import on_dask, plan, plan_program
from feinsum.distributed.local import compute_with_numpy
from feinsum.distributed.recorded import make_random_arrays, record_run
from feinsum.errors import PlanError
from feinsum.ir import array
from feinsum.programs import program
from feinsum.records import InMemoryStore
from tests.distributed.cases import KERNELS, by_numpy, einsum_of, operands_of
from tests.distributed.engine_contract import check_engine
from tests.distributed.test_facts import softmax

N = 2


@pytest.fixture(scope="module")
def client():
    """Of workers that are processes."""
    with (
        LocalCluster(
            n_workers=N,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as made,
    ):
        yield made


@pytest.fixture(scope="module", autouse=True)
def _sockets_that_dask_leaves():
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def assert_right(made, outcome, einsum, seed=0):
    expected = by_numpy(einsum, operands_of(einsum, seed))
    assert (outcome.results["out"] == expected).all()
    assert outcome.report.counted == outcome.report.predicted == made.counts.moved


def test_workers_are_an_engine(client):
    """Workers pass the contract."""
    check_engine(
        lambda made: made.prepare("dask", client, leaf=compute_with_numpy),
        lambda made: made.prepare("dask", client),
        N,
    )


def sent(dask_worker):
    return dask_worker.transfer_outgoing_bytes_total


def test_dask_itself_moves_no_more(client):
    """Dask's own counters of bytes have the counted elements and the result."""
    einsum = einsum_of("ij,jk->ik", i=100, j=310, k=120)
    made = plan(einsum, processes=N)
    ready = made.prepare("dask", client, leaf=compute_with_numpy)
    before = sum(client.run(sent).values())
    assert_right(made, ready.run(operands_of(einsum)), einsum)
    moved = sum(client.run(sent).values()) - before - 8 * 100 * 120
    assert 1 <= moved / (8 * made.counts.moved) < 1.02


def test_workers_are_recorded(client):
    """The fact has the fleet of workers, and seconds if each has its own core."""
    made, store = plan_program(softmax(), processes=2), InMemoryStore()
    fact = record_run(made, make_random_arrays(made), store, engine="dask", on=client)
    assert store.plans(fact.workload) == (fact,)
    assert (fact.fleet.engine, fact.fleet.ranks) == ("dask", 2)
    assert fact.counted == made.counts.moved
    assert len(fact.samples_s) == (3 if fact.fleet.is_timed else 0)


class DiesOnce:
    """A leaf that kills its worker the first time that a file is there."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments):
        if get_worker().name == 1 and self.path.exists():
            self.path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return compute_with_numpy(*arguments)


@pytest.mark.long
def test_a_worker_that_is_killed_is_replaced(client, tmp_path):
    """Dask recomputes what it held; the report then has no counts."""
    flag = tmp_path / "flag"
    flag.touch()
    einsum = KERNELS["3mm"]
    made = plan(einsum, processes=N)
    outcome = made.prepare("dask", client, leaf=DiesOnce(flag)).run(operands_of(einsum))
    assert (outcome.results["out"] == by_numpy(einsum, operands_of(einsum))).all()
    assert not flag.exists()
    assert outcome.report.lost_workers == 1
    assert outcome.report.counted is None
    assert "1 worker was lost and replaced" in str(outcome.report)


@pytest.fixture
def bare(tmp_path):
    """A client of one worker whose machine has no compiler."""
    nowhere = {"PATH": str(tmp_path), "FEINSUM_CC": "", "CC": ""}
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            env=nowhere
            | {"FEINSUM_CACHE_DIR": str(tmp_path), "FEINSUM_DEVICE": "host"},
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as made,
    ):
        yield made


def test_a_worker_without_a_compiler(bare):
    """A worker without a compiler computes programs and plans with numpy."""
    p = program()
    product = p.einsum("ij,jk->ik", array("A", (6, 5)), array("B", (5, 4)))
    p.softmax(product, "k", name="Y")
    made = p.plan(1)
    arrays = make_random_arrays(made)
    found = made.prepare("dask", bare).run(arrays).results["Y"]
    expected = np.exp(arrays["A"] @ arrays["B"])
    assert np.allclose(found, expected / expected.sum(axis=1, keepdims=True))
    einsum = KERNELS["1mm"]
    ready = plan(einsum, processes=1).prepare("dask", bare)
    operands = operands_of(einsum)
    result = ready.run(operands).results["out"]
    assert np.allclose(result, by_numpy(einsum, operands))


@pytest.fixture(scope="module")
def threads():
    """A client of workers in this process, which begin at once; the last test of this
    file takes one away.

    The limit is what they tell. They would pause beyond it, for what other tests of
    this process have left in memory.
    """
    actions = ("target", "spill", "pause", "terminate")
    unlimited = {f"distributed.worker.memory.{action}": False for action in actions}
    with (
        dask.config.set(unlimited),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            memory_limit="1GB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as made,
    ):
        yield made


def test_what_cannot_run_is_refused_before_it_starts(threads):
    """Too few workers, too little memory and no client raise errors at the start."""
    with pytest.raises(PlanError, match="for 3 processes; the cluster has 2") as caught:
        plan(KERNELS["1mm"], processes=3).prepare("dask", threads)
    assert caught.value.rules == ("workers",)
    large = plan(einsum_of("ij,jk->ik", every=20_000), processes=2)
    with pytest.raises(PlanError, match="1,000,000,000 are free") as caught:
        large.prepare("dask", threads)
    assert caught.value.rules == ("memory",)
    with pytest.raises(PlanError, match="cannot run on None; expected a client"):
        large.prepare("dask")


def test_an_error_of_a_leaf_is_raised(threads):
    """The error of a leaf reaches the caller unchanged."""
    made = plan(KERNELS["1mm"], processes=2)
    with pytest.raises(ZeroDivisionError):
        made.prepare("dask", threads, leaf=lambda *_: 1 // 0).run(
            operands_of(KERNELS["1mm"])
        )


def test_a_worker_that_is_gone_for_good_is_named(threads, monkeypatch, tmp_path):
    """The error names the worker after the time limit for its return."""
    monkeypatch.setattr(on_dask, "RETURN_LIMIT_S", 0.1)
    monkeypatch.setattr(on_dask, "CHECK_INTERVAL_S", 0.1)
    made = plan(KERNELS["1mm"], processes=2)
    ready = made.prepare("dask", threads, leaf=Waits(tmp_path / "go"))
    told = count()

    def shrink(*_):
        if next(told) == 0:
            threads.cluster.scale(1)

    with pytest.raises(PlanError, match=r"worker \d was lost") as caught:
        ready.run(operands_of(KERNELS["1mm"]), shrink)
    assert caught.value.rules == ("workers",)


class Waits:
    """A leaf that is fast for one worker, and slow for all others."""

    def __init__(self, path: Path):
        self.path = path

    def __call__(self, *arguments):
        try:
            self.path.touch(exist_ok=False)
        except FileExistsError:
            sleep(1)
        return compute_with_numpy(*arguments)
