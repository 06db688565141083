"""Random kernels over all forms: whatever is raised of them is what they compute.

``pytest -m long`` runs 20,000 of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import loopy as lp
import numpy as np
import pytest
from hypothesis import Phase, given, note, reject, seed, settings
from hypothesis import strategies as st
from loopy.check import check_variable_access_ordered

from feinsum import raise_kernel
from tests.raising import almost, loops, parts, sums
from tests.raising.interpreter import Unschedulable, run, run_raised
from tests.raising.layouts import layouts
from tests.raising.spellings import Spelling, spellings
from tests.strategies import SIZES, counts
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

SHORT, LONG = 60, 20_000
"""How many kernels are tried in every run, and in a long one."""


@st.composite
def kernels(draw: st.DrawFn) -> tuple[Callable[[], lp.TranslationUnit], dict[str, Any]]:
    """How a kernel of any form is built, and arguments of it."""
    forms = ["row"] * 4 + ["loops"] * 2 + ["spelling", "parts", "sums"]
    forms += ["layout"] * 2
    match draw(st.sampled_from(forms)):
        case "row":
            domains, text = draw(almost.texts())
            note(f"{domains}\n{text}")
            return partial(almost.build, domains, text), almost.arguments()
        case "loops":
            text = draw(loops.texts())
            note(text)
            return partial(loops.build, text), loops.arguments()
        case "parts":
            points, text = draw(parts.texts())
            note(f"{points}\n{text}")
            return partial(parts.build, points, text), parts.arguments()
        case "sums":
            text = draw(sums.texts())
            note(text)
            return partial(sums.build, text), sums.arguments(text)
        case "spelling":
            spelling = draw(spellings())
            return lambda: spelling.t_unit, _arguments(spelling)
    layout = draw(layouts())
    note(str(layout))
    return layout.unit, layout.arguments()


def _arguments(spelling: Spelling) -> dict[str, Any]:
    """Small whole numbers, of which no sum is rounded."""
    rng = np.random.default_rng(0)
    values: dict[str, Any] = dict(SIZES)
    for arg in spelling.t_unit.default_entrypoint.args:
        if arg.name in SIZES:
            continue
        dtype = arg.dtype.numpy_dtype
        if isinstance(arg, lp.ValueArg):
            values[arg.name] = dtype.type(3)
            continue
        shape = tuple(SIZES.get(str(n), n) for n in arg.shape)
        values[arg.name] = rng.integers(-3, 4, shape).astype(dtype)
    return values


@pytest.mark.timeout(3 * 3600)  # for the long count
@given(kernels())
@counts(SHORT, LONG)
def test_what_is_raised_is_what_the_kernel_computes(kernel):
    """Kernels that are einsums, almost einsums, or many; none is taken for another."""
    build, arrays = kernel
    try:
        unit = build()
        check_variable_access_ordered(unit.default_entrypoint)  # else in no order
        expected = run(unit, arrays)
    except Exception:  # noqa: BLE001  # no kernel: Loopy raises errors of many kinds
        reject()
    outputs = {arg.name for arg in unit.default_entrypoint.args} & expected.keys()
    if any(np.isnan(np.asarray(expected[name])).any() for name in outputs):
        reject()  # it reads a private value that nobody wrote
    raised = raise_kernel(unit)
    try:
        found = run_raised(raised.t_unit, raised.raised, arrays)
    except Unschedulable:
        reject()  # others run in the middle of a nest, which no recipe is tried for
    for name in outputs:
        eps = 1e-5 if np.asarray(expected[name]).dtype == np.float32 else 1e-9
        # where terms cancel, what is left has the error of these
        np.testing.assert_allclose(found[name], expected[name], eps, eps / 10)


@pytest.mark.parametrize(
    "units",
    [layouts().map(lambda one: one.unit()), sums.texts().map(sums.build)],
    ids=["layouts", "sums"],
)
def test_most_are_einsums(units):
    """So what is compared are einsums, and not kernels that were refused."""
    seen: list[bool] = []

    @seed(0)
    @given(units)
    @settings(max_examples=10, database=None, phases=[Phase.generate])
    def look(unit):
        raised = raise_kernel(unit)
        seen.append(len(raised.raised) > len(raised.refused))

    look()
    assert sum(seen) > len(seen) / 2
