"""Batches of cells compute what one cell after the other does, or are refused."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum.errors import TransformError
from feinsum.measure.verdicts import (
    CompiledHostKernel,
    KernelComparison,
    RandomArgument,
    VerificationRequest,
)
from feinsum.memory import use_fresh_memory
from feinsum.records import TransformSpec
from feinsum.retrieval import verifiers
from feinsum.retrieval.cell_batches import batch_cells
from feinsum.retrieval.kernel_trials import KernelTrials
from feinsum.targets.host.compiler import find_compiler
from tests.docs.pages import ROOT
from tests.raising.stokes import STOKES
from tests.raising.wrappers import mesh, wrapped, wrapped_unit
from tests.retrieval.oracle import Oracle
from tests.retrieval.runs import call_in_c
from tests.retrieval.support import predicted
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

CASES = [
    ("mass", "triangle", 2, 4),
    ("Laplace", "tetrahedron", 1, 8),
    ("Helmholtz action", "tetrahedron", 2, 8),
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
    arrays = mesh(unit)
    expected = call_in_c(unit, arrays, tmp_path / "before")["out"]
    assert not np.allclose(expected, arrays["out"])
    assert np.isfinite(expected).all()
    result = call_in_c(changed, arrays, tmp_path / "after")["out"]
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


TIMED = {"verify": True, "policy": "loose"}


@pytest.fixture
def oracle(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with use_fresh_memory():
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
    unit = wrapped("mass", "triangle", 1)
    oracle.says(**{"width=4": batch_4, "width=8": batch_8, "@": called})
    made = predicted(unit, **TIMED)
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
    unit = wrapped("mass", "triangle", 2)
    with use_fresh_memory():
        made = predicted(unit, **TIMED)
        monkeypatch.setattr(verifiers, "COMMAND", ("false",))
        again = predicted(unit, **TIMED)
    assert (again.batch, again.applied) == (made.batch, made.applied)
    arrays = mesh(unit)
    expected = call_in_c(unit, arrays, tmp_path / "before")["out"]
    result = call_in_c(made.t_unit, arrays, tmp_path / "after")["out"]
    np.testing.assert_allclose(result, expected, 1e-11, 1e-11)


@pytest.mark.parametrize("is_faster", [True, False])
def test_where_the_loop_is_not_timed_the_einsum_decides(oracle, is_faster):
    """A recipe that is faster than the kernel of its einsum is used; no batch is."""
    oracle.says(kernels="trial-crashed", **{"@": (1.0, 2.0 if is_faster else 0.5)})
    unit = wrapped("mass", "triangle", 1)
    made = predicted(unit, **TIMED)
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
    question = VerificationRequest(
        "", TransformSpec("f", 1, {}), "", 2**32, kernels=asked
    )
    with use_fresh_memory():
        verdict = verifiers.request_verdict(question)
    given, same, *others = verdict.samples
    assert len(given) == len(same) >= 3
    assert min(*given, *same) > 0
    assert others == [(), ()]
