"""Whatever is raised is what the kernel computes; all else is refused."""

from __future__ import annotations

import numpy as np
from hypothesis import given, note, reject

from feinsum import raise_kernel
from tests.raising import almost
from tests.raising.interpreter import run, run_raised
from tests.strategies import counts


def assert_sound(domains, text):
    """The kernel and the kernel with its nests evaluated as einsums do the same."""
    try:
        unit = almost.build(domains, text)
        arrays = almost.arguments()
        expected = run(unit, arrays)
    except Exception:  # noqa: BLE001  # no kernel: Loopy raises errors of many kinds
        reject()
    raised = raise_kernel(unit)
    found = run_raised(raised.t_unit, raised.raised, arrays)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12)
    return raised


@given(almost.texts())
@counts(100, 5_000)
def test_a_random_kernel_is_raised_rightly_or_refused(kernel):
    """No kernel is taken for an einsum that it is not."""
    note(kernel[1])
    assert_sound(*kernel)
