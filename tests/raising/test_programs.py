"""Kernels in the words of real programs are raised rightly, or refused by a rule."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum import raise_kernel
from feinsum.measure import compile_kernel, open_device
from tests.raising.interpreter import run_raised
from tests.raising.programs import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_raised_is_what_the_program_computes(name):
    """Every instruction is in a nest of the expected einsum, or breaks its rule. The
    kernel on the device, the kernel with its operands behind rules, and the reference
    values of its einsums agree.
    """
    program = PROGRAMS[name]
    unit, arguments = program.kernel(), program.arguments()
    raised = raise_kernel(unit)
    assert tuple(nest.einsum.subscripts for nest in raised.raised) == program.einsums
    refused = {nest.instructions: nest.rule for nest in raised.refused}
    assert refused == {(insn,): rule for insn, rule in program.refused.items()}
    if not raised.raised:
        return
    expected = on_device(unit, arguments)
    found = run_raised(raised.t_unit, raised.raised, arguments)
    again = on_device(raised.t_unit, arguments)
    for output, value in expected.items():
        np.testing.assert_allclose(found[output], value, rtol=1e-12, err_msg=output)
        np.testing.assert_allclose(again[output], value, rtol=1e-12, err_msg=output)


def on_device(unit, arguments):
    bound = compile_kernel(unit, open_device()).bind(arguments)
    bound.run()
    return bound.read()
