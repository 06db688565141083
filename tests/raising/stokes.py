"""Kernels of one triangle in the shape that TSFC gives those of Taylor and Hood.

Velocities have two components of six functions, pressures three functions. The parts of
an output that belong to a component, or to the pressure, are added to in one loop over
the points of quadrature.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import loopy as lp

from tests.raising.local_kernels import Line, local_kernel

__all__ = ["STOKES"]

N_POINTS, N_VELOCITY, N_PRESSURE = 6, 6, 3
N_COMPONENTS = 2 * N_VELOCITY
"""Where pressures begin in an output with both."""

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

SLOPES: list[Line] = [
    *JACOBIAN,
    *INVERSE,
    ("t13 = t7*w0[ip]", "ip"),
    ("t14[l] = t9*dx[ip, l] + t10*dy[ip, l]", "ip:l"),
    ("t15[m] = t11*dx[ip, m] + t12*dy[ip, m]", "ip:m"),
]
WEIGHTED: list[Line] = [
    ("t16 = t13*(t9*dx[ip, j] + t10*dy[ip, j])", "ip:j"),
    ("t17 = t13*(t11*dx[ip, j] + t12*dy[ip, j])", "ip:j"),
]


def _added(place: str, value: str, loops: str) -> Line:
    return f"A[{place}] = A[{place}] + {value}", loops


def _velocities() -> list[Line]:
    """The symmetric gradient, by pairs of components."""
    return [
        _added("0 + j*2, 0 + k*2", "2.0*t14[k]*t16 + t15[k]*t17", "ip:j:k"),
        _added("0 + j*2, 1 + k*2", "t14[k]*t17", "ip:j:k"),
        _added("1 + j*2, 0 + k*2", "t15[k]*t16", "ip:j:k"),
        _added("1 + j*2, 1 + k*2", "t14[k]*t16 + 2.0*t15[k]*t17", "ip:j:k"),
    ]


def _divergence(first: int) -> list[Line]:
    """Pressures times the slopes of velocities, which begin at the row ``first``."""
    return [
        ("t18 = -1.0*t13*q0[ip, n]", "ip:n"),
        _added(f"{first} + n*1, 0 + r*2", "t18*t14[r]", "ip:n:r"),
        _added(f"{first} + n*1, 1 + r*2", "t18*t15[r]", "ip:n:r"),
    ]


def _gradient() -> list[Line]:
    """What the divergence is, transposed."""
    return [
        _added("0 + j*2, 12 + o*1", "-1.0*t16*q0[ip, o]", "ip:j:o"),
        _added("1 + j*2, 12 + o*1", "-1.0*t17*q0[ip, o]", "ip:j:o"),
    ]


def _residual() -> list[Line]:
    """Slopes and pressures at each point, which one more sum brings back."""
    names = ("u_x", "u_y", "v_x", "v_y")
    lines = [*JACOBIAN, *INVERSE, *((f"{name} = 0.0", "ip") for name in (*names, "p"))]
    for name, component in zip(names, (0, 0, 1, 1), strict=True):
        slope = "t9*dx[ip, i] + t10*dy[ip, i]"
        if name.endswith("y"):
            slope = "t11*dx[ip, i] + t12*dy[ip, i]"
        value = f"({slope})*w_0[{component} + i*2]"
        lines.append((f"{name} = {name} + {value}", "ip:i"))
    return [
        *lines,
        ("p = p + q0[ip, o]*w_0[12 + o*1]", "ip:o"),
        ("t13 = t7*w0[ip]", "ip"),
        ("t14 = t13*(2.0*u_x + -1.0*p)", "ip"),
        ("t15 = t13*(u_y + v_x)", "ip"),
        ("t16 = t13*(2.0*v_y + -1.0*p)", "ip"),
        ("t17 = -1.0*t13*(u_x + v_y)", "ip"),
        ("t18 = t9*dx[ip, j] + t10*dy[ip, j]", "ip:j"),
        ("t19 = t11*dx[ip, j] + t12*dy[ip, j]", "ip:j"),
        _added("0 + j*2", "t18*t14 + t19*t15", "ip:j"),
        _added("1 + j*2", "t18*t15 + t19*t16", "ip:j"),
        _added("12 + n*1", "q0[ip, n]*t17", "ip:n"),
    ]


def _kernel(lines: list[Line], shape: tuple[int, ...]) -> lp.TranslationUnit:
    text = "".join(line for line, _ in lines)
    of_velocities = dict.fromkeys("ijklmr", N_VELOCITY)
    extents = {"ip": N_POINTS, **of_velocities, "n": N_PRESSURE, "o": N_PRESSURE}
    loops = {iname for _, names in lines for iname in names.split(":")}
    shapes = {"A": shape, "coords": (6,)}
    if "w_0" in text:
        shapes["w_0"] = (N_COMPONENTS + N_PRESSURE,)
    tables = dict.fromkeys(("dx", "dy"), (N_POINTS, N_VELOCITY))
    if "q0" in text:
        tables["q0"] = (N_POINTS, N_PRESSURE)
    private = ("t14", "t15") if "t14[" in text else ()
    return local_kernel(
        lines,
        {iname: n for iname, n in extents.items() if iname in loops},
        shapes,
        {"w0": (N_POINTS,), **tables},
        dict.fromkeys(private, (N_VELOCITY,)),
    )


N_ALL = N_COMPONENTS + N_PRESSURE
STOKES: dict[str, Callable[[], lp.TranslationUnit]] = {
    "velocities": partial(
        _kernel, [*SLOPES, *WEIGHTED, *_velocities()], (N_COMPONENTS, N_COMPONENTS)
    ),
    "divergence": partial(
        _kernel, [*SLOPES, *_divergence(0)], (N_PRESSURE, N_COMPONENTS)
    ),
    "all blocks": partial(
        _kernel,
        [*SLOPES, *WEIGHTED, *_velocities(), *_gradient(), *_divergence(N_COMPONENTS)],
        (N_ALL, N_ALL),
    ),
    "residual": partial(_kernel, _residual(), (N_ALL,)),
}
"""By name, a form or a block of one."""
