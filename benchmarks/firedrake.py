"""Compare finite-element kernels as compiled by PyOP2 with retrieved ones.

The kernels have the loops, private values and tables of real ones for mass matrices,
Laplacians and actions of Helmholtz operators. Each is compiled with a loop over cells
that gathers through a map, and scatters if the result is a vector, by ``-O3
-march=native -ffast-math`` for one thread. Both versions are timed in interleaved
rounds, and their results compared. Prints a table, and the geometric mean of the ratios
for orders above 1.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

import loopy as lp
import numpy as np
from loopy.schedule.tools import get_kernel_arg_info

from benchmarks.experiments.machine import describe_processor
from benchmarks.timing import time_in_turns
from feinsum.retrieval import Retrieval, look_up
from feinsum.retrieval.generating import generate_code
from feinsum.targets.host.compiler import find_compiler
from tests.raising.cells import CELLS, FORMS, Cell
from tests.raising.wrappers import wrapped

FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffast-math", "-fPIC", "-shared")
"""Flags of PyOP2, and those of a library."""
N_BLOCKS = 64
"""Number of matrices in memory; PyOP2 passes each to PETSc, which is not timed here."""
TOLERANCE = 1e-10

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """A form on a cell of an order."""

    form: str
    cell: str
    order: int

    def __str__(self) -> str:
        return f"{self.form}, {self.cell}, {self.order}"

    @property
    def shape(self) -> Cell:
        return CELLS[self.cell]

    @property
    def n_basis(self) -> int:
        return self.shape.n_basis(self.order)

    @property
    def is_matrix(self) -> bool:
        return self.form != "Helmholtz action"

    def make_unit(self) -> lp.TranslationUnit:
        return FORMS[self.form](self.shape, self.order)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cells", type=int, default=2000, help="cells of a mesh")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--orders", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--only", default="", help="a regular expression of cases")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of kernels that stay unchanged
    cases = [
        Case(form, cell, order)
        for form in FORMS
        for cell in CELLS
        for order in options.orders
    ]
    compiler = find_compiler().version
    print(f"{describe_processor()}, one thread, {compiler}, {options.cells} cells")
    heads = "form", "cell", "order", "functions", "as PyOP2 us", "retrieved us"
    print(f"| {' | '.join(heads)} | ratio | change |")
    print("|---|---|---|---|---|---|---|---|")
    ratios = {}
    for case in cases:
        if re.search(options.only, str(case)):
            ratios[case] = compare(case, options.cells, options.rounds)
    high = [ratio for case, ratio in ratios.items() if case.order >= 2]
    if high:
        print(f"geometric mean of the orders from 2 on: {geometric_mean(high):.2f}")
    if ratios:
        slowest = min(ratios, key=lambda case: ratios[case])
        print(f"least ratio: {ratios[slowest]:.2f} ({slowest})")


def compare(case: Case, n_cells: int, rounds: int) -> float:
    """Time both versions of a case, print its row, and return the ratio."""
    unit, whole = case.make_unit(), wrapped(case.form, case.cell, case.order)
    retrieval = look_up(whole, device="host")
    operands = draw_mesh(case, n_cells)
    names = [arg.name for arg in unit.default_entrypoint.args]
    before = f"{generate_code(unit)}\n{write_wrapper(case, names)}"
    with tempfile.TemporaryDirectory() as folder:
        calls = {"before": compile_call(before, list(operands), Path(folder, "before"))}
        if retrieval.is_changed:
            order = get_kernel_arg_info(retrieval.t_unit.default_entrypoint)
            after = generate_code(retrieval.t_unit)
            passed = [n for n in order.passed_arg_names if n not in ("start", "end")]
            calls["after"] = compile_call(
                after, passed, Path(folder, "after"), has_bounds_first=False
            )
        else:
            calls["after"] = calls["before"]
        results = {name: call(operands)[1] for name, call in calls.items()}
        check(case, results["before"], results["after"])
        seconds = time_in_turns(
            {name: lambda call=call: call(operands)[0] for name, call in calls.items()},
            rounds,
        )
    before_us, after_us = (median(seconds[n]) / n_cells * 1e6 for n in calls)
    ratio = before_us / after_us if retrieval.is_changed else 1.0
    times = f"{before_us:.3g} | {after_us:.3g} | {ratio:.2f}"
    head = f"{case.form} | {case.cell} | {case.order} | {case.n_basis}"
    print(f"| {head} | {times} | {describe_change(retrieval)} |", flush=True)
    return ratio


def describe_change(retrieval: Retrieval) -> str:
    """Describe the change: batches of cells, or the number of nests with a recipe."""
    if retrieval.batch > 1:
        return f"batches of {retrieval.batch}"
    if not retrieval.applied:
        return "unchanged"
    return f"recipes, {len(retrieval.applied)} of {len(retrieval.nests)} nests"


def draw_mesh(case: Case, n_cells: int) -> Arrays:
    """Draw maps from cells to vertices and functions, and values on these."""
    rng = np.random.default_rng(0)
    n = case.shape.dimension
    n_vertices, n_functions = n_cells + 10, n_cells * 4
    to_vertices = (n_cells, case.shape.n_vertices)
    size = N_BLOCKS * case.n_basis**2 if case.is_matrix else n_functions
    return {
        "out": np.zeros(size),
        "coords": rng.uniform(-1, 1, (n_vertices, n)),
        "w_0": rng.uniform(-1, 1, n_functions),
        "vertices": np.resize(  # no cell has a vertex twice
            rng.permutation(n_vertices).astype(np.int32), to_vertices
        ),
        "functions": rng.integers(0, n_functions, (n_cells, case.n_basis), np.int32),
    }


def compile_call(
    code: str, names: list[str], folder: Path, *, has_bounds_first: bool = True
) -> Callable[[Arrays], tuple[float, np.ndarray[Any, Any]]]:
    """Compile a call that returns its seconds and the result.

    Args:
        names: names of the arrays in the order of the arguments.
        has_bounds_first: whether the range of cells is passed before the arrays.
    """
    folder.mkdir()
    source, library = folder / "kernel.c", folder / "kernel.so"
    source.write_text(f"#include <math.h>\n#include <stdint.h>\n{code}")
    command = [*find_compiler().command, *FLAGS, "-o", str(library), str(source), "-lm"]
    subprocess.run(command, check=True, env=os.environ)
    function = ctypes.CDLL(str(library)).wrap_cell_integral

    def call(operands: Arrays) -> tuple[float, np.ndarray[Any, Any]]:
        arrays = {**operands, "out": operands["out"].copy()}
        pointers = [ctypes.c_void_p(arrays[name].ctypes.data) for name in names]
        bounds = [ctypes.c_int(0), ctypes.c_int(len(operands["vertices"]))]
        passed = [*bounds, *pointers] if has_bounds_first else [*pointers, *bounds]
        start = perf_counter()
        function(*passed)
        return perf_counter() - start, arrays["out"]

    return call


def write_wrapper(case: Case, names: list[str]) -> str:
    """Write the loop over cells around a kernel, as PyOP2 does."""
    n, nb, nv = case.shape.dimension, case.n_basis, case.shape.n_vertices
    size = nb**2 if case.is_matrix else nb
    scatter = (
        f"double *block = out + (c % {N_BLOCKS})*{size};\n"
        f"for (int k = 0; k < {size}; ++k) block[k] = t_A[k];"
        if case.is_matrix
        else f"for (int k = 0; k < {nb}; ++k) out[functions[c*{nb} + k]] += t_A[k];"
    )
    return f"""
void wrap_cell_integral(int const start, int const end, double *restrict out,
                        double const *restrict coords, double const *restrict w_0,
                        int const *restrict vertices, int const *restrict functions)
{{
  for (int c = start; c < end; ++c) {{
    double t_A[{size}], t_coords[{nv * n}], t_w_0[{nb}];
    for (int k = 0; k < {size}; ++k) t_A[k] = 0.0;
    for (int v = 0; v < {nv}; ++v)
      for (int a = 0; a < {n}; ++a)
        t_coords[{n}*v + a] = coords[{n}*vertices[c*{nv} + v] + a];
    for (int k = 0; k < {nb}; ++k) t_w_0[k] = w_0[functions[c*{nb} + k]];
    cell_integral({", ".join(f"t_{name}" for name in names)});
    {scatter}
  }}
}}
"""


def check(case: Case, expected: Any, actual: Any) -> None:
    scale = np.abs(expected).max()
    if not np.allclose(actual / scale, expected / scale, rtol=0, atol=TOLERANCE):
        sys.exit(f"{case}: the retrieved kernel computes something else")


if __name__ == "__main__":
    main()
