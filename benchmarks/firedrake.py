"""Kernels of one cell, in the words of Firedrake's form compiler: as PyOP2 compiles
them, and what retrieval makes of them.

The kernels have the loops, private values and tables of real ones for mass matrices,
Laplacians and the action of Helmholtz operators. Each is compiled together with a loop
over cells that gathers through a map, and scatters where the result is a vector, by
``-O3 -march=native -ffast-math`` for one thread. Both are called in turns, and their
results compared. Prints a table, and the geometric mean of the ratios for orders from 2
on.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

import loopy as lp
import numpy as np
from loopy.schedule.tools import get_kernel_arg_info

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.experiments.machine import processor
from feinsum.retrieval import Retrieval, look_up
from feinsum.retrieval.generating import generate_code
from feinsum.targets.host.compiler import find_compiler
from tests.raising.cells import CELLS, FORMS, Cell
from tests.raising.wrappers import wrapped

FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffast-math", "-fPIC", "-shared")
"""With which PyOP2 compiles, and what a library needs."""
N_BLOCKS = 64
"""Matrices that are kept; PyOP2 hands each to PETSc, which is not timed here."""
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

    def unit(self) -> lp.TranslationUnit:
        return FORMS[self.form](self.shape, self.order)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cells", type=int, default=2000, help="cells of a mesh")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--orders", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--only", default="", help="a regular expression of cases")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # kernels that come back unchanged
    cases = [
        Case(form, cell, order)
        for form in FORMS
        for cell in CELLS
        for order in options.orders
    ]
    print(
        f"{processor()}, one thread, {find_compiler().version}, {options.cells} cells"
    )
    print("| form | cell | order | functions | as PyOP2 us | found us | ratio | how |")
    print("|---|---|---|---|---|---|---|---|")
    ratios = {}
    for case in cases:
        if re.search(options.only, str(case)):
            ratios[case] = compared(case, options.cells, options.rounds)
    high = [ratio for case, ratio in ratios.items() if case.order >= 2]
    if high:
        print(f"geometric mean of the orders from 2 on: {geometric_mean(high):.2f}")
    if ratios:
        slowest = min(ratios, key=lambda case: ratios[case])
        print(f"least ratio: {ratios[slowest]:.2f} ({slowest})")


def compared(case: Case, n_cells: int, rounds: int) -> float:
    """Print the row of a case; how many times as fast the retrieved kernel is."""
    unit, whole = case.unit(), wrapped(case.form, case.cell, case.order)
    retrieval = look_up(whole, device="host")
    operands = mesh(case, n_cells)
    names = [arg.name for arg in unit.default_entrypoint.args]
    before = f"{generate_code(unit)}\n{wrapper(case, names)}"
    with tempfile.TemporaryDirectory() as folder:
        calls = {"before": compiled(before, list(operands), Path(folder, "before"))}
        if retrieval.is_changed:
            order = get_kernel_arg_info(retrieval.t_unit.default_entrypoint)
            after = generate_code(retrieval.t_unit)
            passed = [n for n in order.passed_arg_names if n not in ("start", "end")]
            calls["after"] = compiled(
                after, passed, Path(folder, "after"), has_bounds_first=False
            )
        else:
            calls["after"] = calls["before"]
        results = {name: call(operands)[1] for name, call in calls.items()}
        check(case, results["before"], results["after"])
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                seconds[name].append(call(operands)[0])
    before_us, after_us = (median(seconds[n]) / n_cells * 1e6 for n in calls)
    ratio = before_us / after_us if retrieval.is_changed else 1.0
    print(
        f"| {case.form} | {case.cell} | {case.order} | {case.n_basis} | "
        f"{before_us:.3g} | {after_us:.3g} | {ratio:.2f} | {changed(retrieval)} |",
        flush=True,
    )
    return ratio


def changed(retrieval: Retrieval) -> str:
    """Batches of cells, or how many nests have a recipe."""
    if retrieval.batch > 1:
        return f"batches of {retrieval.batch}"
    if not retrieval.applied:
        return "unchanged"
    return f"recipes, {len(retrieval.applied)} of {len(retrieval.nests)} nests"


def mesh(case: Case, n_cells: int) -> Arrays:
    """A map from cells to vertices and one to functions, and values on these."""
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


def compiled(
    code: str, names: list[str], folder: Path, *, has_bounds_first: bool = True
) -> Callable[[Arrays], tuple[float, np.ndarray[Any, Any]]]:
    """A call that takes seconds, and gives the result.

    Args:
        names: of the arrays in the order of the arguments, before or behind which the
            first cell and the one past the last are passed.
    """
    folder.mkdir()
    source, library = folder / "kernel.c", folder / "kernel.so"
    source.write_text(f"#include <math.h>\n#include <stdint.h>\n{code}")
    command = [*find_compiler().command, *FLAGS, "-o", str(library), str(source), "-lm"]
    subprocess.run(command, check=True, env=os.environ)
    function = ctypes.CDLL(str(library)).wrap_cell_integral

    def call(given: Arrays) -> tuple[float, np.ndarray[Any, Any]]:
        arrays = {**given, "out": given["out"].copy()}
        pointers = [ctypes.c_void_p(arrays[name].ctypes.data) for name in names]
        bounds = [ctypes.c_int(0), ctypes.c_int(len(given["vertices"]))]
        passed = [*bounds, *pointers] if has_bounds_first else [*pointers, *bounds]
        start = perf_counter()
        function(*passed)
        return perf_counter() - start, arrays["out"]

    return call


def wrapper(case: Case, names: list[str]) -> str:
    """The loop over cells around a kernel, as PyOP2 writes it."""
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
