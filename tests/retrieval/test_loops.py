"""Kernels of loops, private values and flat arrays: recipes compute what they do."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest
from hypothesis import given, note, reject

from feinsum.errors import BuildError
from feinsum.measure import compile_kernel, draw_arguments, open_device
from feinsum.targets.host import HostCTarget
from tests.loopy_kernels import build_kernel
from tests.portions import spread
from tests.raising import loops
from tests.raising.forms import kernel_of
from tests.raising.interpreter import run
from tests.raising.wordings import ROWS, SEVERAL, kernel
from tests.retrieval.runs import on_host
from tests.retrieval.support import predicted
from tests.strategies import counts
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS


def for_host(unit):
    return unit.copy(target=HostCTarget())


CHOSEN = [
    n for n in ROWS if n not in ("a strided output", "a chain of private scalars")
]


@pytest.mark.parametrize("name", spread(CHOSEN, 5))
def test_a_row_in_other_words_gets_a_recipe(name):
    """It is faster code of the same values, at extents that no tile divides."""
    text, domain, shapes, _ = ROWS[name]
    assert_right(for_host(kernel(text, domain, shapes)))


@pytest.mark.parametrize("name", spread(SEVERAL, 4))
def test_several_rows_in_other_words_get_recipes(name):
    """All nests of a rewritten kernel, one after the other."""
    text, _, private = SEVERAL[name]
    assert_right(for_host(kernel(text, private=private)))


def assert_right(unit):
    found = predicted(unit)
    assert found.applied
    assert all(nest.chosen for nest in found.nests)
    for n in (1, 65):
        arguments = draw_arguments(unit, {"n": n}, np.random.default_rng(n))
        expected = on_host(unit, arguments)
        for name, value in on_host(found.t_unit, arguments).items():
            np.testing.assert_allclose(value, expected[name], 1e-11, 1e-11)


@pytest.mark.parametrize(
    "text", ["out[i] = 0.1*sum(j, A[i,j]*x[j])", "C[i,k] = alpha*sum(j, A[i,j]*B[j,k])"]
)
def test_scales_of_single_precision_sums(text):
    """A literal or a double beside vectors of single precision is C that compiles."""
    unit = kernel_of(text, dtype=np.float32, dtypes={"alpha": np.float64})
    unit = for_host(unit)
    found = predicted(unit)
    assert found.applied
    arguments = draw_arguments(unit, {}, np.random.default_rng(0))
    expected = on_host(unit, arguments)
    for name, value in on_host(found.t_unit, arguments).items():
        np.testing.assert_allclose(value, expected[name], 1e-5)


def test_an_inlined_function_gets_a_recipe():
    """Its loops are those of an element; marks that do nothing do not hold them."""
    matvec = lp.make_function(
        "{[i,j]: 0<=i,j<4}",
        "y[i] = sum(j, M[i,j]*x[j])",
        [
            lp.GlobalArg("M", np.float64, shape=(4, 4)),
            lp.GlobalArg("x,y", np.float64, shape=4),
        ],
        name="matvec",
        lang_version=(2018, 2),
        target=HostCTarget(),
    )
    caller = build_kernel(
        "{[e,i,j,k,l]: 0<=e<n and 0<=i,j,k,l<4}",
        "[i]: v[e,i] = matvec([k,l]: D[k,l], [j]: u[e,j])",
        {"u,v": "n,4", "D": "4,4"},
        target=HostCTarget(),
    )
    unit = lp.inline_callable_kernel(lp.merge([caller, matvec]), "matvec")
    assert_right(unit)


@given(loops.texts())
@counts(5, 1_000)
def test_a_random_kernel_of_loops_is_retrieved_rightly(text):
    """What comes back computes what was given, and has code if that had."""
    note(text)
    try:
        unit = for_host(loops.build(text))
        arrays = loops.arguments()
        expected = run(unit, arrays)
    except Exception:  # noqa: BLE001  # no kernel: Loopy raises errors of many kinds
        reject()
    if any(np.isnan(expected[name]).any() for name in arrays):
        reject()  # it reads a private value that nobody wrote
    found = predicted(unit)
    if not found.applied:
        return
    names = set(found.t_unit.default_entrypoint.arg_dict)
    given_arrays = {name: value for name, value in arrays.items() if name in names}
    try:
        compiled = compile_kernel(found.t_unit, open_device("host"))
    except BuildError:
        with pytest.raises(BuildError):
            compile_kernel(unit, open_device("host"))
        return
    bound = compiled.bind(given_arrays)
    bound.run()
    for name, value in bound.read().items():
        np.testing.assert_allclose(value, expected[name], 1e-9, 1e-12)


@pytest.mark.parametrize("names", ["tj", "jt"])
def test_loops_that_are_left_keep_their_order(names):
    """A nest leaves the loop that it shared with a sweep, in which order matters."""
    t, j = names
    text = f"""
        x[{j}] = 0.5*x[{j} + 1] + u[{t}]
        F[{t},k] = sum(r, B[{t},r]*C[r,k])
        """
    domains = [
        f"{{[{t}]: 0<={t}<40}}",
        f"{{[{j}]: 0<={j}<5}}",
        "{[k,r]: 0<=k<500 and 0<=r<300}",
    ]
    arrays = {"x": "6", "u": "40", "B": "40,300", "C": "300,500", "F": "40,500"}
    unit = build_kernel(domains, text, arrays, target=HostCTarget())
    arguments = draw_arguments(unit, {}, np.random.default_rng(0))
    expected = on_host(unit, arguments)
    found = predicted(unit)
    assert found.applied
    for name, value in on_host(found.t_unit, arguments).items():
        np.testing.assert_allclose(value, expected[name], 1e-11, 1e-11)
