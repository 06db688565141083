"""A kernel of one cell inside of a loop over cells: it is found where it is called."""

from __future__ import annotations

import ctypes
import subprocess

import loopy as lp
import numpy as np

from feinsum import explain, raise_kernel
from feinsum.errors import TransformError
from feinsum.records import InMemoryStore
from feinsum.retrieval import look_up
from feinsum.targets.host import HostCTarget
from feinsum.targets.host.compiler import find_compiler
from tests.raising.local_kernels import KERNELS
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

N_CELLS, N_VERTICES, N_NODES = 7, 6, 11
ESTIMATED = {"verify": False, "device": "host", "effort": "estimate"}


def wrapped():
    """A Helmholtz operator on triangles in the loop that PyOP2 writes around it."""
    cell = KERNELS["helmholtz_action of order 2"]()
    kernel = cell.default_entrypoint
    temporaries = kernel.temporary_variables.values()
    tables = [one.name for one in temporaries if one.initializer is not None]
    kernel = lp.set_temporary_address_space(kernel, tables, "local")
    cell = cell.with_kernel(kernel)
    caller = lp.make_kernel(
        [
            "[start, end] -> {[c]: start <= c < end}",
            "{[v, a]: 0 <= v < 3 and 0 <= a < 2}",
            "{[i, z, o, x, s, q]: 0 <= i,z,o,s,q < 6 and 0 <= x < 6}",
        ],
        """
        for c
            t_coords[2*v + a] = coords[vertices[c, v], a] {id=coords}
            t_w[i] = w[functions[c, i]] {id=w}
            t_A[z] = 0 {id=zero}
            [o]: t_A[o] = cell_integral([o]: t_A[o], [x]: t_coords[x], [s]: t_w[s]) {id=call,dep=coords:w:zero}
            out[functions[c, q]] = out[functions[c, q]] + t_A[q] {dep=call}
        end
        """,  # noqa: E501
        [
            lp.GlobalArg("out,w", np.float64, shape=N_NODES),
            lp.GlobalArg("coords", np.float64, shape=(N_VERTICES, 2)),
            lp.GlobalArg("vertices", np.int32, shape=(None, 3)),
            lp.GlobalArg("functions", np.int32, shape=(None, 6)),
            lp.ValueArg("start,end", np.int32),
            *(lp.TemporaryVariable(n, np.float64, shape=6)
              for n in ("t_coords", "t_w", "t_A")),
        ],
        name="wrap_cell_integral",
        lang_version=(2018, 2),
        target=lp.CTarget(),
    )  # fmt: skip
    unit = lp.merge([caller, cell.copy(entrypoints=frozenset())])
    return unit.copy(entrypoints=frozenset({"wrap_cell_integral"}))


def called(unit, arrays, folder):
    """What a compiled function writes to ``out``, for all cells but the first."""
    folder.mkdir()
    code = lp.generate_code_v2(unit).device_code()
    (folder / "kernel.c").write_text(f"#include <math.h>\n#include <stdint.h>\n{code}")
    command = [*find_compiler().command, "-O2", "-march=native", "-shared", "-fPIC"]
    command += ["-o", "kernel.so", "kernel.c", "-lm"]
    subprocess.run(command, check=True, cwd=folder)
    given = {name: array.copy() for name, array in arrays.items()}
    names = [arg.name for arg in unit.default_entrypoint.args]
    numbers = {"start": 1, "end": N_CELLS}
    values = [
        ctypes.c_int(numbers[name])
        if name in numbers
        else given[name].ctypes.data_as(ctypes.c_void_p)
        for name in names
    ]
    library = ctypes.CDLL(str(folder / "kernel.so"))
    library.wrap_cell_integral(*values)
    return given["out"]


def test_the_kernel_that_is_called_gets_its_recipes(tmp_path):
    """The caller is as it was, and the whole computes the same."""
    unit = wrapped()
    found = look_up(unit, database=InMemoryStore(), **ESTIMATED)
    assert len(found.applied) == len(found.nests) == 4
    callers = unit.default_entrypoint, found.t_unit.default_entrypoint
    assert callers[0].instructions == callers[1].instructions
    assert callers[0].args == callers[1].args
    rng = np.random.default_rng(0)
    arrays = {
        "out": rng.random(N_NODES),
        "w": rng.random(N_NODES),
        "coords": rng.random((N_VERTICES, 2)),
        "vertices": rng.integers(0, N_VERTICES, (N_CELLS, 3), np.int32),
        "functions": rng.integers(0, N_NODES, (N_CELLS, 6), np.int32),
    }
    expected = called(unit, arrays, tmp_path / "before")
    assert not np.allclose(expected, arrays["out"])
    result = called(found.t_unit, arrays, tmp_path / "after")
    np.testing.assert_allclose(result, expected, 1e-12, 1e-12)


def test_recipes_that_do_not_fit_the_caller_are_left_out(monkeypatch):
    """The reason is told, and cells may still be computed together.

    Some recipes of the Laplacian on hexahedra do not fit; which, is up to timings.
    """

    def unfit(given, unit):
        raise TransformError("kernel 'cell' does not fit its caller: no loop nesting")

    monkeypatch.setattr("feinsum.retrieval.generating.in_caller", unfit)
    unit = wrapped()
    found = look_up(unit, database=InMemoryStore(), **ESTIMATED)
    assert found.applied == ()
    for nest in found.nests:
        assert "does not fit its caller" in nest.failures[-1][1]
    assert found.t_unit is unit


def test_without_a_recipe_the_unit_comes_back():
    """Nothing of it is another one."""
    unit = wrapped()
    found = look_up(
        unit, database=InMemoryStore(), **{**ESTIMATED, "effort": "recorded"}
    )
    assert found.t_unit is unit
    assert "raised: " in explain(unit, database=InMemoryStore(), **ESTIMATED)


def test_raising_says_what_it_is():
    """A loop over cells that calls a kernel; its packing is raised."""
    raised = raise_kernel(wrapped())
    rules = {refused.instructions[0]: refused for refused in raised.refused}
    assert rules["call"].rule == "call"
    assert "'cell_integral'" in rules["call"].reason


def test_for_threads_the_call_is_refused():
    """A kernel that is called cannot have threads of its own."""
    unit = wrapped().copy(target=HostCTarget())
    found = look_up(unit, database=InMemoryStore(), **ESTIMATED)
    assert "call" in {refused.rule for refused in found.raised.refused}
