"""Kernels of a triangle in the shape that TSFC gives those of a mixed Poisson problem.

Fluxes are of Raviart and Thomas: the Piola map multiplies a function of the basis by
the Jacobian matrix and divides by its determinant, with the sign of that. Potentials
are discontinuous and begin behind the fluxes in an output with both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import loopy as lp

from tests.raising.local_kernels import JACOBIAN, Line, local_kernel

__all__ = ["MIXED_POISSON"]

N_POINTS, N_FLUX, N_POTENTIAL = 6, 8, 3
N_ALL = N_FLUX + N_POTENTIAL

PIOLA: list[Line] = [
    *JACOBIAN,
    ("t8 = 1.0 / t6", ""),
    ("t9 = t1*t8", ""), ("t10 = t4*t8", ""), ("t11 = t5*t8", ""), ("t12 = t3*t8", ""),
    ("t13 = t7*w0[ip]", "ip"),
]  # fmt: skip


def _mapped(row: str, iname: str) -> str:
    """A component of a function, from both components on the reference cell."""
    first, second = {"x": ("t9", "t10"), "y": ("t11", "t12")}[row]
    return f"{first}*fx[ip, {iname}] + {second}*fy[ip, {iname}]"


def _added(place: str, value: str, loops: str) -> Line:
    return f"A[{place}] = A[{place}] + {value}", loops


MATRIX: list[Line] = [
    *PIOLA,
    (f"t14[l] = {_mapped('x', 'l')}", "ip:l"),
    (f"t15[m] = {_mapped('y', 'm')}", "ip:m"),
    ("t18[r] = t13*t8*df[ip, r]", "ip:r"),
    (f"t16 = t13*({_mapped('x', 'j')})", "ip:j"),
    (f"t17 = t13*({_mapped('y', 'j')})", "ip:j"),
    _added("0 + j*1, 0 + k*1", "t14[k]*t16 + t15[k]*t17", "ip:j:k"),
    _added("0 + j*1, 8 + o*1", "-1.0*t18[j]*q0[ip, o]", "ip:j:o"),
    _added("8 + n*1, 0 + u*1", "q0[ip, n]*t18[u]", "ip:n:u"),
]
RESIDUAL: list[Line] = [
    *PIOLA,
    *((f"{name} = 0.0", "ip") for name in ("s_x", "s_y", "div", "p")),
    (f"s_x = s_x + ({_mapped('x', 'i')})*w_0[0 + i]", "ip:i"),
    (f"s_y = s_y + ({_mapped('y', 'i')})*w_0[0 + i]", "ip:i"),
    ("div = div + t8*df[ip, i]*w_0[0 + i]", "ip:i"),
    ("p = p + q0[ip, o]*w_0[8 + o*1]", "ip:o"),
    _added(
        "0 + j*1",
        f"t13*(({_mapped('x', 'j')})*s_x + ({_mapped('y', 'j')})*s_y)"
        " + -1.0*t13*p*t8*df[ip, j]",
        "ip:j",
    ),
    _added("8 + n*1", "t13*div*q0[ip, n]", "ip:n"),
]


def _kernel(lines: list[Line], shape: tuple[int, ...]) -> lp.TranslationUnit:
    text = "".join(line for line, _ in lines)
    loops = {iname for _, names in lines for iname in names.split(":")} - {""}
    of_potentials = {"n": N_POTENTIAL, "o": N_POTENTIAL}
    extents = {iname: of_potentials.get(iname, N_FLUX) for iname in sorted(loops)}
    return local_kernel(
        lines,
        {**extents, "ip": N_POINTS},
        {"A": shape, "coords": (6,), **({"w_0": (N_ALL,)} if "w_0" in text else {})},
        {
            "w0": (N_POINTS,),
            **dict.fromkeys(("fx", "fy", "df"), (N_POINTS, N_FLUX)),
            "q0": (N_POINTS, N_POTENTIAL),
        },
        {n: (N_FLUX,) for n in ("t14", "t15", "t18") if f"{n}[" in text},
    )


MIXED_POISSON: dict[str, Callable[[], lp.TranslationUnit]] = {
    "mixed matrix": partial(_kernel, MATRIX, (N_ALL, N_ALL)),
    "mixed residual": partial(_kernel, RESIDUAL, (N_ALL,)),
}
"""By name, a form of the problem."""
