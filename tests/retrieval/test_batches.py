"""Batches of cells compute what one cell after the other does, or are refused."""

from __future__ import annotations

import ctypes

import loopy as lp
import numpy as np
import pytest

from feinsum.errors import TransformError
from feinsum.measure.question import (
    CompiledHostKernel,
    KernelComparison,
    Question,
    RandomArgument,
)
from feinsum.memory import fresh_memory
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.retrieval import look_up, verifiers
from feinsum.retrieval.cell_batches import batch_cells
from feinsum.retrieval.generating import generate_code
from feinsum.retrieval.kernel_trials import KernelTrials
from feinsum.targets.host.compiler import find_compiler
from tests.docs.pages import ROOT
from tests.raising.stokes import STOKES
from tests.raising.wrappers import wrapped, wrapped_unit
from tests.retrieval.oracle import Oracle
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

FIRST, LAST = 2, 13
N_PLACES = 11
"""Few, so that many cells add to one place."""


def arrays_of(unit):
    rng = np.random.default_rng(0)
    given = {}
    for arg in unit.default_entrypoint.args:
        if isinstance(arg, lp.ArrayArg):
            n = LAST if arg.dtype.numpy_dtype.kind == "i" else N_PLACES
            shape = tuple(n if extent is None else extent for extent in arg.shape)
            values = (  # no cell has a vertex twice
                np.resize(rng.permutation(N_PLACES), shape)
                if n == LAST
                else rng.uniform(-1, 1, shape)
            )
            given[arg.name] = values.astype(arg.dtype.numpy_dtype)
    return given


def result_of(unit, arrays, folder, name):
    """What the function writes to ``out`` for the cells from FIRST to LAST."""
    code = generate_code(unit)
    library = folder / f"{name}.so"
    library.write_bytes(find_compiler().compile(code, ("-O1", "-fPIC", "-shared")))
    given = {k: array.copy() for k, array in arrays.items()}
    numbers = {"start": FIRST, "end": LAST}
    function = ctypes.CDLL(str(library)).wrap_cell_integral
    function(
        *(
            ctypes.c_int(numbers[arg.name])
            if arg.name in numbers
            else ctypes.c_void_p(given[arg.name].ctypes.data)
            for arg in unit.default_entrypoint.args
        )
    )
    return given["out"]


CASES = [
    ("mass", "triangle", 2, 4),
    ("Laplace", "tetrahedron", 1, 8),
    ("Helmholtz action", "quadrilateral", 1, 4),
    ("Helmholtz action", "tetrahedron", 2, 8),
    ("mass", "hexahedron", 1, 4),
]


@pytest.mark.parametrize(("form", "cell", "order", "width"), CASES)
def test_batches_compute_the_same(form, cell, order, width, tmp_path):
    """No batch divides the cells; vectors are added through a map, and matrices
    assigned. Name and arguments are as before.
    """
    assert_batched(wrapped(form, cell, order), width, tmp_path)


def test_parts_of_an_output_are_batched(tmp_path):
    """Every component of a velocity has its part of what a cell computes."""
    assert_batched(wrapped_unit(STOKES["residual"](), 2, 3), 4, tmp_path)


def assert_batched(unit, width, tmp_path):
    changed = batch_cells(unit, width)
    before, after = unit.default_entrypoint, changed.default_entrypoint
    assert (before.name, before.args) == (after.name, after.args)
    arrays = arrays_of(unit)
    expected = result_of(unit, arrays, tmp_path, "before")
    assert not np.allclose(expected, arrays["out"])
    assert np.isfinite(expected).all()
    result = result_of(changed, arrays, tmp_path, "after")
    np.testing.assert_allclose(result, expected, 1e-12, 1e-12)
    (private,) = (t for n, t in after.temporary_variables.items() if n == "t_A")
    assert private.shape[-1] == width


def with_statement(unit, old, **changes):
    """The unit in which the caller's instruction ``old`` is another one."""
    kernel = unit.default_entrypoint
    instructions = [
        insn.copy(**changes) if insn.id == old else insn for insn in kernel.instructions
    ]
    return unit.with_kernel(kernel.copy(instructions=instructions))


def test_cells_that_depend_on_each_other_are_refused():
    """Each by a reason that names what it is about."""
    unit = wrapped("Helmholtz action", "triangle", 1)
    kernel = unit.default_entrypoint
    scatter = next(i.id for i in kernel.instructions if "out" in str(i.assignees))
    parse = lp.symbolic.parse
    for old, changes, reason in (
        ("zero", {"expression": parse("t_A[z] + 1.0")}, "'t_A' is assigned"),
        (
            "coords",
            {"expression": parse("coords[vertices[c, v], a] + out[c]")},
            "'out'",
        ),
        (scatter, {"expression": parse("out[functions[c, q]] + out[0]")}, "'out'"),
        (scatter, {"predicates": frozenset({parse("start < 5")})}, scatter),
        ("zero", {"assignee": parse("t_A[0]")}, "'t_A' is assigned"),
    ):
        with pytest.raises(TransformError, match=reason):
            batch_cells(with_statement(unit, old, **changes), 4)


def test_values_that_do_not_fit_the_stack_are_refused():
    with pytest.raises(TransformError, match="on the stack"):
        batch_cells(wrapped("mass", "hexahedron", 4), 8)


ESTIMATED = {"device": "host", "effort": "estimate", "policy": "loose"}


@pytest.fixture
def oracle(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with fresh_memory():
        yield Oracle(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("called", "batch_4", "batch_8", "expected"),
    [
        ((1.0, 2.0), (0.9, 2.0), (0.5, 2.0), 8),
        ((1.0, 2.0), (0.51, 2.0), (0.5, 2.0), 4),
        ((1.0, 2.0), (1.5, 2.0), (0.99, 2.0), 0),
        ((2.0, 1.0), (1.5, 1.0), (0.99, 1.0), None),
        ("wrong-result", "wrong-result", "trial-crashed", None),
    ],
)
def test_the_fastest_form_is_taken(
    oracle, monkeypatch, called, batch_4, batch_8, expected
):
    """If it is clearly faster than the given loop; else that comes back. Of those that
    are about as fast it is always the same one.
    """
    monkeypatch.setattr(KernelTrials, "verify_together", lambda *_: None)
    unit = wrapped("Helmholtz action", "triangle", 1)
    oracle.says(**{"width=4": batch_4, "width=8": batch_8, "@": called})
    made = look_up(unit, database=InMemoryStore(), verify=True, **ESTIMATED)
    assert made.is_changed == (expected is not None)
    assert made.batch == (expected or 0)
    assert bool(made.applied) == (expected == 0)
    if expected is None:
        assert made.t_unit is unit
    else:
        assert "gain: " in str(made)
    if expected:
        assert made.t_unit == batch_cells(unit, expected)
        assert str(made).endswith(f"kernel: cells in batches of {expected}")


def test_forms_are_timed_where_recipes_are_verified(tmp_path, monkeypatch):
    """Whatever is the fastest, it computes the same; nothing is timed twice."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    unit = wrapped("Laplace", "triangle", 3)
    with fresh_memory():
        made = look_up(unit, database=InMemoryStore(), verify=True, **ESTIMATED)
        monkeypatch.setattr(verifiers, "COMMAND", ("false",))
        again = look_up(unit, database=InMemoryStore(), verify=True, **ESTIMATED)
    assert (again.batch, again.applied) == (made.batch, made.applied)
    arrays = arrays_of(unit)
    expected = result_of(unit, arrays, tmp_path, "before")
    result = result_of(made.t_unit, arrays, tmp_path, "after")
    np.testing.assert_allclose(result, expected, 1e-11, 1e-11)


@pytest.mark.parametrize("is_faster", [True, False])
def test_where_the_loop_is_not_timed_the_einsum_decides(oracle, is_faster):
    """A recipe that is faster than the kernel of its einsum is used; no batch is."""
    oracle.says(kernels="trial-crashed", **{"@": (1.0, 2.0 if is_faster else 0.5)})
    unit = wrapped("Helmholtz action", "triangle", 1)
    made = look_up(unit, database=InMemoryStore(), verify=True, **ESTIMATED)
    assert bool(made.applied) == is_faster
    assert made.batch == 0
    assert (made.t_unit is unit) != is_faster


def test_functions_in_turns(tmp_path, monkeypatch):
    """The process says how long each takes, and which compute something else: with
    another operation, or of another entry.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    source = "void f(double *y, double a) {{ for (int i = 0; i < 3; ++i) y[i] = {}; }}"
    programs = []
    for k, value in enumerate(("y[i] + a", "a + y[i]", "y[i] - a", "y[2] + a")):
        path = tmp_path / f"{k}.so"
        text = source.format(value)
        path.write_bytes(find_compiler().compile(text, ("-fPIC", "-shared")))
        programs.append(CompiledHostKernel(str(path), (("y", ""), ("a", "")), "f"))
    arguments = {
        "y": RandomArgument("<f8", 3, is_written=True),
        "a": RandomArgument("<f8", value=2),
    }
    pairs = tuple((0, k) for k in (1, 2, 3))
    asked = KernelComparison("", tuple(programs), pairs, arguments, 1e-9)
    question = Question("", TransformSpec("f", 1, {}), "", 2**32, kernels=asked)
    with fresh_memory():
        verdict = verifiers.request_verdict(question)
    given, same, *others = verdict.samples
    assert len(given) == len(same) >= 3
    assert min(*given, *same) > 0
    assert others == [(), ()]
