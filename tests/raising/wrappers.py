"""The loop over cells that PyOP2 writes around a kernel of one cell, in Loopy."""

from __future__ import annotations

from typing import Any

import loopy as lp
import numpy as np

from tests.raising.cells import CELLS, FORMS

__all__ = ["FIRST", "LAST", "mesh", "wrapped", "wrapped_unit"]

FIRST, LAST = 2, 13
"""The cells that are computed."""
N_PLACES = 11
"""Few, so that many cells add to one place."""

N_BLOCKS = 64
"""Matrices that are kept, one after the other."""


def wrapped(form: str, cell: str, order: int) -> lp.TranslationUnit:
    """A form of :mod:`tests.raising.cells` on every cell of a mesh.

    Vectors are added through the map, matrices to a block each.
    """
    shape = CELLS[cell]
    return wrapped_unit(FORMS[form](shape, order), shape.dimension, shape.n_vertices)


def wrapped_unit(
    unit: lp.TranslationUnit, n: int, n_vertices: int
) -> lp.TranslationUnit:
    """A kernel ``unit`` in ``n`` dimensions in its loop over cells."""
    kernel = unit.default_entrypoint
    size = kernel.arg_dict["A"].shape
    tables = [t.name for t in kernel.temporary_variables.values()
              if t.initializer is not None]  # fmt: skip
    unit = unit.with_kernel(lp.set_temporary_address_space(kernel, tables, "local"))
    is_matrix = len(kernel.arg_dict["A"].shape) == 2
    has_values = "w_0" in kernel.arg_dict
    places = {"A": "[o, p]: t_A[o, p]" if is_matrix else "[o]: t_A[o]",
              "coords": "[x]: t_coords[x]", "w_0": "[s]: t_w_0[s]"}  # fmt: skip
    given = ", ".join(places[arg.name] for arg in kernel.args)
    lines = [
        f"t_coords[{n}*v + a] = coords[vertices[c, v], a] {{id=coords}}",
        "t_A[y, z] = 0.0 {id=zero}" if is_matrix else "t_A[z] = 0.0 {id=zero}",
        f"{places['A']} = {kernel.name}({given}) {{id=call,dep=coords:zero:w}}",
        f"out[c % {N_BLOCKS}, q, r] = t_A[q, r] {{dep=call}}"
        if is_matrix
        else "out[functions[c, q]] = out[functions[c, q]] + t_A[q] {dep=call}",
    ]
    if has_values:
        lines.insert(0, "t_w_0[i] = w_0[functions[c, i]] {id=w}")
    extents = {**dict.fromkeys("yoqis", size[0]), **dict.fromkeys("zpr", size[-1])}
    args = [
        lp.GlobalArg("out", np.float64, shape=(N_BLOCKS, *size) if is_matrix else None),
        lp.GlobalArg("coords", np.float64, shape=(None, n)),
        *([lp.GlobalArg("w_0", np.float64, shape=(None,))] if has_values else []),
        lp.GlobalArg("vertices", np.int32, shape=(None, n_vertices)),
        *([] if is_matrix
          else [lp.GlobalArg("functions", np.int32, shape=(None, size[0]))]),
        lp.ValueArg("start,end", np.int32),
        lp.TemporaryVariable("t_coords", np.float64, shape=(n * n_vertices,)),
        lp.TemporaryVariable("t_A", np.float64, shape=size),
        *([lp.TemporaryVariable("t_w_0", np.float64, shape=size)]
          if has_values else []),
    ]  # fmt: skip
    if not is_matrix:
        args[0] = lp.GlobalArg("out", np.float64, shape=(None,))
    used = {
        name
        for name in extents
        if any(f"[{name}" in line or f" {name}]" in line for line in lines)
    }
    caller = lp.make_kernel(
        [
            "[start, end] -> {[c]: start <= c < end}",
            f"{{[v, a]: 0 <= v < {n_vertices} and 0 <= a < {n}}}",
            f"{{[x]: 0 <= x < {n * n_vertices}}}",
            *(f"{{[{i}]: 0 <= {i} < {extents[i]}}}" for i in sorted(used)),
        ],
        "for c\n" + "\n".join(lines).replace(":w}", ":w}" if has_values else "}")
        + "\nend",
        args,
        name="wrap_cell_integral",
        lang_version=(2018, 2),
        target=lp.CTarget(),
    )  # fmt: skip
    merged = lp.merge([caller, unit.copy(entrypoints=frozenset())])
    return merged.copy(entrypoints=frozenset({"wrap_cell_integral"}))


def mesh(unit: lp.TranslationUnit) -> dict[str, Any]:
    """Arguments of a loop over cells, of which no cell has a vertex twice."""
    rng, given = np.random.default_rng(0), dict[str, Any](start=FIRST, end=LAST)
    for arg in unit.default_entrypoint.args:
        if isinstance(arg, lp.ArrayArg):
            is_map = arg.dtype.numpy_dtype.kind == "i"
            n = LAST if is_map else N_PLACES
            shape = tuple(n if extent is None else extent for extent in arg.shape)
            values = (
                np.resize(rng.permutation(N_PLACES), shape)
                if is_map
                else rng.uniform(-1, 1, shape)
            )
            given[arg.name] = values.astype(arg.dtype.numpy_dtype)
    return given
