"""``profile`` lists the einsums of a program, and what tunes them."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import feinsum
from feinsum.calling import prepare_call
from feinsum.calling.host.builder import BuildRequest, load_built
from feinsum.calling.profiling import Profile
from feinsum.errors import InvalidEinsumError
from feinsum.memory import use_fresh_memory
from feinsum.records import InMemoryStore

A, B, C = np.ones((30, 40)), np.ones((40, 50)), np.ones((50, 7))
ORIGINAL = np.einsum


@pytest.fixture(autouse=True)
def _usual(monkeypatch):
    monkeypatch.setenv("FEINSUM_EFFORT", "")
    monkeypatch.setenv("FEINSUM_DEVICE", "")
    with use_fresh_memory():
        yield


def by_call(found):
    return {(x.caller, x.subscripts): x.n_calls for x in found.calls}


def test_calls_of_numpy_and_feinsum_are_counted():
    """Whatever way they take, in either notation; one inside of another once."""
    out = np.empty((30, 50))
    with feinsum.profile() as found:
        for _ in range(3):
            assert np.einsum("ij,jk->ik", A, B)[0, 0] == 40
            assert feinsum.einsum("ij,jk->ik", A, B)[0, 0] == 40
        feinsum.einsum("ij,jk->ik", A, B, out=out)
        feinsum.contract("ij,jk,kl->il", A, B, C)
        np.einsum(A, [0, 1], B, [1, 2], [0, 2], optimize=True)
        feinsum.einsum("i,i->", np.array([1, 2], object), np.array([3, 4], object))
    assert by_call(found) == {
        ("numpy", "ij,jk->ik"): 3,
        ("feinsum", "ij,jk->ik"): 4,
        ("feinsum", "ij,jk,kl->il"): 1,
        ("numpy", "AB,BC->AC"): 1,
        ("feinsum", "i,i->"): 1,
    }
    assert 0 < found.calls_s <= found.seconds
    seconds = [call.seconds for call in found.calls]
    assert seconds == sorted(seconds, reverse=True)


def test_shapes_strides_and_dtypes_tell_calls_apart():
    """And whether an array was given twice; not the values."""
    square = np.ones((30, 30))
    with feinsum.profile() as found:
        for operands in (
            (square, square.copy()),
            (square.copy(), 2 * square),
            (square, square),
            (square.T, square.copy()),
            (square.astype("f4"), square.copy()),
            (A[:, :30], square),
        ):
            feinsum.einsum("ij,jk->ik", *operands)
    assert sorted(x.n_calls for x in found.calls) == [1, 1, 1, 1, 2]


def test_everything_is_as_before_it():
    """After an error, too; a call that is refused is not counted."""
    profile = feinsum.profile()
    with pytest.raises(InvalidEinsumError), profile as found:
        feinsum.einsum("ij,jk->ik", A, C)
    assert np.einsum is ORIGINAL
    assert found.calls == []
    assert str(found).startswith("0 einsum calls took 0 of ")


def test_symbolic_einsums_are_no_calls():
    """They compute nothing."""
    with feinsum.profile() as found:
        feinsum.einsum("ij,j->i", feinsum.array("A", ("n", 4)), feinsum.array("x", 4))
    assert found.calls == []


def test_threads_are_counted_together():
    with feinsum.profile() as found:
        threads = [
            threading.Thread(target=lambda: feinsum.einsum("ij,jk->ik", A, B))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert by_call(found) == {("feinsum", "ij,jk->ik"): 4}


def test_the_table_has_what_tuning_may_bring():
    """A line for each call; what has no kernel has a dash."""
    found = Profile(seconds=4.0)
    found.add("numpy", ("ij,jk->ik", A, B), 1.0)
    found.add("numpy", ("ij->ji", A), 0.5)
    found.note_ways()
    lines = str(found).splitlines()
    product, view = lines[2:4]
    assert product.endswith("numpy    ij,jk->ik of 30x40, 40x50 float64")
    assert "x  numpy" in product
    assert "-  numpy    ij->ji of 30x40 float64" in view
    assert max(map(len, lines)) <= 88


def test_first_calls_do_not_count_as_slow(tmp_path):
    """A slow first call promises no gain: the fastest call is compared."""
    found = Profile(seconds=4.0)
    for seconds in (2.0, 1e-5, 1e-5):
        found.add("feinsum", ("ij,jk->ik", A, B), seconds)
    assert "3 calls too short for a kernel to help" in str(found)
    assert found.write(tmp_path / "calls.json") == 0


def test_short_calls_are_summed_up(tmp_path):
    """No kernel helps them: nothing is predicted for them, and none is tuned."""
    found = Profile(seconds=4.0)
    for operands in ((A, B), (B.T, A.T)):
        for _ in range(100):
            found.add("feinsum", ("ij,jk->ik", *operands), 1e-5)
    head, short = str(found).splitlines()
    assert head.startswith("200 einsum calls took 0.002 of 4 s")
    assert short.strip() == "0.002 s: 200 calls too short for a kernel to help"
    assert found.write(tmp_path / "calls.json") == 0


def test_calls_with_a_tuned_kernel_are_marked():
    """Nothing is predicted for them, since tuning was done."""
    found = Profile(seconds=4.0)
    found.add("feinsum", ("ij,jk->ik", A, B), 1.0)
    found.add("numpy", ("ij,jk->ik", A, B), 1.0)
    facts = InMemoryStore()
    feinsum.tune("ij,jk->ik", A, B, database=facts, n_trials=1, device="host")
    prepare_call("ij,jk->ik", A, B, database=facts)
    found.note_ways()
    ways = {call.caller: call.way for call in found.calls}
    assert ways == {"feinsum": "tuned", "numpy": "numpy"}
    lines = str(found).splitlines()
    assert sum(" -  tuned    ij,jk->ik of 30x40" in line for line in lines) == 1
    assert lines[-1] == "tuned: a kernel with a recorded recipe computes it already"


def test_its_list_is_tuned_and_built_for_later_processes(tmp_path, monkeypatch):
    """Run the program once under it, tune, run again: the kernel is there."""
    from typer.testing import CliRunner

    from feinsum.cli.app import app

    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "facts.sqlite"))
    # no product of matrices: whether a library is best for those depends on the machine
    X, Y = np.ones((70_000, 40)), np.full((70_000, 40), 2.0)
    with feinsum.profile() as found:
        for _ in range(20):
            np.einsum("ij,ij->i", X, Y)
        np.einsum("ij->ji", A)
    path = tmp_path / "calls.json"
    assert found.write(path) == 1
    (document,) = json.loads(path.read_text())
    assert document["size"] == "n0=70000"
    call = BuildRequest(**document["call"])
    assert load_built(call) is None
    ended = CliRunner().invoke(app, ["tune", "--suite", str(path), "--trials", "1"])
    assert ended.exit_code == 0, ended.output
    assert "tuned 1 of 1 workload" in ended.output
    request = BuildRequest(**document["call"])
    kernel = load_built(request).call(request.structure)
    np.testing.assert_allclose(kernel.run((X, Y)), (X * Y).sum(axis=1))


@pytest.mark.parametrize(
    "call", [1, {}, {"subscripts": "ij->i"}, {"subscripts": 3, "forms": [],
    "first": [], "database": None}],
)  # fmt: skip
def test_a_list_that_was_changed_is_refused(tmp_path, call):
    """Before anything is tuned, naming the workload."""
    from typer.testing import CliRunner

    from feinsum.cli.app import app

    path = tmp_path / "calls.json"
    path.write_text(json.dumps([{"einsum": "ij->i", "sizes": "i=3,j=4", "call": call}]))
    ended = CliRunner().invoke(app, ["tune", "--suite", str(path), "--trials", "1"])
    assert ended.exit_code == 2
    assert "workload 1: the call is not one of feinsum.profile" in " ".join(
        ended.output.replace("│", " ").split()
    )
