"""Kernels in the words of real programs, with a recipe for every nest, stay right."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.retrieval import look_up
from tests.raising.programs import HAND_WRITTEN
from tests.raising.test_programs import on_device
from tests.retrieval.test_whole_kernels import facts_for


@pytest.mark.filterwarnings(
    "ignore:.*with implicit conversion of self:DeprecationWarning"
)
@pytest.mark.parametrize(
    "name", [n for n in HAND_WRITTEN if n.startswith("DG") and HAND_WRITTEN[n].einsums]
)
def test_every_nest_of_a_program_gets_a_recipe(name):
    """Nests that share their loop over elements run one after the other."""
    program = HAND_WRITTEN[name]
    unit, arguments = program.kernel(), program.arguments()
    found = look_up(unit, database=facts_for(unit))
    assert not found.unchanged
    expected, results = (on_device(x, arguments) for x in (unit, found.t_unit))
    for output, value in expected.items():
        np.testing.assert_allclose(results[output], value, rtol=1e-12, err_msg=output)
