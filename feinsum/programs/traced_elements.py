"""Recorded elementwise functions of numpy, and the conversion of arguments.

Their parameters have numpy's names, order and defaults. ``out`` is refused before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feinsum.ir import SizeParam
from feinsum.programs.recording import View, as_view, normalize_axis, record_map, refuse


def find_first_view(values: Sequence[Any]) -> View:
    return next(value for value in values if isinstance(value, View))


def list_views(values: Sequence[Any]) -> list[View]:
    like = find_first_view(values)
    return [as_view(value, like) for value in values]


def require_number(extent: Any, purpose: str) -> int:
    if isinstance(extent, SizeParam):
        refuse(f"{purpose} along an axis whose extent is not known")
    return int(extent)


def normalize_axes(axis: Any, rank: int) -> list[int]:
    if axis is None:
        return [*range(rank)]
    axes = axis if isinstance(axis, Sequence) else [axis]
    numbers = [normalize_axis(a, rank) for a in axes]
    if len({*numbers}) < len(numbers):
        refuse(f"the axes {axis!r}, one of them twice")
    return numbers


def astype(
    a: Any,
    dtype: Any,
    order: str = "K",
    casting: Any = "unsafe",
    subok: bool = True,
    copy: bool = True,
    *,
    device: Any = None,
) -> Any:
    target = np.dtype(dtype)
    if target.kind not in "biufc" or target.char in "gG":
        refuse(f"a conversion to {target}")
    if not np.can_cast(a.dtype, target, casting):
        refuse(f"a conversion from {a.dtype} to {target} with casting={casting!r}")
    if target == a.dtype:
        return a if not copy else copy_array(a)
    # numpy drops the imaginary part, with a warning
    if a.dtype.kind == "c" and target.kind not in "cb":
        a = real(a)
    return record_map(f"{target.name}({{}})", [a])


def copy_array(a: Any, order: str = "C", subok: bool = False) -> Any:
    return a.computed(a.tensor, a.axes)


def choose_elements(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    if x is None or y is None:
        refuse("numpy.where of one array (its shape depends on values)")
    condition = as_view(condition, find_first_view([condition, x, y]))
    return record_map(
        "({1} if {0} else {2})", (condition, x, y), numbers=slice(1, None)
    )


def clip(
    a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, **ends: Any
) -> Any:
    lower, upper = ends.pop("min", a_min), ends.pop("max", a_max)
    if ends:
        refuse(f"clip with {', '.join(ends)}")
    operands = [a, *(end for end in (lower, upper) if end is not None)]
    # numpy applies the lower bound first
    form = "{}" if lower is None else "maximum({}, {})"
    form = form if upper is None else f"minimum({form}, {{}})"
    return record_map(form, operands) if len(operands) > 1 else copy_array(a)


def around(a: Any, decimals: int = 0, out: Any = None) -> Any:
    # integers have no decimals to round
    if a.dtype.kind in "iu" and decimals >= 0:
        return copy_array(a)
    if a.dtype.kind == "b" or a.dtype.kind in "iu":
        refuse(f"round of {a.dtype} to {decimals} decimals")
    scale = f"{10.0 ** abs(decimals)!r}"
    if decimals > 0:
        return record_map(f"(rint({{}} * {scale}) / {scale})", [a])
    form = "rint({})" if decimals == 0 else f"(rint({{}} / {scale}) * {scale})"
    return record_map(form, [a])


def real(val: Any) -> Any:
    return _take_part(val, "real({})") if val.dtype.kind == "c" else val


def imag(val: Any) -> Any:
    return _take_part(val, "imag({})")


def _take_part(a: Any, form: str) -> Any:
    """Return the real or imaginary part; it is a view, as in numpy."""
    component = record_map(form, [a])
    return a.viewed(component.tensor, component.axes)


def angle(z: Any, deg: bool = False) -> Any:
    if deg:
        refuse("an angle in degrees")
    form = "arctan2(imag({0}), real({0}))"
    return (
        record_map(form, [z])
        if z.dtype.kind == "c"
        else record_map("arctan2(0, {})", [z])
    )


def fill_array(
    fill_value: Any,
    a: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Return a numpy array, which becomes a constant of the program."""
    extents = a.shape if shape is None else shape
    if any(isinstance(n, SizeParam) for n in extents):
        refuse("an array of its own whose extents are not known")
    return np.full(extents, fill_value, a.dtype if dtype is None else dtype)
