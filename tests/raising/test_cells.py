"""Kernels of one cell on four shapes of cells are einsums."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum import raise_kernel
from tests.raising.cells import CELLS, FORMS
from tests.raising.interpreter import run, run_raised
from tests.raising.local_kernels import arguments
from tests.raising.test_local_kernels import without_mark
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", CELLS)
def test_the_sums_over_functions_are_raised(form, cell):
    """What is refused has no loop over functions; the result is the kernel's."""
    unit = FORMS[form](CELLS[cell], 1)
    raised = raise_kernel(unit)
    kernel = raised.t_unit.default_entrypoint
    assert raised.raised
    for refused in raised.refused:
        (insn_id,) = refused.instructions
        assert kernel.id_to_insn[insn_id].within_inames <= {"ip"}
    arrays = arguments(unit)
    expected = run(without_mark(unit), arrays)
    found = run_raised(raised.t_unit, raised.raised, arrays)
    np.testing.assert_allclose(found["A"], expected["A"], 1e-11, 1e-11)
