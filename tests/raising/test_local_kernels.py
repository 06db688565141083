"""Kernels of one cell, as a form compiler writes them, are einsums.

On triangles, and on three other shapes of cells.
"""

from __future__ import annotations

from itertools import product

import loopy as lp
import numpy as np
import pytest

from feinsum import raise_kernel
from tests.portions import spread
from tests.raising.cells import CELLS, FORMS, KERNELS
from tests.raising.interpreter import run, run_raised
from tests.raising.local_kernels import arguments
from tests.raising.stokes import STOKES
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

N_NESTS = {
    "mass": 1,
    "Laplace": 2,
    "Helmholtz action": 4,
    "factorized mass action": 4,
    "velocities": 6,
    "divergence": 2,
    "all blocks": 10,
    "residual": 8,
}
ALL = {**KERNELS, **STOKES}


@pytest.mark.parametrize("name", spread(ALL, 6))
def test_all_loops_of_a_cell_are_einsums(name):
    """What is left are scalars outside of all loops; the result is the kernel's."""
    unit = ALL[name]()
    raised = raise_kernel(unit)
    assert len(raised.raised) == N_NESTS[name.split(" of ")[0]]
    kernel = raised.t_unit.default_entrypoint
    for refused in raised.refused:
        assert refused.rule == "no-operand"
        assert not kernel.id_to_insn[refused.instructions[0]].within_inames
    assert_same(unit, raised)


@pytest.mark.parametrize(("form", "cell"), spread(product(FORMS, [*CELLS][1:]), 4))
def test_the_sums_over_functions_are_raised(form, cell):
    """What is refused has no loop over functions; the result is the kernel's."""
    unit = FORMS[form](CELLS[cell], 1)
    raised = raise_kernel(unit)
    kernel = raised.t_unit.default_entrypoint
    assert raised.raised
    for refused in raised.refused:
        (insn_id,) = refused.instructions
        assert kernel.id_to_insn[insn_id].within_inames <= {"ip"}
    assert_same(unit, raised)


def assert_same(unit, raised):
    """Its einsums compute what the kernel does."""
    arrays = arguments(unit)
    # the interpreter does not know the mark at the end
    kernel = unit.default_entrypoint
    left = [insn for insn in kernel.instructions if insn.id != "end"]
    expected = run(unit.with_kernel(kernel.copy(instructions=left)), arrays)
    found = run_raised(raised.t_unit, raised.raised, arrays)
    np.testing.assert_allclose(found["A"], expected["A"], 1e-11, 1e-11)


@pytest.mark.parametrize("name", ["mass of order 1", "divergence"])
def test_local_memory_of_plain_c_is_private(name):
    """TSFC declares all that is private to a cell in local memory."""
    unit = ALL[name]()
    kernel = unit.default_entrypoint
    names = [t.name for t in kernel.temporary_variables.values() if not t.read_only]
    kernel = lp.set_temporary_address_space(kernel, names, "local")
    raised = raise_kernel(unit.with_kernel(kernel))
    assert [nest.key for nest in raised.raised] == [
        nest.key for nest in raise_kernel(unit).raised
    ]


def test_outputs_that_add_to_what_is_there_keep_it():
    """The shift is the entry itself, and constants are operands."""
    raised = raise_kernel(KERNELS["mass of order 1"]())
    (nest,) = raised.raised
    assert [str(shift) for shift in nest.shift] == ["A[j, k]"]
    bodies = {function.body for function in nest.functions.values()}
    assert bodies == {"p[_0, _1]", "w[_0]"}
