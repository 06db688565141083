"""Kernels of one cell, as a form compiler writes them, and where they are called."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest
from constantdict import constantdict
from pymbolic import var

from feinsum import explain, raise_kernel, retrieve
from feinsum.errors import TransformError
from feinsum.memory import use_fresh_memory
from feinsum.records import InMemoryStore
from feinsum.retrieval.result import NOTHING_FASTER
from feinsum.targets.host import HostCTarget
from tests.docs.pages import ROOT
from tests.raising.cells import KERNELS
from tests.raising.local_kernels import arguments
from tests.raising.stokes import STOKES
from tests.raising.wrappers import mesh, wrapped_unit
from tests.retrieval.oracle import Oracle
from tests.retrieval.runs import call_in_c
from tests.retrieval.support import ESTIMATED, predicted
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS


@pytest.mark.parametrize(
    "make", [KERNELS["Laplace of order 2"], STOKES["residual"]], ids=["Laplace", "flow"]
)
def test_a_cell_is_computed_in_one_function(make, tmp_path):
    """All nests have recipes, one phase after the other, without threads."""
    unit = make()
    found = predicted(unit)
    assert all(nest.chosen for nest in found.nests)
    kernels = unit.default_entrypoint, found.t_unit.default_entrypoint
    before, after = ([arg.name for arg in kernel.args] for kernel in kernels)
    assert before == after
    assert_same(unit, found.t_unit, tmp_path)


def assert_same(unit, other, folder):
    """Two functions of C compute the same."""
    arrays = arguments(unit)
    expected, found = (
        call_in_c(one, arrays, folder / f"{k}") for k, one in enumerate((unit, other))
    )
    np.testing.assert_allclose(found["A"], expected["A"], 1e-11, 1e-11)


class Twice(lp.ScalarCallable):
    """A function of its user's, with its text."""

    def with_types(self, arg_id_to_dtype, clbl_inf_ctx):
        dtypes = {0: arg_id_to_dtype[0], -1: arg_id_to_dtype[0]}
        known = self.copy(name_in_target="twice", arg_id_to_dtype=constantdict(dtypes))
        return known, clbl_inf_ctx

    def generate_preambles(self, target):
        yield "20_twice", "static double twice(double x) { return OWN*x; }"


def test_callables_and_preambles_are_kept(tmp_path):
    """A function that only its user knows, and what the user has before all code."""
    unit = KERNELS["mass of order 1"]()
    kernel = unit.default_entrypoint
    instructions = [
        insn.copy(expression=var("twice")(var("det"))) if insn.id == "absdet" else insn
        for insn in kernel.instructions
    ]
    kernel = kernel.copy(
        instructions=instructions, preambles=(("10_own", "#define OWN 2"),)
    )
    unit = lp.register_callable(unit.with_kernel(kernel), "twice", Twice("twice"))
    found = predicted(unit)
    assert found.applied
    assert_same(unit, found.t_unit, tmp_path)


def test_values_of_tables_are_in_the_code_and_not_in_the_key():
    """Kernels that differ in them have one workload and one recipe, and each its own
    code, also from memory. Tables stay constants, which a compiler folds.
    """
    unit = KERNELS["mass of order 1"]()
    kernel = unit.default_entrypoint
    doubled = {
        name: old
        if old.initializer is None
        else old.copy(initializer=2 * old.initializer)
        for name, old in kernel.temporary_variables.items()
    }
    other = unit.with_kernel(kernel.copy(temporary_variables=doubled))
    database = InMemoryStore()
    with use_fresh_memory():
        first, second = (predicted(u, database=database) for u in (unit, other))
        results = [retrieve(u, database=database, **ESTIMATED) for u in (unit, other)]
    assert first.applied == second.applied != ()
    assert [n.nest.key for n in first.nests] == [n.nest.key for n in second.nests]
    for given, result in zip((unit, other), results, strict=True):
        code = lp.generate_code_v2(result).device_code()
        for table in given.default_entrypoint.temporary_variables.values():
            if table.initializer is not None:
                values = ", ".join(map(repr, table.initializer.ravel().tolist()))
                assert f" {table.name}[" in code
                assert f"{{ {values} }}" in code


def test_where_nothing_is_faster_the_kernel_comes_back(tmp_path, monkeypatch):
    """Every recipe is timed here against the loops; what gains nothing is not taken."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    oracle = Oracle(tmp_path, monkeypatch)
    oracle.says(**{"@": (1e-6, 1e-6)})
    unit = KERNELS["Laplace of order 1"]()
    options = {**ESTIMATED, "database": InMemoryStore(), "verify": True}
    with use_fresh_memory():
        found = predicted(unit, **options)
        again = retrieve(unit, on_miss="return", **options)
    assert oracle.compared
    assert found.t_unit is unit
    assert again is unit
    assert all(NOTHING_FASTER in nest.why_unchanged for nest in found.nests)


def wrapped():
    """A Helmholtz operator on triangles in the loop that PyOP2 writes around it."""
    return wrapped_unit(KERNELS["Helmholtz action of order 2"](), 2, 3)


def test_the_kernel_that_is_called_gets_its_recipes(tmp_path):
    """The caller is as it was, and the whole computes the same."""
    unit = wrapped()
    found = predicted(unit)
    assert len(found.applied) == len(found.nests) == 4
    callers = unit.default_entrypoint, found.t_unit.default_entrypoint
    assert callers[0].instructions == callers[1].instructions
    assert callers[0].args == callers[1].args
    arrays = mesh(unit)
    expected = call_in_c(unit, arrays, tmp_path / "before")["out"]
    assert not np.allclose(expected, arrays["out"])
    result = call_in_c(found.t_unit, arrays, tmp_path / "after")["out"]
    np.testing.assert_allclose(result, expected, 1e-12, 1e-12)


def test_recipes_that_do_not_fit_the_caller_are_left_out(monkeypatch):
    """The reason is told, and cells may still be computed together.

    Some recipes of the Laplacian on hexahedra do not fit; which, is up to timings.
    """

    def unfit(given, unit):
        raise TransformError("kernel 'cell' does not fit its caller: no loop nesting")

    monkeypatch.setattr("feinsum.retrieval.generating.put_in_caller", unfit)
    unit = wrapped()
    found = predicted(unit)
    assert found.applied == ()
    for nest in found.nests:
        assert "does not fit its caller" in nest.failures[-1][1]
    assert found.t_unit is unit


def test_without_a_recipe_the_unit_comes_back():
    """Nothing of it is another one."""
    unit = wrapped()
    assert predicted(unit, effort="recorded").t_unit is unit
    assert "raised: " in explain(unit, database=InMemoryStore(), **ESTIMATED)


def test_raising_says_what_it_is():
    """A loop over cells that calls a kernel; its packing is raised."""
    raised = raise_kernel(wrapped())
    rules = {refused.instructions[0]: refused for refused in raised.refused}
    assert rules["call"].rule == "call"
    assert "'cell_integral'" in rules["call"].reason


def test_for_threads_the_call_is_refused():
    """A kernel that is called cannot have threads of its own."""
    unit = wrapped().copy(target=HostCTarget())
    found = predicted(unit)
    assert "call" in {refused.rule for refused in found.raised.refused}
