"""What is fused computes what its statements compute, and stores nothing between."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from feinsum.calling import clear_call_cache
from feinsum.calling.kernel_cache import Calls
from feinsum.errors import ProgramError
from feinsum.ir import array, evaluate_body
from feinsum.memory import get_remembered, use_fresh_memory
from feinsum.programs import Program, evaluate_program, program, run_program
from feinsum.programs import blocks as blocks_module
from feinsum.programs import fusion as fusion_module
from feinsum.programs.blocks import list_blocks
from feinsum.programs.fusion import (
    KernelChoice,
    find_fusions,
    get_choice,
    get_fused_name,
)
from feinsum.select import MAX_ROUNDS
from tests.portions import spread
from tests.programs.random_programs import assert_right, numbers


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch):
    monkeypatch.setattr(fusion_module, "MIN_BYTES", 0)
    monkeypatch.setattr(fusion_module, "MIN_SHARE", 0)
    blocks_module._choose_blocks.cache_clear()
    yield
    blocks_module._choose_blocks.cache_clear()


MAPS = ("0.5*(x0 - x1)", "max(x0, 0.0) + x1/2", "x0 if i <= k else -x1", "-x0*x1")
FINISHES = ("x1 - 0.5*x0", "x0/4 + x1", "x1 - x0*x1", "x0*x0 + x1", "2*(x1 - x0) + x0")


def random_fusible(source: random.Random, n: int) -> Program:
    """Maps, contractions of them, maps of their results; some share a matrix, some read
    what others made.
    """
    p = program()
    extents = {i: source.choice((1, 3, 7)) for i in "ijk"}

    def given(name, term):
        return p.input(name, tuple(extents[i] for i in term))

    before = None
    for k in range(n):
        matrix = given("A" if source.random() < 0.6 else f"A{k}", "ij")
        operand = p.einsum(
            "jk,jk->jk",
            before if before and source.random() < 0.5 else given(f"u{k}", "jk"),
            given(f"v{k}", "jk"),
            body=source.choice(MAPS).replace("i <= k", "j <= k"),
        )
        factor = source.choice(("", "-2*x0*x1"))
        summed = p.einsum("ij,jk->ik", matrix, operand, body=factor)
        turned = source.random() < 0.5
        other = (
            p.einsum("ij,jk->ki" if turned else "ij,jk->ik", matrix, given("B", "jk"))
            if source.random() < 0.3
            else given(f"w{k}", "ki" if turned else "ik")
        )
        terms = "ik,ki->ki" if turned else "ik,ik->ik"
        result = p.einsum(terms, summed, other, body=source.choice(FINISHES))
        before = None if turned or extents["i"] != extents["j"] else result
    return p.build()


def by_points(program, fusion, arrays):
    """The results of a fusion as its rows say, with all products formed."""
    found = {}
    for row in fusion.rows:
        one = row.contraction
        extents = {row.indices[i]: n for i, n in program.extents(one).items()}
        grid = np.indices(tuple(extents.values()), sparse=True)
        names = dict(zip(extents, grid, strict=True))
        names |= {get_fused_name(name): arrays[name] for name in fusion.operands}
        product = 1.0
        for factor in row.factors():
            product = product * evaluate_body(factor, names)
        whole = np.broadcast_to(product, tuple(extents.values()))
        n_free = len(one.output)
        total = whole.sum(axis=tuple(range(n_free, whole.ndim)))
        free = np.indices(total.shape, sparse=True)
        names |= dict(zip([*extents][:n_free], free, strict=True))
        scale, shift = (evaluate_body(text, names) for text in row.scale_and_shift())
        result = np.broadcast_to(shift + scale * total, total.shape)
        if row.finish is not None:
            term = row.finish.inputs[row.finish.operands.index(one.result)]
            result = result.transpose([term.index(i) for i in row.finish.output])
        found[row.last.result] = result
    return found


@pytest.mark.parametrize("seed", spread(range(120), 6))
def test_rows_mean_what_their_statements_mean(seed):
    given = random_fusible(random.Random(seed), 1 + seed % 3)
    arrays = numbers(given, seed)
    known = dict(arrays)
    for one in given.statements:
        known |= evaluate_program(
            Program(tuple(given.arrays[n] for n in dict.fromkeys(one.operands)), (one,),
                    (one.result,)),
            {n: known[n] for n in one.operands},
        )  # fmt: skip
    fusions = find_fusions(given, given.statements, {})
    fused = [one.result for fusion in fusions for one in fusion.statements]
    assert len(set(fused)) == len(fused) > 1
    for fusion in fusions:
        for name, result in by_points(given, fusion, known).items():
            np.testing.assert_allclose(result, known[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", spread(range(120), 6))
def test_every_array_is_there_when_it_is_read(seed):
    """Statement by statement, in the order in which fusions run."""
    given = random_fusible(random.Random(seed), 1 + seed % 3)
    assert any(block.fusion for block in list_blocks(given, {}))
    with use_fresh_memory():
        assert_right(given)


def lifting(dtype="float64", n="n"):
    """Two fields of a discontinuous Galerkin method: their fluxes are lifted."""
    p = program()
    L = p.input("L", (20, 10), dtype)
    for c in "xy":
        flux = p.map("0.5*(x0 - x1)", *(p.input(a + c, (n, 10), dtype) for a in "uv"))
        lifted = p.einsum("ij,ej->ei", L, flux)
        p.map("x1 - 2*x0", lifted, p.input("w" + c, (n, 20), dtype), name="r" + c)
    return p.build()


@pytest.mark.parametrize("dtype", spread(["float64", "float32"], 1))
def test_a_batch_runs_as_one_kernel(dtype, monkeypatch, tmp_path):
    """With its maps and finishes, at sizes that no tile divides: nothing is stored but
    the results, and no database has to exist.
    """
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "not-yet.sqlite"))
    monkeypatch.setenv("FEINSUM_EFFORT", "estimate")
    monkeypatch.setenv("FEINSUM_VERIFY", "off")  # the run itself compares the results
    given = lifting(dtype)
    arrays = {k: x.astype(dtype) for k, x in numbers(given, n=1237).items()}
    with use_fresh_memory():
        for _ in range(2 * MAX_ROUNDS + 2):
            found = run_program(given, arrays)
            for name, right in evaluate_program(given, arrays).items():
                np.testing.assert_allclose(found[name], right, rtol=1e-4, atol=1e-4)
        choices = get_remembered(Calls).choices.values()
        assert len([x for x in choices if not x.least_s]) == 1
        (block,) = list_blocks(given, {"n": 1237})
        choice = get_choice(given, block.fusion, {"n": 1237})
        assert choice.is_over
        assert choice.trial.baseline_s
        kernel = choice.build()
        operands = {name: arrays[name] for name in block.fusion.operands}
        tracemalloc.start()
        results = kernel(operands)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    wanted = sum(x.nbytes for x in results.values())
    assert peak < 1.2 * wanted + 1e5
    for name, right in evaluate_program(given, arrays).items():
        np.testing.assert_allclose(results[name], right, rtol=1e-4, atol=1e-4)


def test_what_others_read_is_not_fused():
    """Nor what is wanted, what is no cheap function, and what is reduced."""
    p = program()
    A, u = array("A", (3, 4)), array("u", (4, 5))
    wanted = p.output(p.map("2*x0", u, name="wanted"))
    p.output(p.einsum("ij,jk->ik", A, wanted, name="r"))
    costly = p.map("exp(x0)", u, name="costly")
    p.output(p.einsum("ij,jk->ik", A, costly, name="s"))
    twice = p.map("3*x0", u, name="twice")
    p.output(p.einsum("ij,jk->ik", A, twice, name="t"))
    p.output(p.einsum("jk->k", twice, reduction="max", name="largest"))
    given = p.build()
    for fusion in find_fusions(given, given.statements, {}):
        assert {one.result for one in fusion.statements} <= {"r", "s", "t"}


def test_rows_wait_for_no_reader():
    """A row whose result is read before the next one is there is no row of a batch."""
    p = program()
    A, x = array("A", (4, 4)), array("x", (4, 5))
    first = p.einsum("ij,jk->ik", A, x)
    p.einsum("ij,jk->ik", A, first)
    given = p.build()
    assert all(len(f.rows) == 1 for f in find_fusions(given, given.statements, {}))
    assert_right(given)


def test_a_kernel_that_is_wrong_or_cannot_be_built_is_not_used(caplog):
    """The results are those of the statements."""
    right = {"y": np.arange(3.0)}

    def failing():
        raise ProgramError("no kernel")

    for build in (failing, lambda: lambda _: {"y": np.zeros(3)}):
        choice = KernelChoice(build)
        for _ in range(4):
            assert choice.run({}, lambda: dict(right))["y"] is right["y"]
        assert choice.is_over
        assert choice.kernel is None
    assert "gives different results" in caplog.text


def test_a_cleared_cache_forgets_fused_kernels():
    """The next run looks for new facts."""
    given = lifting("f8")
    (block,) = list_blocks(given, {"n": 1237})
    with use_fresh_memory():
        choice = get_choice(given, block.fusion, {"n": 1237})
        assert get_choice(given, block.fusion, {"n": 1237}) is choice
        clear_call_cache()
        assert get_choice(given, block.fusion, {"n": 1237}) is not choice
