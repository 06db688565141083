"""A kernel of one cell inside of a loop over cells: it is found where it is called."""

from __future__ import annotations

import numpy as np

from feinsum import explain, raise_kernel
from feinsum.errors import TransformError
from feinsum.records import InMemoryStore
from feinsum.targets.host import HostCTarget
from tests.raising.local_kernels import KERNELS
from tests.raising.wrappers import mesh, wrapped_unit
from tests.retrieval.runs import call_in_c
from tests.retrieval.support import ESTIMATED, predicted
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS


def wrapped():
    """A Helmholtz operator on triangles in the loop that PyOP2 writes around it."""
    return wrapped_unit(KERNELS["helmholtz_action of order 2"](), 2, 3)


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

    monkeypatch.setattr("feinsum.retrieval.generating.in_caller", unfit)
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
