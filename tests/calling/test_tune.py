"""``feinsum.tune``: a call as it was made is tuned, and calls find what was found."""

import numpy as np
import pytest

import feinsum
from feinsum.calling import read_call
from feinsum.calling.kernel_cache import Calls
from feinsum.errors import InvalidEinsumError
from feinsum.memory import get_remembered
from feinsum.records import InMemoryStore
from feinsum.tuning.problem import make_problem

RNG = np.random.default_rng(3)
A, x = RNG.random((700, 6)), RNG.random(6)


@pytest.mark.usefixtures("trials_here")
def test_a_call_is_tuned_as_it_was_made(capsys):
    """Arrays are read, the fact is recorded, and calls ask for it."""
    facts, seen = InMemoryStore(), []
    feinsum.einsum("ij,j->i", A, x, database=facts)
    report = feinsum.tune(
        "ij,j->i", A, x, n_trials=1, database=facts, on_progress=seen.append,
        progress=True,
    )  # fmt: skip
    assert [progress.n_done for progress in seen] == [1]
    assert len(report.records) == 1
    # as it was written, not as the normalized call or in canonical names
    assert repr(report).startswith("<TuningReport ij,j->i: 1 trial, ")
    assert "1/1" in capsys.readouterr().err
    parsed = read_call("ij,j->i", A, x)
    known = make_problem(parsed.einsum, parsed.sizes).form.key
    assert report.records[0].workload == known
    assert not get_remembered(Calls).quick
    assert not get_remembered(Calls).general


def test_symbols_and_einsums_are_tuned_as_well(monkeypatch):
    """A symbolic call, or one einsum; sizes are those that are given."""
    asked = []
    monkeypatch.setattr(
        "feinsum.tuning.tune_einsum", lambda e, **k: asked.append((e, k["sizes"]))
    )
    M, y = feinsum.array("M", ("n", 6)), feinsum.array("y", 6)
    feinsum.tune("ij,j->i", M, y, sizes={"n": 7})
    feinsum.tune(feinsum.einsum("ij,j->i", M, y), sizes={"n": 7})
    assert asked[0] == asked[1]
    assert asked[0][1] == {"n": 7}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("ij->ji", A), "a view"),
        (("ij,j->i", np.ones((0, 6)), x), "no entries"),
        (("ij,j->i", feinsum.array("M", (3, 6)), x), "symbolic"),
    ],
)
def test_what_cannot_be_tuned_is_refused(call, words):
    """Before anything is searched for."""
    with pytest.raises(InvalidEinsumError, match=words):
        feinsum.tune(*call)


def test_sizes_are_by_name():
    """A number alone is refused before anything is searched for."""
    symbolic = feinsum.einsum("i->", feinsum.array("x", ("n",)))
    with pytest.raises(InvalidEinsumError, match="sizes=9; expected sizes by name"):
        feinsum.tune(symbolic, sizes=9)


def test_no_bar_is_shown_where_nobody_looks(monkeypatch, capsys):
    """Standard error of a test is no terminal."""
    monkeypatch.setattr("feinsum.tuning.tune_einsum", lambda *a, **k: None)
    feinsum.tune("ij,j->i", A, x)
    assert capsys.readouterr().err == ""
