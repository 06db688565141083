"""Programs on one node compute what the reference computes, in parts or at once."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from feinsum.ir import array
from feinsum.programs import (
    feed_forward_step,
    layer_norm,
    multi_head_attention,
    parts,
    program,
)
from feinsum.programs.stages import list_stages
from tests.portions import spread
from tests.programs.random_programs import assert_right, random_program


@pytest.fixture(params=["1", "3"])
def threads(request, monkeypatch):
    """And parts of one row."""
    monkeypatch.setenv("FEINSUM_NUM_THREADS", request.param)
    monkeypatch.setattr(parts, "PIECE_BYTES", 1)


@pytest.mark.parametrize("seed", spread(range(30), 6))
@pytest.mark.usefixtures("threads")
def test_random_programs(seed):
    given = random_program(random.Random(seed), 1 + seed % 6)
    assert_right(given, seed=seed)


@pytest.mark.usefixtures("threads")
def test_attention_at_run_time_sizes():
    """With a mask that uses the index that is cut."""
    p = program()
    X = p.input("X", ("s", 8))
    normed = layer_norm(p, X, p.input("g", 8), p.input("b", 8))
    multi_head_attention(p, normed, heads=2, entries=4, causal=True)
    for s in (1, 5):
        given = p.build()
        assert_right(given, s=s)


@pytest.mark.usefixtures("threads")
def test_a_step_of_training():
    p = program()
    X, Y = p.input("X", (7, 4)), p.input("Y", (7, 2))
    feed_forward_step(p, X, Y, [p.input("W1", (4, 9)), p.input("W2", (9, 2))], 0.1)
    assert_right(p.build())


def stages(p):
    return [
        [one.result for one in stage.statements] for stage in list_stages(p.build())
    ]


def test_an_array_beside_its_transpose_is_not_cut():
    """A row of the one needs a column of the other."""
    p = program()
    X = p.map("exp(x0)", array("X", (4, 4)), name="E")
    p.einsum("ij,ji->ij", X, X, body="x0 - x1", name="D")
    assert stages(p) == [["E"], ["D"]]
    assert_right(p.build())


def test_what_reduces_the_index_that_is_cut_is_another_stage():
    p = program()
    E = p.map("exp(x0)", array("X", (4, 5)), name="E")
    p.reduce("max", E, axis=1, name="of_rows")
    p.reduce("max", E, axis=0, name="of_columns")
    assert stages(p) == [["E", "of_rows"], ["of_columns"]]
    assert_right(p.build())


@pytest.mark.usefixtures("threads")
def test_empty_arrays():
    p = program()
    p.softmax(p.einsum("ij,kj->ik", array("A", ("n", 3)), array("B", (2, 3))))
    for n in (0, 1):
        assert_right(p.build(), n=n)


def test_what_passes_within_a_stage_never_exists_as_a_whole(monkeypatch):
    """Of four maps in a row one result is stored; each thread has parts of its own."""
    monkeypatch.setenv("FEINSUM_NUM_THREADS", "1")
    n = 1 << 20
    p = program()
    X = p.input("X", n)
    for _ in range(4):
        X = p.map("0.5*x0 + 1", X)
    x = np.zeros(n)
    tracemalloc.start()
    p.run(X=x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.7 * x.nbytes
