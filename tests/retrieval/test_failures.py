"""Whatever goes wrong, the kernel comes back, with a warning that says why."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from functools import partial
from importlib import import_module

import loopy as lp
import pytest

from feinsum import explain, raise_kernel, retrieve
from feinsum.db import open_store
from feinsum.errors import (
    DeviceUnavailableError,
    FeinsumError,
    NotAnEinsumError,
    StoreUnavailableError,
)
from feinsum.records import InMemoryStore
from feinsum.targets import devices
from feinsum.targets.host import HOST
from feinsum.targets.opencl import OPENCL
from tests.db.conftest import locked_by_another_process
from tests.retrieval.facts import fact_of
from tests.retrieval.kernels import reduction, squares
from tests.retrieval.support import given, why_not_looked_up, why_unchanged


def test_what_is_no_einsum_comes_back_unchanged():
    """The warning says which rule is broken, and how."""
    kernel = squares()
    store = given(fact_of(reduction()))
    assert "contains a reduction" in why_unchanged(kernel, database=store)
    with pytest.raises(NotAnEinsumError) as caught:
        retrieve(kernel, database=store, on_miss="raise")
    assert caught.value.rule == "nested-reduction"


@pytest.mark.parametrize(
    ("given_kernel", "hint"),
    [
        ("ij,jk->ik", "feinsum.einsum"),
        (None, "NoneType: loopy.make_kernel"),
        (reduction().kernel.default_entrypoint, "LoopKernel: give the unit"),
    ],
)
def test_what_is_no_kernel_is_a_type_error(given_kernel, hint):
    """It is a mistake in the call, and no build that has to go on."""
    for call in (retrieve, explain, raise_kernel):
        with pytest.raises(TypeError, match=hint) as caught:
            call(given_kernel)
        assert isinstance(caught.value, FeinsumError)


def test_without_opencl_the_target_to_use_is_named(monkeypatch):
    """Loopy's default target needs OpenCL; its C target does not."""
    monkeypatch.setattr(type(OPENCL), "devices", lambda self: ())
    monkeypatch.setenv("FEINSUM_DEVICE", "")
    kernel = reduction().kernel.copy(target=lp.PyOpenCLTarget())
    text = why_unchanged(kernel, database=given(fact_of(reduction())))
    assert "target=lp.ExecutableCTarget()" in text


def test_a_kernel_for_another_target_comes_back_unchanged(monkeypatch):
    """Recipes make work-groups, and for some targets nobody here runs them."""
    monkeypatch.setattr(devices, "TARGETS", (HOST, OPENCL))
    kernel = reduction().kernel.copy(target=lp.CudaTarget())
    store = given(fact_of(reduction()))
    assert "any of the targets host, opencl" in why_unchanged(kernel, database=store)
    lines = explain(kernel, database=store).splitlines()
    assert lines[0].startswith("not raised: ")
    assert lines[1:] == ["broken rule: target", "kernel: unchanged"]


def make_garbage(path):
    path.write_bytes(b"garbage" * 1000)


def make_foreign(path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


def make_truncated(path):
    with open_store(path) as store:
        store.add(fact_of(reduction()))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def make_folder(path):
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_garbage, "is not an SQLite database"),
        (make_foreign, "belongs to another program"),
        (make_truncated, "truncated"),
        (make_folder, "is a folder"),
    ],
)
def test_a_bad_database_breaks_no_build(tmp_path, make, words):
    """A database that cannot be used: the kernel, and a warning that names it."""
    path = tmp_path / "facts.sqlite"
    make(path)
    text = why_not_looked_up(reduction().kernel, database=path)
    assert words in text
    assert str(path) in text
    with pytest.raises(StoreUnavailableError):
        retrieve(reduction().kernel, database=path, on_miss="raise")


def test_a_locked_database_breaks_no_build(tmp_path, monkeypatch):
    """A lock that does not go away in time: the kernel, and a warning."""
    path = tmp_path / "facts.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")  # a header, no table: it must be written first
    opened = import_module("feinsum.db.opened")
    impatient = partial(open_store, busy_timeout_s=0.2)
    monkeypatch.setattr(opened, "open_store", impatient)
    with locked_by_another_process(path):
        text = why_unchanged(reduction().kernel, database=path)
    assert "locked by another process" in text


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("odd"), MemoryError()])
def test_a_failing_store_breaks_no_build(error, caplog):
    """Whatever a store raises: the kernel, a warning, and a trace in the log."""

    class Broken(InMemoryStore):
        def query(self, workload, *, device_id=None):
            raise error

    with caplog.at_level(logging.ERROR, "feinsum.retrieval"):
        text = why_not_looked_up(reduction().kernel, database=Broken())
    assert text.startswith(f"retrieval failed with {type(error).__name__}: {error}")
    assert caplog.records[0].exc_info
    with pytest.raises(type(error)):
        retrieve(reduction().kernel, database=Broken(), on_miss="raise")


def test_an_absent_device_breaks_no_build(monkeypatch):
    """No such device, given or in the environment: the kernel, and a warning."""
    kernel = reduction().kernel
    store = given(fact_of(reduction()))
    text = why_not_looked_up(kernel, device="Cray-1", database=store)
    assert text.startswith("no device that works matches 'Cray-1'; found: ")
    monkeypatch.setenv("FEINSUM_DEVICE", "Cray-2")
    assert "'Cray-2'" in why_not_looked_up(kernel, database=store)
    with pytest.raises(DeviceUnavailableError):
        retrieve(kernel, database=store, on_miss="raise")
