"""Maps in place: into the memory of what nothing reads any more, and nothing else."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from feinsum.ir import array, evaluate_body, evaluate_into
from feinsum.programs import feed_forward_step, parts, program
from feinsum.programs import local as local_engine
from feinsum.programs.choice import KernelChoice
from feinsum.programs.local import find_overwritten
from feinsum.programs.stages import list_stages
from tests.portions import spread
from tests.programs.random_programs import assert_right, numbers, random_program

BODIES = (
    "x",
    "exp(x - y)",
    "y - 2*x",
    "x*x + x",
    "(y + 1) * (x - y) / (2 + y*y)",
    "0.5*x + exp(y)*x",
    "x if y > 0 else 0.0*x",
    "y if x > 0 else -inf",
    "(x if x > y else y) - x",
    "max(x, r) + r",
    "sqrt(abs(r)) - r*x",
    "x**2 - (x if i > 1 else r)",
    "i - x",
    "x > y",
    "1.5",
)


ORDERED = ("max", "abs", "sqrt", ">")
"""What complex numbers do not have."""


@pytest.mark.parametrize("body", BODIES)
def test_a_body_in_place_has_the_same_value(body):
    """Whichever array is overwritten, and though others are smaller."""
    for dtype, spent in product(("f4", "f8", "c16"), ("", "x", "y")):
        if dtype == "c16" and any(word in body for word in ORDERED):
            continue
        source = np.random.default_rng(0)
        x, y = source.uniform(-1, 1, (2, 5, 4)).astype(dtype)
        names = {"x": x, "y": y, "r": y[:1].copy(), "i": np.arange(5)[:, None]}
        names["inf"] = np.inf
        expected = np.broadcast_to(evaluate_body(body, names), x.shape).astype(dtype)
        out = names[spent] if spent else np.empty_like(x)
        evaluate_into(body, names, out, spent)
        np.testing.assert_allclose(out, expected, 1e-6)


@pytest.mark.parametrize("seed", spread(range(25), 8))
def test_inputs_and_outputs_stay(seed, monkeypatch):
    """Only what the program made, and nothing reads any more, is overwritten."""
    monkeypatch.setattr(parts, "PIECE_BYTES", 1)
    given = random_program(random.Random(seed), 6)
    arrays = numbers(given, seed)
    before = {name: one.copy() for name, one in arrays.items()}
    assert_right(given, arrays)
    for name, one in before.items():
        np.testing.assert_array_equal(arrays[name], one)


def test_what_is_read_transposed_is_not_overwritten_part_by_part():
    """A row of the one needs a column that an earlier part would have overwritten."""
    p = program()
    X = p.einsum("ik,kj->ij", array("A", (4, 4)), array("B", (4, 4)), name="X")
    turned = p.einsum("ij->ji", X, body="exp(x0)", name="T")
    p.einsum("ij,ij->ij", X, turned, body="x0 - x1", name="D")
    built = p.build()
    stage = list_stages(built)[-1]
    assert [one.result for one in stage.statements] == ["T", "D"]
    assert find_overwritten(built, stage, {"X"}) == {}
    assert_right(built)


def test_a_finish_takes_the_memory_of_its_product():
    """Of a step of training: the error, its way back, and the new weights."""
    p = program()
    X, Y = p.input("X", (7, 4)), p.input("Y", (7, 2))
    weights = [p.input("V", (4, 9)), p.input("W", (9, 2))]
    feed_forward_step(p, X, Y, weights, 0.1)
    built = p.build()
    found = {}
    for stage in list_stages(built):
        found |= find_overwritten(
            built, stage, {one.result for one in built.statements}
        )
    assert found == {"r1": 0, "r3": 0, "r5": 1, "r7": 0, "r9": 1}


def test_a_block_holds_what_it_still_reads_only(monkeypatch):
    """Once it runs stage by stage for good: its fused kernel or its parts lost."""
    monkeypatch.setenv("FEINSUM_NUM_THREADS", "2")
    lost = KernelChoice(lambda: None, is_over=True)
    cut = KernelChoice(lambda: None, is_over=True, kernel=lambda: None)
    monkeypatch.setattr(local_engine, "get_choice", lambda *_: lost)
    monkeypatch.setattr(local_engine, "get_shared_choice", lambda *_: cut)
    seen = {}
    stage = local_engine._Run.stage

    def watched(run, one, frame, spent):
        seen[one.statements[0].result] = {*frame.outside, *frame.inside}
        return stage(run, one, frame, spent)

    monkeypatch.setattr(local_engine._Run, "stage", watched)
    p = program()
    X, Y = p.input("X", (700, 500)), p.input("Y", (700, 500))
    weights = p.input("V", (500, 800)), p.input("W", (800, 500))
    for updated in feed_forward_step(p, X, Y, weights, 0.1):
        p.output(updated)
    built = p.build()
    assert_right(built)
    kept = {*built.outputs, *(x.name for x in built.inputs)}
    for k, one in enumerate(built.statements):
        read = {name for x in built.statements[k:] for name in x.operands}
        assert seen.get(one.result, set()) <= kept | read
