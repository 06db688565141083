"""The fastest form of a loop over cells: each form is compiled and timed here.

The given loop, the loop whose callee has recipes, and batches of cells are called in
turns, in a separate process, on random arrays. Forms with different results are
dropped. A form is used only if it is clearly faster than the given loop.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import loopy as lp
import numpy as np
from loopy.schedule.tools import get_kernel_arg_info
from loopy.symbolic import WalkMapper
from pymbolic import evaluate
from pymbolic import primitives as p

from feinsum.errors import FeinsumError, MeasurementError
from feinsum.memory import remembered
from feinsum.processes import child_environment, run_to_end
from feinsum.retrieval import timing_script
from feinsum.retrieval.cell_batches import WIDTHS, batched
from feinsum.retrieval.generating import generated
from feinsum.retrieval.result import Retrieval
from feinsum.targets.host.compiler import find_compiler

__all__ = ["CALLED", "GIVEN", "fastest_form", "fastest_of"]

logger = logging.getLogger(__name__)

FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffast-math", "-fPIC", "-shared")
"""PyOP2's compiler options, and those of a library."""
N_CELLS = 1003
"""Cells of the timed loop; no batch size divides it."""
ROUNDS = 9
GAIN = 1.05
"""How much faster another form has to be."""
EXACTNESS = 0.6
"""Part of the digits that results must share, relative to the largest entry."""
LIMIT_S = 60.0
MOST_ENTRIES = 1 << 24


def fastest_form(given: lp.TranslationUnit, found: Retrieval) -> Retrieval:
    """The retrieval of a loop over cells, with batches of cells if these are faster.

    Args:
        found: the retrieval for the callee; the given unit is returned if it is the
            fastest.
    """
    try:
        forms = _forms(given, found)
        seconds = _seconds(given, list(forms.values()))
    except Exception as error:  # no form may break a build
        is_odd = not isinstance(error, FeinsumError)
        logger.info("batches of cells are not tried: %s", error, exc_info=is_odd)
        return found
    return fastest_of(found, forms, dict(zip(forms, seconds, strict=True)))


def fastest_of(
    found: Retrieval,
    forms: Mapping[int, lp.TranslationUnit],
    seconds: Mapping[int, float],
) -> Retrieval:
    """The fastest form, if it is clearly faster than the given one.

    Args:
        forms: forms by batch width.
        seconds: the time of each; infinity for forms that must not be used.
    """
    best = min(seconds, key=lambda width: seconds[width])
    gain = seconds[GIVEN] / seconds[best]
    if best == GIVEN or gain < GAIN:
        return _as_given(found, forms, seconds)
    if best == CALLED:
        return found
    words = f"timed on this machine: {gain:.2f} times as fast as cell by cell"
    return replace(found, t_unit=forms[best], nests=(), batch=best, batch_words=words)


_TABLES = re.compile(r"^  (?=\w+ \w+\[[^;{]*\] = \{)", re.MULTILINE)
"""Tables of the given kernel: static in other programs, and therefore in timings."""
GIVEN, CALLED = 0, 1
"""Values in place of the width of a batch."""


def _as_given(
    found: Retrieval,
    forms: Mapping[int, lp.TranslationUnit],
    seconds: Mapping[int, float],
) -> Retrieval:
    """Without the recipes of the kernel that is called, if these do not pay."""
    if CALLED not in seconds:
        return found
    slower = seconds[CALLED] / seconds[GIVEN]
    why = MeasurementError(
        f"in its loop over cells it takes {slower:.2f} times as long as the given one"
    )
    nests = tuple(one.without_all(why) for one in found.nests)
    return replace(found, t_unit=forms[GIVEN], nests=nests)


def _forms(
    given: lp.TranslationUnit, found: Retrieval
) -> dict[int, lp.TranslationUnit]:
    """The units by the width of their batches."""
    forms = {GIVEN: given}
    if found.applied:
        forms[CALLED] = found.t_unit
    for width in WIDTHS:
        try:
            forms[width] = batched(given, width)
        except Exception as error:  # noqa: BLE001  (no form may break a build)
            logger.info("no batches of %d cells: %s", width, error)
    if len(forms) == 1:
        raise MeasurementError("there is no other form")
    return forms


class _Known(dict[str, list[float]]):
    """The seconds of earlier questions of this process."""


def _seconds(
    given: lp.TranslationUnit, units: Sequence[lp.TranslationUnit]
) -> list[float]:
    """The minimum time of each unit; infinity for different results.

    Raises:
        MeasurementError: if the functions cannot be called, with the reason.
        FeinsumError: if one has no code, or does not compile.
    """
    kernel = given.default_entrypoint
    first, *others = (generated(unit) for unit in units)
    sources = [_TABLES.sub("  static ", first), *others]
    names = [
        list(get_kernel_arg_info(unit.default_entrypoint).passed_arg_names)
        for unit in units
    ]
    asked: dict[str, Any] = {
        "function": kernel.name,
        "arguments": _arguments(kernel),
        "written": _written(kernel),
        "rounds": ROUNDS,
        "tolerance": _tolerance(kernel),
    }
    key = json.dumps((sources, asked), sort_keys=True)
    known = remembered(_Known)
    if key not in known:
        known[key] = _timed(sources, names, asked)
    return known[key]


def _tolerance(kernel: lp.LoopKernel) -> float:
    dtypes = [kernel.arg_dict[n].dtype.numpy_dtype for n in _written(kernel)]
    eps = max(float(np.finfo(dtype).eps) for dtype in dtypes)
    return float(eps**EXACTNESS)


def _written(kernel: lp.LoopKernel) -> list[str]:
    """The arrays that a call writes.

    Raises:
        MeasurementError: if they are not all of floating point numbers.
    """
    names = sorted(kernel.get_written_variables() & set(kernel.arg_dict))
    dtypes = [getattr(kernel.arg_dict[n].dtype, "numpy_dtype", None) for n in names]
    if not names or any(dtype is None or dtype.kind not in "fc" for dtype in dtypes):
        raise MeasurementError(f"{names} are not floating-point results")
    return names


def _timed(
    sources: Sequence[str], names: Sequence[Sequence[str]], asked: Mapping[str, Any]
) -> list[float]:
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(prefix="feinsum-cells-") as folder:
        libraries = []
        for k, source in enumerate(sources):
            path = Path(folder, f"{k}.so")
            path.write_bytes(compiler.compile(source, FLAGS))
            libraries.append([str(path), names[k]])
        ended = run_to_end(
            (sys.executable, "-P", timing_script.__file__),
            json.dumps({**asked, "libraries": libraries}),
            limit_s=LIMIT_S,
            env=child_environment(folder),
        )
        if not ended.is_ok:
            raise MeasurementError(f"the process that takes times ended: {ended}")
        said = json.loads(ended.said)
    return [
        seconds if error <= asked["tolerance"] else float("inf")
        for seconds, error in zip(said["seconds"], said["errors"], strict=True)
    ]


def _arguments(kernel: lp.LoopKernel) -> dict[str, dict[str, Any]]:
    """Arguments of a call: random arrays, and a loop over some cells."""
    scalars = {
        arg.name: 0 if k == 0 else N_CELLS
        for k, arg in enumerate(_ordered_bounds(kernel))
    }
    sizes = {
        arg.name: scalars.get(arg.name, N_CELLS)
        for arg in kernel.args
        if isinstance(arg, lp.ValueArg)
    }
    shapes = {
        arg.name: _shape(arg, sizes)
        for arg in kernel.args
        if isinstance(arg, lp.ArrayArg)
    }
    below = _Limits(shapes)
    for insn in kernel.instructions:
        for expression in (*insn.assignees, getattr(insn, "expression", 0)):
            below(expression)
    return {
        arg.name: {
            "dtype": str(arg.dtype.numpy_dtype),
            **(
                {"shape": shapes[arg.name], "below": below.limits.get(arg.name, 1)}
                if arg.name in shapes
                else {"value": sizes[arg.name]}
            ),
        }
        for arg in kernel.args
    }


def _ordered_bounds(kernel: lp.LoopKernel) -> list[lp.ValueArg]:
    """The scalars, if they are two, of which the first one is where cells begin."""
    scalars = [arg for arg in kernel.args if isinstance(arg, lp.ValueArg)]
    if any(arg.dtype.numpy_dtype.kind not in "iu" for arg in scalars):
        raise MeasurementError("a scalar argument is no size")
    return scalars if len(scalars) == 2 else []


def _shape(arg: lp.ArrayArg, sizes: Mapping[str, int]) -> list[int]:
    if not isinstance(arg.shape, tuple) or arg.dtype is None:
        raise MeasurementError(f"the shape of {arg.name!r} is unknown")
    shape = [
        N_CELLS if extent is None else int(evaluate(extent, sizes))
        for extent in arg.shape
    ]
    if not 0 < np.prod(shape, dtype=float) <= MOST_ENTRIES:
        raise MeasurementError(f"{arg.name!r} has the shape {shape}")
    return shape


class _Limits(WalkMapper):  # type: ignore[misc]
    """How large the entries of arrays of indices may be: where they are subscripts."""

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self.shapes = shapes
        self.limits: dict[str, int] = {}

    def map_subscript(self, expr: p.Subscript, /) -> None:
        shape = self.shapes.get(expr.aggregate.name)
        for k, index in enumerate(expr.index_tuple):
            if isinstance(index, p.Subscript):
                name = index.aggregate.name
                limit = 1 if shape is None else shape[k]
                self.limits[name] = min(limit, self.limits.get(name, limit))
            self.rec(index)
