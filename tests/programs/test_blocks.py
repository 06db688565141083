"""Stages that run in blocks compute the same, in less memory."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from feinsum.calling.kernel_cache import Calls
from feinsum.memory import get_remembered, use_fresh_memory
from feinsum.programs import attention, program, run_program
from feinsum.programs import blocks as blocks_module
from feinsum.programs.blocks import list_blocks
from feinsum.select import MAX_ROUNDS
from tests.portions import spread
from tests.programs.random_programs import assert_right, numbers, random_program


@pytest.fixture
def small(monkeypatch):
    """Blocks of few entries, whatever they cost."""
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 100)
    monkeypatch.setattr(blocks_module, "MIN_ROWS", 2)
    monkeypatch.setattr(blocks_module, "STATEMENT_S", 0.0)
    monkeypatch.setattr(blocks_module, "CACHED_BYTES_PER_S", 1e30)
    blocks_module._choose_blocks.cache_clear()
    yield
    blocks_module._choose_blocks.cache_clear()


def causal(tokens, heads=3, entries=4):
    p = program()
    Q, K, V = (p.input(name, (tokens, heads, entries)) for name in "QKV")
    attention(p, Q, K, V, causal=True)
    return p.build()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("threads", ["1", "3"])
def test_attention_with_a_mask_in_ragged_blocks(threads, monkeypatch):
    """The mask uses an index that is cut."""
    monkeypatch.setenv("FEINSUM_NUM_THREADS", threads)
    for tokens in (1, 7):
        given = causal(tokens)
        if tokens == 7:
            (block,) = list_blocks(given, {})
            assert [(cut.extent, cut.length) for cut in block.cuts] == [(3, 1), (7, 2)]
        assert_right(given)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", spread(range(200), 8))
def test_random_programs(seed):
    given = random_program(random.Random(seed), 2 + seed % 5)
    assert_right(given, seed=seed)


@pytest.mark.usefixtures("small")
def test_random_programs_have_blocks():
    given = [random_program(random.Random(seed), 2 + seed % 5) for seed in range(50)]
    assert sum(any(x.cuts for x in list_blocks(one, {})) for one in given) > 2


@pytest.mark.usefixtures("small")
def test_sizes_of_run_time():
    p = program()
    Q, K, V = (p.input(name, ("n", 2, 4)) for name in "QKV")
    attention(p, Q, K, V)
    for n in (1, 5):
        assert_right(p.build(), n=n)


def test_scores_never_exist_as_a_whole(monkeypatch):
    """Nor the weights: 16 heads in blocks take far less than one array of them."""
    monkeypatch.setenv("FEINSUM_NUM_THREADS", "1")
    monkeypatch.setenv("FEINSUM_IDLE_BYTES", "0")
    given = causal(tokens=384, heads=16, entries=16)
    arrays = numbers(given)
    with use_fresh_memory():
        run_program(given, arrays)  # kernels and numpy's own memory
        tracemalloc.start()
        found = run_program(given, arrays)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    scores = 16 * 384 * 384 * np.dtype(float).itemsize
    (result,) = found.values()
    assert peak < result.nbytes + 0.5 * scores


@pytest.mark.usefixtures("small")
def test_the_faster_of_parts_and_wholes_is_kept():
    """Both compute the same, and every run a right result."""
    given = causal(7)
    arrays = numbers(given)
    with use_fresh_memory():
        for _ in range(2 * MAX_ROUNDS + 2):
            assert_right(given, arrays)
        choices = get_remembered(Calls).choices.values()
        (choice,) = (x for x in choices if not x.least_s)  # no compiled stage
        assert choice.is_over
        assert choice.trial.baseline_s


def test_products_that_would_be_slower_in_blocks_are_whole():
    """Layers whose weights every block would read again run layer by layer."""
    p = program()
    shapes = {"X": (512, 1024), "V": (1024, 4096), "W": (4096, 1024)}
    X, V, W = (p.input(name, shape) for name, shape in shapes.items())
    hidden = p.map("exp(x0)", p.einsum("ni,ij->nj", X, V))
    p.einsum("nj,jk->nk", hidden, W)
    assert all(not block.cuts for block in list_blocks(p.build(), {}))
