"""Plans that people make by hand, and EinDecomp's, counted and run."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.decompose import decompose
from benchmarks.papers.program_plans import (
    make_program_plans,
    plan_decomposition,
    split_square,
)
from feinsum.programs import (
    chain,
    evaluate_program,
    feed_forward_step,
    multi_head_attention,
    program,
)
from tests.programs.random_programs import numbers


def attention(tokens, features, heads, entries):
    p = program()
    X = p.input("X", (tokens, features))
    multi_head_attention(p, X, heads=heads, entries=entries)
    return p.build()


SPLITS = {"heads": [("WQ", 1)], "tokens": [("X", 0)], "features": [("WQ", 0)]}


@pytest.mark.parametrize("tokens", [1024, 4096])
def test_attention_of_a_large_model_moves_less_than_by_any_other_plan(tokens):
    """4096 features, 32 heads of 128, on 8 processes; all counted."""
    found = make_program_plans(attention(tokens, 4096, 32, 128), 8, SPLITS)
    planned = found["planned"].moved
    assert min(one.moved for one in found.values()) == planned
    assert found["heads"].moved / planned >= 1.25
    assert found["eindecomp"].moved / planned >= 1.3
    assert found["linear"].model >= found["eindecomp"].model


@pytest.mark.usefixtures("numpy_computes_blocks")
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("kind", ["attention", "step", "chain"])
def test_every_named_plan_computes_the_reference(kind, processes):
    """And none moves less than the planned one."""
    splits = {}
    if kind == "attention":
        given, splits = attention(9, 8, 4, 2), SPLITS
    else:
        p = program()
        if kind == "step":
            feed_forward_step(
                p,
                p.input("X", (8, 6)),
                p.input("T", (8, 4)),
                [p.input("W1", (6, 12)), p.input("W2", (12, 4))],
                rate=0.1,
            )
            splits = {"data": [("X", 0)], "megatron": [("W1", 1)]}
        else:
            chain(p, *(p.input(name, (6, 6)) for name in "ABC"))
        given = p.build()
    arrays = numbers(given)
    expected = evaluate_program(given, arrays)
    found = make_program_plans(given, processes, splits)
    for name, one in found.items():
        assert found["planned"].moved <= one.moved, name
        outputs = one.plan.simulate(arrays)
        for output, wanted in expected.items():
            assert np.allclose(outputs[output], wanted), (name, output)


def test_what_a_decomposition_moves_is_below_its_cost():
    """The cost of the paper is an upper bound of what is counted."""
    given = attention(16, 16, 4, 4)
    for processes in (2, 4, 8):
        for one in (decompose(given, processes), split_square(given, processes)):
            assert plan_decomposition(one, processes).counts.moved <= one.cost
