"""Small kernels of every form, written with the names of a few known arrays."""

from __future__ import annotations

import re
from typing import Any

import loopy as lp
import numpy as np

__all__ = ["BOX", "SHAPES", "arguments", "kernel_of", "make"]

SHAPES: dict[str, tuple[Any, ...]] = {
    "A": (5, 6), "A2": (5, 6), "At": (6, 5), "B": (6, 7), "S": (5, 5), "x": (6,),
    "x2": (6,), "y": (5,), "z": (5,), "w": (7,), "out": (5,), "out2": (5,), "C": (5, 7),
    "T": (3, 5), "W": (5, 1), "flat": (30,), "total": (),
    "J": (3, 2, 5, 1), "D": (2, 4, 4), "u": (5, 4), "u0": (5, 4), "u1": (5, 4),
    "u2": (5, 4), "G": (3, 5, 4),
}  # fmt: skip
INTEGERS: dict[str, tuple[int, ...]] = {"map": (5,), "jmap": (6,), "flag": (5,)}
SIZES = {"n": 5, "m": 6}
BOX = "{[i,j,k]: 0<=i<5 and 0<=j<6 and 0<=k<7}"


def make(
    text: str,
    domain: Any = BOX,
    *,
    dtype: Any = np.float64,
    dtypes: Any = None,
    extra: Any = (),
) -> lp.TranslationUnit:
    """The kernel with those arguments that its text names.

    Args:
        dtype: of all floating point arguments.
        dtypes: of single ones, by name.
        extra: arguments of its own.
    """
    own = {arg.name for arg in extra}
    names = set(re.findall(r"\w+", f"{text} {domain}")) - own
    of = dict.fromkeys([*SHAPES, "alpha", "beta"], dtype)
    of |= dict.fromkeys([*INTEGERS, "n", "m"], np.int32) | (dtypes or {})
    shapes = SHAPES | INTEGERS
    args = [lp.GlobalArg(n, of[n], shape=shapes[n]) for n in shapes if n in names]
    args += [lp.ValueArg(n, of[n]) for n in ("alpha", "beta", "n", "m") if n in names]
    return lp.make_kernel(domain, text, [*args, *extra], lang_version=(2018, 2))


def kernel_of(text: str, domain: Any = BOX, **options: Any) -> lp.TranslationUnit:
    """The same without loops that no instruction has."""
    return lp.remove_unused_inames(make(text, domain, **options))


def arguments(unit: lp.TranslationUnit) -> dict[str, Any]:
    """Positive numbers for a kernel of floating point; indices are in range."""
    rng, values = np.random.default_rng(0), dict[str, Any]()
    for arg in unit.default_entrypoint.args:
        if isinstance(arg, lp.ValueArg):
            values[arg.name] = SIZES.get(arg.name, 1.5)
        elif arg.name in INTEGERS:
            values[arg.name] = rng.integers(0, 5, arg.shape, arg.dtype.numpy_dtype)
        else:
            values[arg.name] = rng.uniform(0.1, 1, arg.shape)
    return values
