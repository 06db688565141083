"""Programs on many processes: right whatever the reduction."""

from __future__ import annotations

import random

import numpy as np
import pytest

from feinsum.distributed import plan_program
from feinsum.errors import ProgramError
from feinsum.ir import array
from feinsum.ir.reductions import REDUCTIONS, combine, find_neutral
from feinsum.programs import (
    evaluate_program,
    multi_head_attention,
    program,
)
from tests.portions import spread
from tests.programs.random_programs import assert_right as assert_as_reference
from tests.programs.random_programs import numbers, random_program


def assert_right(made, arrays):
    assert_as_reference(made.program, arrays, made.simulate)


def on_processes(n):
    """Attention with a mask on processes, its inputs and its results."""
    p = program()
    X = p.input("X", (9, 8))
    multi_head_attention(p, X, heads=2, entries=4, causal=True)
    made = p.plan(n)
    arrays = numbers(made.program)
    return made, arrays, evaluate_program(made.program, arrays)


@pytest.mark.parametrize("seed", spread(range(25), 8))
def test_random_programs(seed):
    """Random programs with any reductions give the reference's results."""
    given = random_program(random.Random(seed), 1 + seed % 5)
    made = plan_program(given, processes=[2, 3, 4][seed % 3])
    assert_right(made, numbers(given, seed))


@pytest.mark.usefixtures("numpy_computes_blocks")
@pytest.mark.parametrize("processes", [1, 2, 6])
def test_attention_with_a_mask_at_run_time_sizes(processes):
    p = program()
    X = p.input("X", ("s", 8))
    multi_head_attention(p, X, heads=2, entries=4, causal=True)
    made = p.plan(processes, sizes={"s": 7})
    assert_right(made, numbers(made.program, s=7))


@pytest.mark.usefixtures("numpy_computes_blocks")
@pytest.mark.parametrize("processes", [5, 64])
def test_processes_that_divide_no_extent(processes):
    """Ragged parts and idle processes give the reference's result."""
    made, arrays, _ = on_processes(processes)
    assert_right(made, arrays)


@pytest.mark.parametrize("reduction", [*REDUCTIONS, "a + b - a*b"])
def test_partial_results_of_every_reduction(reduction):
    """Partial results of every reduction combine, if only its index is partitioned."""
    p = program()
    body = "x0 > 0" if reduction in ("any", "all") else ""
    p.einsum("ij->i", array("X", (1, 64)), body=body, reduction=reduction, name="r")
    made = p.plan(4)
    assert made.counts.reduced > 0
    assert_right(made, numbers(made.program))


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "u1", "?"])
def test_a_neutral_element_changes_nothing(dtype):
    values = np.array([0, 1, 1, 0], dtype)
    for reduction in REDUCTIONS:
        neutral = np.full(4, find_neutral(reduction, np.dtype(dtype)), dtype)
        assert (combine(reduction, neutral, values) == values).all(), reduction


def test_a_reduction_without_a_known_neutral_element_is_refused():
    p = program()
    p.einsum("ij->i", array("X", (1, 64)), reduction="a + b + 2.5", name="r")
    made = p.plan(4)
    with pytest.raises(ProgramError, match=r"'a \+ b \+ 2.5' has no neutral"):
        made.simulate(numbers(made.program))


LLAMA = {1024: 41_943_040, 4096: 159_383_552}
"""Elements moved on 8 processes by tokens: 4096 features, 32 heads of 128."""


@pytest.mark.parametrize(("tokens", "moved"), LLAMA.items())
def test_attention_of_a_large_model_moves_less_than_by_heads(tokens, moved):
    """Attention of a large model moves less than with a split by heads."""
    p = program()
    multi_head_attention(p, p.input("X", (tokens, 4096)), heads=32, entries=128)
    assert p.plan(8).counts.moved <= moved


def test_a_missing_size_is_refused():
    p = program()
    p.map("exp(x0)", array("X", ("n", 4)))
    with pytest.raises(ProgramError, match="size n has no value"):
        p.plan(2)


def test_the_text_of_a_plan_has_the_statements():
    """The text of a program plan has its statements, with their own index names."""
    p = program()
    x, h = p.input("x", (6, 4)), p.input("h", (6, 4))
    p.map("x0 - tanh(x1)", p.einsum("bd,ed->be", x, h), p.einsum("bd,ed->be", h, x))
    text = str(p.plan(3))
    assert all(str(one) in text for one in p.build().statements)
    assert "cuts b\n" in text
    assert "x starts as bd->" in text
    assert "r0_" not in text
