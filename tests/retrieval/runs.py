"""Running any kernel on the host with random arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import loopy as lp
import numpy as np
from pymbolic import evaluate

from feinsum.measure import open_device
from feinsum.targets.quiet import quiet

__all__ = ["run"]


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
