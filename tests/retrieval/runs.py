"""Running kernels on the host: on random arrays, on given ones, and as plain C."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import loopy as lp
import numpy as np
from pymbolic import evaluate

from feinsum.measure import compile_kernel, open_device
from feinsum.targets.host.compiler import find_compiler
from feinsum.targets.quiet import quiet

__all__ = ["call_in_c", "in_place", "on_host", "run"]


def run(t_unit: lp.TranslationUnit, sizes: Mapping[str, int]) -> dict[str, Any]:
    """All results of a kernel; arguments depend on their names and shapes alone."""
    kernel = t_unit.default_entrypoint
    arguments: dict[str, Any] = {n: v for n, v in sizes.items() if n in kernel.arg_dict}
    for arg in kernel.args:
        if isinstance(arg, lp.ArrayArg):
            shape = tuple(int(evaluate(extent, dict(sizes))) for extent in arg.shape)
            rng = np.random.default_rng(sum(map(ord, arg.name)))
            dtype = getattr(arg.dtype, "numpy_dtype", "f8")
            arguments[arg.name] = rng.random(shape).astype(dtype)
    with quiet():
        open_device("host").prepare(t_unit).executor()(**arguments)
    return {
        name: value
        for name, value in arguments.items()
        if name in kernel.get_written_variables()
    }


def on_host(t_unit: lp.TranslationUnit, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """All results of a kernel, of what it is given."""
    bound = compile_kernel(t_unit, open_device("host")).bind(arguments)
    bound.poison()
    bound.run()
    return {name: np.array(value) for name, value in bound.read().items()}


def in_place(t_unit: lp.TranslationUnit, given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments after a kernel that adds to what is there."""
    arguments = {n: x.copy() if np.ndim(x) else x for n, x in given.items()}
    kernel = compile_kernel(t_unit, open_device("host"))
    kernel.built.run(arguments, kernel.timer)
    return arguments


def call_in_c(
    t_unit: lp.TranslationUnit,
    arguments: Mapping[str, Any],
    folder: Path,
    code: str | None = None,
) -> dict[str, Any]:
    """What a function of C makes of its arrays, compiled as others would do it.

    Args:
        arguments: those that are left out are results, and begin as NaN.
        code: of the function; that of the kernel with two headers, if it is left out.
    """
    if code is None:
        plain = lp.generate_code_v2(t_unit).device_code()
        code = f"#include <math.h>\n#include <stdint.h>\n{plain}"
    folder.mkdir()
    (folder / "kernel.c").write_text(code)
    flags = ["-O2", "-march=native", "-shared", "-fPIC", "-Wall", "-Werror=implicit"]
    command = [*find_compiler().command, *flags, "-o", "kernel.so", "kernel.c", "-lm"]
    subprocess.run(command, check=True, cwd=folder)
    kernel, arrays = t_unit.default_entrypoint, dict[str, Any]()
    numbers = {n: x for n, x in arguments.items() if np.ndim(x) == 0}
    values: list[Any] = []
    for arg in kernel.args:
        dtype = arg.dtype.numpy_dtype
        if isinstance(arg, lp.ValueArg):
            values.append(np.ctypeslib.as_ctypes_type(dtype)(numbers[arg.name]))
            continue
        if arg.name in arguments:
            array = np.array(arguments[arg.name], dtype, order="C")
        else:
            array = np.full([evaluate(x, numbers) for x in arg.shape], np.nan, dtype)
        arrays[arg.name] = array
        values.append(ctypes.c_void_p(array.ctypes.data))
    getattr(ctypes.CDLL(str(folder / "kernel.so")), kernel.name)(*values)
    return arrays
