"""Loops over cells that gather, compute and scatter: all but scatters is raised."""

from __future__ import annotations

import re

import loopy as lp
import numpy as np
import pytest

from feinsum import raise_kernel
from feinsum.raising import called_kernels
from feinsum.raising.rewriting import without_no_ops
from tests.raising.interpreter import run, run_raised
from tests.raising.wrappers import wrapped
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

SIZES = {"start": 2, "end": 4, "n_places": 7}
F8 = np.float64


def assert_same(unit, raised, arrays, *, is_evaluated=True):
    """The kernel, as it was rewritten and with its einsums evaluated, writes what the
    given one writes.
    """
    kernel = without_no_ops(unit.default_entrypoint)
    expected = run(unit.with_kernel(kernel), arrays)
    results = [run(raised.t_unit, arrays)]
    if is_evaluated:
        results.append(run_raised(raised.t_unit, raised.raised, arrays))
    for name in unit.default_entrypoint.get_written_variables() & arrays.keys():
        for found in results:
            np.testing.assert_allclose(found[name], expected[name], 1e-11, 1e-11)


def arrays_of(unit):
    """Random ones, and the sizes; maps have numbers of places."""
    rng = np.random.default_rng(0)
    kernel = unit.default_entrypoint
    known = {name: n for name, n in SIZES.items() if name in kernel.arg_dict}
    for arg in kernel.args:
        if not isinstance(arg, lp.ArrayArg):
            continue
        shape = tuple(
            extent if isinstance(extent, int) else SIZES.get(str(extent), 7)
            for extent in arg.shape
        )
        known[arg.name] = (
            rng.integers(0, SIZES["n_places"], shape)
            if arg.dtype.numpy_dtype.kind == "i"
            else rng.uniform(0.5, 1.5, shape)
        )
    return known


def inlined(form, cell):
    """A kernel of one cell in its loop over cells, with gather and scatter."""
    unit = wrapped(form, cell, 1)
    (called,) = called_kernels(unit, unit.default_entrypoint.name)
    return lp.inline_callable_kernel(unit, called)


@pytest.mark.parametrize(
    ("form", "cell"),
    [
        ("Laplace", "triangle"),
        ("Helmholtz action", "triangle"),
    ],
)
def test_inlined_kernels_of_one_cell_are_raised(form, cell):
    """Values are gathered into a flat private array, and the marks of inlining do
    nothing. What is refused has no loop over functions, except for the scatter.
    """
    unit = inlined(form, cell)
    raised = raise_kernel(unit)
    kernel = raised.t_unit.default_entrypoint
    assert raised.raised
    for refused in raised.refused:
        (insn_id,) = refused.instructions
        insn = kernel.id_to_insn[insn_id]
        is_scatter = insn.assignee_var_names() == ("out",)
        assert is_scatter or not any("cell_j" in i for i in insn.within_inames)
    # einsums between statements that are refused have no place in one loop over cells
    assert_same(unit, raised, arrays_of(unit), is_evaluated=form != "Laplace")


def cell_loop(statements):
    """A loop over cells with both bounds as arguments, whose other loops run to 3."""
    arrays = {
        "A": (3, 3), "w": ("end",), "dat": ("n_places",), "out": ("n_places",),
        "u": ("end", 6),
    }  # fmt: skip
    read = set(re.findall(r"\w+", statements))
    lengths = {"t": 3, "r": 3, "flat": 6}
    private = [(name, (n,)) for name, n in lengths.items() if name in read]
    return lp.make_kernel(
        [
            "[start, end] -> {[n]: start <= n < end}",
            "{[i, j, k, l, m]: 0 <= i, j, k, l, m < 3}",
            "{[a, b]: 0 <= a, b < 2}",
        ],
        f"for n\n{statements}\nend",
        [
            *(lp.GlobalArg(x, F8, shape=arrays[x]) for x in arrays.keys() & read),
            *(lp.TemporaryVariable(x, F8, shape=n) for x, n in private),
            lp.GlobalArg("map", np.int32, shape=("end", 3)),
            lp.ValueArg("start, end, n_places", np.int32),
        ],
        assumptions="start >= 0",
        silenced_warnings=["write_race*"],
        lang_version=(2018, 2),
    )  # fmt: skip


GATHER = "t[l] = dat[map[n, l]] {id=gather}\n"
ZERO = "r[k] = 0 {id=zero}\n"
COMPUTE = "r[i] = r[i] + w[n]*A[i, j]*t[j] {id=compute,dep=zero:gather}\n"
SCATTERS = {
    "added": "out[map[n, m]] = out[map[n, m]] + r[m] {id=scatter,dep=compute}",
    "assigned": "out[map[n, m]] = r[m] {id=scatter,dep=compute}",
}


@pytest.mark.parametrize("how", SCATTERS)
def test_what_is_between_gather_and_scatter_is_one_einsum(how):
    """Zeroing and adding are a sum, and gathered values an operand with a map."""
    unit = cell_loop(ZERO + GATHER + COMPUTE + SCATTERS[how])
    raised = raise_kernel(unit)
    (nest,) = raised.raised
    assert nest.instructions == ("compute",)
    assert len(nest.einsum.output) == 2
    assert len(nest.einsum.inputs) == 3
    (refused,) = raised.refused
    assert (refused.instructions, refused.rule) == (("scatter",), "assignee")
    assert "The line: out[map[n, m]] = " in refused.reason
    assert "move its entries in an instruction of its own" in refused.reason
    assert_same(unit, raised, arrays_of(unit))


FLAT = "flat[2*l + a] = w[n]*dat[map[n, l]]*A[l, a] {id=gather}\n"
READS = {
    "numbers": "u[n, i] = A[i, 0]*flat[0] + A[i, 1]*flat[3] + A[i, 2]*flat[5]",
    "as assigned": "u[n, 2*i + b] = 2*flat[2*i + b]",
    "an offset": "u[n, i] = A[i, 0]*flat[2*i + 1]",
    "a sum": "u[n, i] = sum([j, b], A[i, j]*flat[2*j + b])",
    "turned": "u[n, 3*b + i] = 2*flat[3*b + i]",
    "backwards": "u[n, i] = A[i, 0]*flat[5 - i]",
}


@pytest.mark.parametrize("how", READS)
def test_flat_private_arrays_are_read_anywhere(how):
    """Every entry is what the iteration assigned that its number stands for."""
    unit = cell_loop(f"{FLAT}{READS[how]} {{dep=gather}}")
    raised = raise_kernel(unit)
    assert raised.raised
    assert "flat" not in raised.t_unit.default_entrypoint.temporary_variables
    assert_same(unit, raised, arrays_of(unit))


@pytest.mark.parametrize("place", ["2*l", "2*l + 1", "l + a", "3*a + l", "3*l + a"])
def test_flat_private_arrays_with_gaps_stay(place):
    """Entries that a cell does not assign are those of the cell before it."""
    is_whole = place == "3*a + l"
    extent = "flat[0]" if place == "3*l + a" else "flat[2*i]"
    unit = cell_loop(
        f"flat[{place}] = dat[map[n, l]] {{id=gather}}\n"
        f"u[n, i] = A[i, 0]*{extent} {{id=use,dep=gather}}"
    )
    kernel = raise_kernel(unit).t_unit.default_entrypoint
    assert ("flat" in kernel.temporary_variables) != is_whole


def test_cells_that_read_what_others_add_stay():
    """A cell may gather what the one before it has added."""
    unit = cell_loop(ZERO + GATHER.replace("dat", "out") + COMPUTE + SCATTERS["added"])
    raised = raise_kernel(unit)
    assert not raised.raised
    assert {i for x in raised.refused for i in x.instructions} == {
        "zero", "gather", "compute", "scatter",
    }  # fmt: skip
