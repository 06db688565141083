"""Kernels of one cell in the shape that TSFC gives them: loops and private values.

Tables are constants, subscripts are flattened, outputs add to what is there, and an
empty instruction in C marks the end. The values are random, the shapes those of
elements of the orders 1 to 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import loopy as lp
import numpy as np

__all__ = ["Line", "arguments", "local_kernel"]

Line = tuple[str, str]
"""A statement and its loops."""


def factorized_mass_action(n_points: int, n_basis: int) -> lp.TranslationUnit:
    """Of a quadrilateral, one direction after the other, with flat arrays."""
    flat = f"A[0 + k*{n_basis} + l*1]"
    lines = [
        ("t0 = fabs(coords[2]*coords[5] + -1.0*coords[3]*coords[4])", ""),
        ("t1[i] = 0.0", "iq:i"),
        (f"t1[m] = t1[m] + b[iq, j]*w_0[0 + m*{n_basis} + j*1]", "iq:m:j"),
        ("t3[o] = 0.0", "iq:o"),
        ("t2 = 0.0", "iq:jq"),
        ("t2 = t2 + b[jq, p]*t1[p]", "iq:jq:p"),
        ("t4 = t2*t0*w0[iq]*w0[jq]", "iq:jq"),
        ("t3[q] = t3[q] + b[jq, q]*t4", "iq:jq:q"),
        (f"{flat} = {flat} + b[iq, l]*t3[k]", "iq:k:l"),
    ]
    extents = {**dict.fromkeys(("iq", "jq"), n_points)}
    extents |= dict.fromkeys(("i", "m", "j", "o", "p", "q", "k", "l"), n_basis)
    tables = {"w0": (n_points,), "b": (n_points, n_basis)}
    shapes = {"A": (n_basis**2,), "coords": (8,), "w_0": (n_basis**2,)}
    private = dict.fromkeys(("t1", "t3"), (n_basis,))
    return local_kernel(lines, extents, shapes, tables, private)


def constant_tables(
    shapes: Mapping[str, Any], rng: np.random.Generator
) -> list[lp.TemporaryVariable]:
    """Random values that belong to a kernel."""
    return [
        lp.TemporaryVariable(
            name,
            np.float64,
            shape=shape,
            initializer=rng.uniform(-1, 1, shape),
            read_only=True,
            address_space=lp.AddressSpace.GLOBAL,
        )
        for name, shape in shapes.items()
    ]


def local_kernel(
    lines: list[Line],
    extents: Mapping[str, int],
    shapes: Mapping[str, Any],
    tables: Mapping[str, Any],
    private: Mapping[str, Any],
) -> lp.TranslationUnit:
    """The statements, each after the one before it."""
    text = "\n".join(
        f"{line} {{id=s{n},dep=*{f's{n - 1}' if n else ''},inames={loops}}}"
        for n, (line, loops) in enumerate(lines)
    )
    scalars = {line.split(" = ")[0] for line, _ in lines}
    scalars = {name for name in scalars if "[" not in name}
    data: list[Any] = [
        lp.GlobalArg(name, np.float64, shape=shape) for name, shape in shapes.items()
    ]
    data += constant_tables(tables, np.random.default_rng(5))
    data += [
        lp.TemporaryVariable(name, np.float64, shape=shape)
        for name, shape in {**dict.fromkeys(sorted(scalars), ()), **private}.items()
    ]
    unit = lp.make_kernel(
        [f"{{[{iname}]: 0<={iname}<{n}}}" for iname, n in extents.items()],
        text,
        data,
        lang_version=(2018, 2),
        name="cell_integral",
        target=lp.CTarget(),
    )
    kernel = unit.default_entrypoint
    last = lp.CInstruction(
        (), "", id="end", depends_on=frozenset({f"s{len(lines) - 1}"})
    )
    return unit.with_kernel(kernel.copy(instructions=[*kernel.instructions, last]))


def arguments(unit: lp.TranslationUnit) -> dict[str, Any]:
    """A random array for each argument."""
    rng = np.random.default_rng(0)
    args = unit.default_entrypoint.args
    return {arg.name: rng.uniform(-1, 1, arg.shape) for arg in args}
