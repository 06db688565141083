"""Kernels of one cell in the shape that TSFC gives them: loops and private values.

Tables are constants, subscripts are flattened, outputs add to what is there, and an
empty instruction in C marks the end. The values are random, the shapes those of
elements of the orders 1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import loopy as lp
import numpy as np

__all__ = ["KERNELS", "Line", "arguments", "local_kernel"]

Line = tuple[str, str]
"""A statement and its loops."""

JACOBIAN: list[Line] = [
    ("t0 = -1.0*coords[0]", ""), ("t1 = t0 + coords[2]", ""),
    ("t2 = -1.0*coords[1]", ""), ("t3 = t2 + coords[5]", ""),
    ("t4 = t0 + coords[4]", ""), ("t5 = t2 + coords[3]", ""),
    ("t6 = t1*t3 + -1.0*t4*t5", ""), ("t7 = fabs(t6)", ""),
]  # fmt: skip
INVERSE: list[Line] = [
    ("t8 = 1.0 / t6", ""), ("t9 = t3*t8", ""), ("t10 = -1.0*t5*t8", ""),
    ("t11 = -1.0*t4*t8", ""), ("t12 = t1*t8", ""),
]  # fmt: skip


def mass(n_points: int, n_basis: int) -> lp.TranslationUnit:
    """Of a triangle: one sum with three factors."""
    lines = [
        *JACOBIAN,
        ("t13 = t7*w0[0 + ip]", "ip"),
        ("t14[j] = t13*p0[ip, j]", "ip:j"),
        ("A[0 + j*1, 0 + k*1] = A[0 + j*1, 0 + k*1] + t14[j]*p0[ip, k]", "ip:j:k"),
    ]
    extents = {"ip": n_points, "j": n_basis, "k": n_basis}
    tables = {"w0": (n_points,), "p0": (n_points, n_basis)}
    shapes = {"A": (n_basis, n_basis), "coords": (6,)}
    return local_kernel(lines, extents, shapes, tables, {"t14": (n_basis,)})


def stiffness(n_points: int, n_basis: int) -> lp.TranslationUnit:
    """Of a triangle: two sums, whose factors are combinations of derivatives."""
    lines = [
        *JACOBIAN,
        *INVERSE,
        ("t13 = t7*w0[ip]", "ip"),
        ("t14[l] = t9*dx[ip, l] + t10*dy[ip, l]", "ip:l"),
        ("t15[m] = t11*dx[ip, m] + t12*dy[ip, m]", "ip:m"),
        ("t16 = t13*(t9*dx[ip, j] + t10*dy[ip, j])", "ip:j"),
        ("t17 = t13*(t11*dx[ip, j] + t12*dy[ip, j])", "ip:j"),
        (
            "A[0 + j*1, 0 + k*1] = A[0 + j*1, 0 + k*1] + t14[k]*t16 + t15[k]*t17",
            "ip:j:k",
        ),
    ]
    extents = {"ip": n_points, **dict.fromkeys("jklm", n_basis)}
    tables = {"w0": (n_points,), **dict.fromkeys(("dx", "dy"), (n_points, n_basis))}
    shapes = {"A": (n_basis, n_basis), "coords": (6,)}
    private = dict.fromkeys(("t14", "t15"), (n_basis,))
    return local_kernel(lines, extents, shapes, tables, private)


def helmholtz_action(n_points: int, n_basis: int) -> lp.TranslationUnit:
    """Of a triangle: three values at each point, which a sum brings back."""
    lines = [
        *JACOBIAN,
        *INVERSE,
        *((f"t{t} = 0.0", "ip") for t in (13, 14, 15)),
        ("t13 = t13 + p0[ip, i]*w_0[0 + i]", "ip:i"),
        ("t14 = t14 + dx[ip, i]*w_0[0 + i]", "ip:i"),
        ("t15 = t15 + dy[ip, i]*w_0[0 + i]", "ip:i"),
        ("t16 = t9*t14 + t10*t15", "ip"),
        ("t17 = t11*t14 + t12*t15", "ip"),
        ("t18 = t7*w0[ip]", "ip"),
        ("t19 = t18*t13", "ip"),
        ("t20 = t18*(t9*t16 + t11*t17)", "ip"),
        ("t21 = t18*(t10*t16 + t12*t17)", "ip"),
        (
            "A[0 + j*1] = A[0 + j*1] + p0[ip, j]*t19 + dx[ip, j]*t20 + dy[ip, j]*t21",
            "ip:j",
        ),
    ]
    extents = {"ip": n_points, "i": n_basis, "j": n_basis}
    of_basis = dict.fromkeys(("p0", "dx", "dy"), (n_points, n_basis))
    shapes = {"A": (n_basis,), "coords": (6,), "w_0": (n_basis,)}
    return local_kernel(lines, extents, shapes, {"w0": (n_points,), **of_basis}, {})


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


TRIANGLES = {1: (3, 3), 2: (6, 6), 3: (12, 10)}
"""Points of quadrature and functions of the basis, by order."""

KERNELS: dict[str, Callable[[], lp.TranslationUnit]] = {
    f"{make.__name__} of order {order}": partial(make, *sizes)
    for make in (mass, stiffness, helmholtz_action)
    for order, sizes in TRIANGLES.items()
} | {
    f"factorized_mass_action of order {order}": partial(
        factorized_mass_action, order + 2, order + 1
    )
    for order in (1, 2, 3)
}
