"""Functions and methods of numpy's arrays, recorded.

Their parameters have numpy's names, order and defaults. ``out`` is refused before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from feinsum.ir import SizeParam
from feinsum.programs.recording import (
    View,
    as_view,
    axis_of,
    called,
    einsum,
    is_array,
    letters_of,
    mapped,
    numpy_statement,
    reduced,
    refuse,
    statement,
)
from feinsum.words import counted


def _first(values: Sequence[Any]) -> View:
    return next(value for value in values if isinstance(value, View))


def _views(values: Sequence[Any]) -> list[View]:
    like = _first(values)
    return [as_view(value, like) for value in values]


def _number_of(extent: Any, purpose: str) -> int:
    if isinstance(extent, SizeParam):
        refuse(f"{purpose} along an axis whose extent is not known")
    return int(extent)


def _axes(axis: Any, rank: int) -> list[int]:
    if axis is None:
        return [*range(rank)]
    axes = axis if isinstance(axis, Sequence) else [axis]
    numbers = [axis_of(a, rank) for a in axes]
    if len({*numbers}) < len(numbers):
        refuse(f"the axes {axis!r}, one of them twice")
    return numbers


# Elements


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
        return a if not copy else copied(a)
    # numpy drops the imaginary part, with a warning
    if a.dtype.kind == "c" and target.kind not in "cb":
        a = real(a)
    return mapped(f"{target.name}({{}})", [a])


def copied(a: Any, order: str = "C", subok: bool = False) -> Any:
    return a.computed(a.tensor, a.axes)


def choose_elements(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    if x is None or y is None:
        refuse("numpy.where of one array (its shape depends on values)")
    condition = as_view(condition, _first([condition, x, y]))
    return mapped("({1} if {0} else {2})", (condition, x, y), numbers=slice(1, None))


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
    return mapped(form, operands) if len(operands) > 1 else copied(a)


def around(a: Any, decimals: int = 0, out: Any = None) -> Any:
    # integers have no decimals to round
    if a.dtype.kind in "iu" and decimals >= 0:
        return copied(a)
    if a.dtype.kind == "b" or a.dtype.kind in "iu":
        refuse(f"round of {a.dtype} to {decimals} decimals")
    scale = f"{10.0 ** abs(decimals)!r}"
    if decimals > 0:
        return mapped(f"(rint({{}} * {scale}) / {scale})", [a])
    form = "rint({})" if decimals == 0 else f"(rint({{}} / {scale}) * {scale})"
    return mapped(form, [a])


def real(val: Any) -> Any:
    return _part(val, "real({})") if val.dtype.kind == "c" else val


def imag(val: Any) -> Any:
    return _part(val, "imag({})")


def _part(a: Any, form: str) -> Any:
    """Return the real or imaginary part; it is a view, as in numpy."""
    part = mapped(form, [a])
    return a.viewed(part.tensor, part.axes)


def angle(z: Any, deg: bool = False) -> Any:
    if deg:
        refuse("an angle in degrees")
    form = "arctan2(imag({0}), real({0}))"
    return mapped(form, [z]) if z.dtype.kind == "c" else mapped("arctan2(0, {})", [z])


def _filled(
    fill_value: Any,
    a: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Return an array of numpy itself: its entries are constants of the program."""
    extents = a.shape if shape is None else shape
    if any(isinstance(n, SizeParam) for n in extents):
        refuse("an array of its own whose extents are not known")
    return np.full(extents, fill_value, a.dtype if dtype is None else dtype)


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    return _filled(fill_value, a, dtype, shape=shape)


# Reductions


def _flat(a: Any, axis: Any) -> tuple[Any, int]:
    """An array and the number of its axis; without an axis, of all entries in a row."""
    return (ravel(a), 0) if axis is None else (a, axis_of(axis, a.ndim))


def _widened(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which numpy adds booleans and small integers."""
    if dtype.kind in "bi" and dtype.itemsize < np.dtype(np.int_).itemsize:
        return np.dtype(np.int_)
    if dtype.kind == "u" and dtype.itemsize < np.dtype(np.uint).itemsize:
        return np.dtype(np.uint)
    return dtype


def _summed(
    reduction: str,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
) -> Any:
    target = _widened(a.dtype) if dtype is None else np.dtype(dtype)
    # numpy would drop the imaginary parts with a warning
    if a.dtype.kind == "c" and target.kind != "c":
        refuse(f"a {reduction} of {a.dtype} with dtype={target}")
    return reduced(reduction, a, _axes(axis, a.ndim), keepdims, target)


def _chosen(
    reduction: str, a: Any, axis: Any = None, out: Any = None, keepdims: bool = False
) -> Any:
    return reduced(reduction, a, _axes(axis, a.ndim), keepdims)


def _count(a: Any, axis: Any) -> int:
    return prod(_number_of(a.shape[k], "a mean") for k in _axes(axis, a.ndim))


def mean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
) -> Any:
    is_half = dtype is None and a.dtype == np.float16
    # as numpy: halves are added in single precision, integers in double
    if dtype is None:
        whole = np.dtype(np.float64) if a.dtype.kind in "biu" else a.dtype
        dtype = np.dtype(np.float32) if is_half else whole
    if np.dtype(dtype).kind not in "fc":
        refuse(f"a mean with dtype={np.dtype(dtype)}")
    total = _summed("sum", a, axis, dtype, keepdims=keepdims)
    quotient = mapped(f"({{}} / {_divisor(_count(a, axis))})", [total])
    return astype(quotient, np.float16) if is_half else quotient


def _divisor(n: float) -> str:
    return repr(float(n))


def _spread(
    is_root: bool,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """The variance, or its root: the mean squared distance from the mean, as in numpy.

    The mean of squares less the square of the mean would lose digits.
    """
    ddof = ddof if correction is None else correction
    if dtype is None and a.dtype.kind in "biu":
        dtype = np.float64
    n = _count(a, axis)
    total = _summed("sum", a, axis, dtype, keepdims=True)
    middle = mapped(f"({{}} / {_divisor(n)})", [total])
    distance = mapped("({} - {})", [a, middle])
    squares = mapped(_squared(distance), [distance])
    total = _summed("sum", squares, axis, dtype, None, keepdims)
    variance = mapped(f"({{}} / {_divisor(max(n - ddof, 0))})", [total])
    return mapped("sqrt({})", [variance]) if is_root else variance


def _squared(a: Any) -> str:
    """Return the form of the squared absolute value of entries."""
    return "real({0} * conj({0}))" if a.dtype.kind == "c" else "({0} * {0})"


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    most, least = (_chosen(r, a, axis, None, keepdims) for r in ("max", "min"))
    return mapped("({} - {})", [most, least])


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    is_euclid = ord is None or (ord == 2 and isinstance(axis, int))
    if not (is_euclid or (ord == 2 and x.ndim == 1)):
        refuse(f"numpy.linalg.norm with ord={ord!r}")
    # squares of small integers would overflow
    if x.dtype.kind in "biu":
        x = astype(x, np.float64)
    squares = mapped(_squared(x), [x])
    return mapped("sqrt({})", [_summed("sum", squares, axis, keepdims=keepdims)])


def _position_of_extreme(
    function: str, a: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False
) -> Any:
    flat, at = _flat(a, axis)
    positions = called(function, [flat], at)
    if not keepdims:
        return positions
    shape = [1 if axis is None or k == at else n for k, n in enumerate(a.shape)]
    return reshape(positions, shape)


def _accumulated(
    function: str, a: Any, axis: Any = None, dtype: Any = None, out: Any = None
) -> Any:
    target = _widened(a.dtype) if dtype is None else np.dtype(dtype)
    flat, at = _flat(a, axis)
    return called(function, [astype(flat, target, copy=False)], at)


def _cumulative(
    function: str,
    x: Any,
    /,
    *,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    include_initial: bool = False,
) -> Any:
    if include_initial or (axis is None and x.ndim > 1):
        refuse(f"a cumulative {function} with axis={axis!r}, {include_initial=}")
    return _accumulated(f"cum{function}", x, axis, dtype)


def diff(a: Any, n: int = 1, axis: int = -1) -> Any:
    at = axis_of(axis, a.ndim)
    before = (slice(None),) * at
    for _ in range(n):
        late, early = a[(*before, slice(1, None))], a[(*before, slice(None, -1))]
        a = late ^ early if a.dtype.kind == "b" else late - early
    return a


# Axes


def reshape(
    a: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None
) -> Any:
    extents = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if order != "C":
        refuse(f"reshape with order={order!r}")
    unknown = [n for n in extents if isinstance(n, SizeParam)]
    if len(unknown) + extents.count(-1) > 1 or not {*unknown} <= {*a.shape}:
        refuse("reshape to several extents that are not known")
    # a size parameter becomes -1: its value is not known
    wanted = tuple(-1 if n in unknown else int(n) for n in extents)
    is_same = a.shape == extents
    shaped = a if is_same else called("reshape", [a], wanted, is_view=True)
    return copied(shaped) if copy else shaped.viewed(shaped.tensor, shaped.axes)


def ravel(a: Any, order: str = "C") -> Any:
    return reshape(a, (-1,), order)


def _ordered(a: Any, axes: Sequence[int]) -> Any:
    return a.viewed(a.tensor, [a.axes[k] for k in axes])


def transpose(a: Any, axes: Any = None) -> Any:
    order = [*range(a.ndim)][::-1] if axes is None else _axes(axes, a.ndim)
    if len(order) != a.ndim:
        refuse(f"the order {axes!r} of an array with {counted(a.ndim, 'axis')}")
    return _ordered(a, order)


def transposed(a: Any, *axes: Any) -> Any:
    """Do the same as a method of arrays."""
    is_one = len(axes) == 1 and not isinstance(axes[0], int | np.integer)
    return transpose(a, (axes[0] if is_one else axes or None))


def reshaped(a: Any, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
    """Do the same as a method of arrays."""
    if not shape:
        refuse("reshape without a shape")
    extents = shape[0] if len(shape) == 1 else shape
    return reshape(a, extents, order, copy=copy)


def matrix_transpose(x: Any, /) -> Any:
    if x.ndim < 2:
        refuse(f"a matrix transpose of an array with {counted(x.ndim, 'axis')}")
    return swapaxes(x, -1, -2)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    order = [*range(a.ndim)]
    first, second = axis_of(axis1, a.ndim), axis_of(axis2, a.ndim)
    order[first], order[second] = order[second], order[first]
    return _ordered(a, order)


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    old, new = _axes(source, a.ndim), _axes(destination, a.ndim)
    if len(old) != len(new):
        refuse(f"moveaxis from {source!r} to {destination!r}")
    order = [k for k in range(a.ndim) if k not in old]
    for at, k in sorted(zip(new, old, strict=True)):
        order.insert(at, k)
    return _ordered(a, order)


def expand_dims(a: Any, axis: Any) -> Any:
    axes = axis if isinstance(axis, Sequence) else [axis]
    rank = a.ndim + len(axes)
    added = _axes(axes, rank)
    left = iter(a.axes)
    return a.viewed(a.tensor, [None if k in added else next(left) for k in range(rank)])


def squeeze(a: Any, axis: Any = None) -> Any:
    every = [k for k, n in enumerate(a.shape) if n == 1]
    gone = every if axis is None else _axes(axis, a.ndim)
    if any(k not in every for k in gone):
        refuse(f"squeeze of axes {axis!r}, one of which has not the extent 1")
    # a subscript 0 removes the axis
    return a[tuple(0 if k in gone else slice(None) for k in range(a.ndim))]


def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    extents = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if any(isinstance(n, SizeParam) for n in extents):
        refuse("broadcast_to a shape that is not known")
    return called("broadcast_to", [array], extents, is_view=True)


def broadcast_arrays(*args: Any, subok: bool = False) -> Any:
    arrays = _views(args)
    # numpy broadcasts shapes without entries
    shapes: Any = [array.shape for array in arrays]
    shape = np.broadcast_shapes(*shapes)
    return tuple(broadcast_to(array, shape) for array in arrays)


def _at_least(rank: int, *arys: Any) -> Any:
    def padded(a: Any) -> Any:
        if a.ndim >= rank:
            return a
        if rank == 3 and a.ndim == 2:
            return expand_dims(a, 2)
        if rank == 3 and a.ndim == 1:
            return expand_dims(a, (0, 2))
        return expand_dims(a, tuple(range(rank - a.ndim)))

    arrays = tuple(map(padded, _views(arys)))
    return arrays if len(arrays) > 1 else arrays[0]


def concatenate(arrays: Any, /, axis: Any = 0, out: Any = None, **more: Any) -> Any:
    if set(more) - {"dtype", "casting"}:
        refuse(f"concatenate with {', '.join(more)}")
    views = _views([*arrays])
    if axis is None:
        # as numpy does without an axis
        views, axis = [ravel(view) for view in views], 0
    if more.get("dtype") is not None:
        casting = more.get("casting", "same_kind")
        views = [astype(v, more["dtype"], casting=casting, copy=False) for v in views]
    return called("concatenate", views, axis_of(axis, views[0].ndim))


def stack(arrays: Any, axis: int = 0, out: Any = None, **more: Any) -> Any:
    views = _views([*arrays])
    at = axis_of(axis, views[0].ndim + 1)
    return concatenate([expand_dims(view, at) for view in views], at, **more)


def vstack(tup: Any, **more: Any) -> Any:
    return concatenate([_at_least(2, view) for view in _views([*tup])], 0, **more)


def hstack(tup: Any, **more: Any) -> Any:
    views = [_at_least(1, view) for view in _views([*tup])]
    return concatenate(views, 0 if views[0].ndim == 1 else 1, **more)


def column_stack(tup: Any) -> Any:
    views = _views([*tup])
    return concatenate([expand_dims(v, 1) if v.ndim == 1 else v for v in views], 1)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    at = axis_of(axis, ary.ndim)
    n = _number_of(ary.shape[at], "a split")
    if isinstance(indices_or_sections, int | np.integer):
        k = int(indices_or_sections)
        # the first parts get one entry more
        sizes = [n // k + (i < n % k) for i in range(k)]
        ends = [sum(sizes[: i + 1]) for i in range(k - 1)]
    else:
        ends = [int(end) for end in indices_or_sections]
    before = (slice(None),) * at
    sides = zip([0, *ends], [*ends, n], strict=True)
    return [ary[(*before, slice(low, high))] for low, high in sides]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    if isinstance(indices_or_sections, int | np.integer):
        n = _number_of(ary.shape[axis_of(axis, ary.ndim)], "a split")
        if n % indices_or_sections:
            refuse(f"a split of {n} entries into {indices_or_sections} equal parts")
    return array_split(ary, indices_or_sections, axis)


def flip(m: Any, axis: Any = None) -> Any:
    turned = _axes(axis, m.ndim)
    step = {True: slice(None, None, -1), False: slice(None)}
    return m[tuple(step[k in turned] for k in range(m.ndim))]


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    if axis is None:
        return reshape(roll(ravel(a), shift, 0), a.shape)
    axes = axis if isinstance(axis, Sequence) else [axis]
    shifts = shift if isinstance(shift, Sequence) else [shift] * len(axes)
    for n, k in zip(shifts, axes, strict=True):
        a = called("roll", [a], int(n), axis_of(k, a.ndim))
    return a


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    if not isinstance(repeats, int | np.integer):
        refuse("repeat with several numbers")
    flat, at = _flat(a, axis)
    return called("repeat", [flat], int(repeats), at)


def tile(a: Any, reps: Any, /) -> Any:
    counts = [*reps] if isinstance(reps, Sequence) else [reps]
    if min(counts, default=1) < 1:
        refuse(f"tile with {reps!r} repeats")
    if len(counts) > a.ndim:
        a = expand_dims(a, tuple(range(len(counts) - a.ndim)))
    for axis, n in enumerate(counts, a.ndim - len(counts)):
        a = concatenate([a] * n, axis) if n > 1 else a
    return copied(a)


def pad(array: Any, pad_width: Any, mode: str = "constant", **more: Any) -> Any:
    value = more.pop("constant_values", 0)
    if mode != "constant" or more or not isinstance(value, int | float | np.number):
        refuse(f"pad with mode={mode!r} and {', '.join(more) or 'several values'}")
    if isinstance(pad_width, Mapping):
        refuse("pad with widths by axis")
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    number = np.asarray(value, array.dtype).item()
    if not np.isfinite(number):
        refuse(f"pad with {number}")
    return called("pad", [array], tuple(map(tuple, widths)), number)


def _triangle(function: str, m: Any, k: int = 0) -> Any:
    if m.ndim < 2:
        refuse(f"{function} of an array with {counted(m.ndim, 'axis')}")
    return called(function, [m], int(k))


def _diagonal_of(a: Any, offset: int, axis1: int, axis2: int) -> Any:
    """Move the axes of a diagonal to the end, and cut both to its length."""
    first, second = axis_of(axis1, a.ndim), axis_of(axis2, a.ndim)
    if first == second:
        refuse(f"a diagonal of axis {axis1} and itself")
    rest = [k for k in range(a.ndim) if k not in (first, second)]
    turned = _ordered(a, [*rest, first, second])
    rows, columns = turned.shape[-2:]
    if rows != columns or offset:
        low, right = max(0, -offset), max(0, offset)
        n = min(
            _number_of(rows, "a diagonal") - low,
            _number_of(columns, "a diagonal") - right,
        )
        n = max(0, n)
        turned = turned[..., low : low + n, right : right + n]
    return turned


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    square = _diagonal_of(a, offset, axis1, axis2)
    entries = einsum("...ii->...i", [square])
    return a.viewed(entries.tensor, entries.axes)


def diag(v: Any, k: int = 0) -> Any:
    if v.ndim != 2:
        refuse(f"numpy.diag of an array with {counted(v.ndim, 'axis')}")
    return diagonal(v, k)


def trace(
    a: Any,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    return _summed("sum", diagonal(a, offset, axis1, axis2), -1, dtype)


def _sorted(
    function: str,
    a: Any,
    axis: Any = -1,
    kind: Any = None,
    order: Any = None,
    *,
    stable: Any = None,
) -> Any:
    flat, at = _flat(a, axis)
    kind = "stable" if stable else kind
    return called(function, [flat], at, *([] if kind is None else [str(kind)]))


def take(
    a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise"
) -> Any:
    if mode != "raise":
        refuse(f"take with mode={mode!r}")
    a = as_view(a, _first([a, indices]))
    flat, at = _flat(a, axis)
    positions = indices if isinstance(indices, View | int) else np.asarray(indices)
    return copied(subscripted(flat, (*(slice(None),) * at, positions)))


def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    arrays = _views([arr, indices])
    if axis is None:
        arrays, axis = [ravel(arrays[0]), arrays[1]], 0
    return called("take_along_axis", arrays, axis_of(axis, arrays[0].ndim))


def subscripted(a: Any, key: Any) -> Any:
    """Index an array by numbers, slices, new axes, and arrays of integers."""
    parts = [*key] if isinstance(key, tuple) else [key]
    # only new axes: a view, and no statement at all
    if all(part is None or part is Ellipsis or _is_all(part) for part in parts):
        return _renewed(a, parts)
    arrays, texts = [a], []
    for part in parts:
        if isinstance(part, bool | np.bool_):
            refuse("a truth value as a subscript")
        if part is None or part is Ellipsis:
            texts.append("..." if part is Ellipsis else "None")
        elif isinstance(part, slice):
            texts.append(":".join(map(_end, (part.start, part.stop, part.step))))
        elif isinstance(part, int | np.integer):
            texts.append(repr(int(part)))
        elif isinstance(part, View | np.ndarray | list | tuple):
            arrays.append(_as_positions(part, a))
            texts.append(f"x{len(arrays) - 1}")
        else:
            refuse(f"the subscript {part!r}")
    body = f"x0[{', '.join(texts)}]"
    return numpy_statement(body, arrays, is_view=len(arrays) == 1)


def _is_all(part: Any) -> bool:
    return isinstance(part, slice) and part == slice(None)


def _renewed(a: Any, parts: Sequence[Any]) -> Any:
    """Insert new axes, and keep all others."""
    n_given = sum(_is_all(part) for part in parts)
    if n_given > a.ndim or sum(part is Ellipsis for part in parts) > 1:
        refuse(f"{n_given} subscripts of an array with {counted(a.ndim, 'axis')}")
    left: list[int | None] = [*a.axes]
    axes: list[int | None] = []
    for part in parts:
        n = a.ndim - n_given if part is Ellipsis else int(part is not None)
        axes += [None] if part is None else left[:n]
        left = left[n:]
    return a.viewed(a.tensor, [*axes, *left])


def _end(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        refuse(f"a slice that ends with {value!r}")
    return repr(int(value))


def _as_positions(value: Any, like: View) -> View:
    positions = value if isinstance(value, View) else np.asarray(value)
    if positions.dtype.kind == "b":
        refuse(
            "a mask as a subscript (the shape depends on values)",
            "numpy.where and sums of masks can be traced",
        )
    if isinstance(positions, np.ndarray) and not positions.size:
        positions = positions.astype(np.intp)
    if positions.dtype.kind not in "iu":
        refuse(f"a subscript of {positions.dtype}")
    return as_view(positions, like)


# Products


def matmul(left: Any, right: Any, /) -> Any:
    if _is_scalar(left) or _is_scalar(right):
        refuse("a product of matrices with a scalar")
    a, b = _views([left, right])
    # without i, j and k, which the matrices have
    batch = tuple("abcdefghlmnopqrstuvwxyz"[: max(a.ndim, b.ndim, 2) - 2])
    first = (*batch[len(batch) - a.ndim + 2 :], "i", "k")
    second = (*batch[len(batch) - b.ndim + 2 :], "k", "j")
    terms = [first if a.ndim > 1 else ("k",), second if b.ndim > 1 else ("k",)]
    rows = ["i"] if a.ndim > 1 else []
    columns = ["j"] if b.ndim > 1 else []
    return statement([a, b], terms, (*batch, *rows, *columns))


def _is_scalar(value: Any) -> bool:
    return not is_array(value) or (isinstance(value, View) and not value.ndim)


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Multiply every matrix of one stack by every matrix of the other."""
    if _is_scalar(a) or _is_scalar(b):
        return mapped("({} * {})", [a, b])
    left, right = _views([a, b])
    if right.ndim < 3:
        return matmul(left, right)
    return tensordot(left, right, ([-1], [-2]))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    left, right = _views([a, b])
    if isinstance(axes, int | np.integer):
        pair = [*range(left.ndim - int(axes), left.ndim)], [*range(int(axes))]
    else:
        pair = _axes(axes[0], left.ndim), _axes(axes[1], right.ndim)
    if len(pair[0]) != len(pair[1]):
        refuse(f"tensordot along {axes!r}")
    letters = letters_of(left.ndim + right.ndim)
    first, second = [*letters[: left.ndim]], [*letters[left.ndim :]]
    for k, n in zip(*pair, strict=True):
        second[n] = first[k]
    output = [i for k, i in enumerate(first) if k not in pair[0]]
    output += [i for k, i in enumerate(second) if k not in pair[1]]
    return statement([left, right], [tuple(first), tuple(second)], tuple(output))


def inner(a: Any, b: Any, /) -> Any:
    if _is_scalar(a) or _is_scalar(b):
        return mapped("({} * {})", [a, b])
    return tensordot(a, b, ([-1], [-1]))


def outer(a: Any, b: Any, out: Any = None) -> Any:
    left, right = map(ravel, _views([a, b]))
    return mapped("({} * {})", [expand_dims(left, 1), right])


def vdot(a: Any, b: Any, /) -> Any:
    left, right = map(ravel, _views([a, b]))
    return matmul(_conjugate(left), right)


def _conjugate(a: Any) -> Any:
    return mapped("conj({})", [a]) if a.dtype.kind == "c" else a


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    left, right = _views([x1, x2])
    left, right = (moveaxis(x, axis, -1) for x in (_conjugate(left), right))
    return einsum("...i,...i->...", [left, right])


def einsum_of(subscripts: Any, *operands: Any, optimize: Any = False) -> Any:
    if not isinstance(subscripts, str):
        refuse("numpy.einsum with lists of indices")
    return einsum(subscripts, _views(operands))


# What is known without values


def size_of(a: Any, axis: Any = None) -> int:
    return prod(_number_of(a.shape[k], "a size") for k in _axes(axis, a.ndim))


REDUCING: Mapping[Any, Callable[..., Any]] = {
    np.add: partial(_summed, "sum"),
    np.multiply: partial(_summed, "prod"),
    np.maximum: partial(_chosen, "max"),
    np.minimum: partial(_chosen, "min"),
    np.logical_or: partial(_chosen, "any"),
    np.logical_and: partial(_chosen, "all"),
}
"""The reductions of ufuncs."""

_BOTH: Mapping[str, Callable[..., Any]] = {
    "all": partial(_chosen, "all"),
    "any": partial(_chosen, "any"),
    "argmax": partial(_position_of_extreme, "argmax"),
    "argmin": partial(_position_of_extreme, "argmin"),
    "argsort": partial(_sorted, "argsort"),
    "astype": astype,
    "clip": clip,
    "copy": copied,
    "cumprod": partial(_accumulated, "cumprod"),
    "cumsum": partial(_accumulated, "cumsum"),
    "diagonal": diagonal,
    "dot": dot,
    "max": partial(_chosen, "max"),
    "mean": mean,
    "min": partial(_chosen, "min"),
    "prod": partial(_summed, "prod"),
    "ravel": ravel,
    "repeat": repeat,
    "round": around,
    "squeeze": squeeze,
    "std": partial(_spread, True),
    "sum": partial(_summed, "sum"),
    "swapaxes": swapaxes,
    "take": take,
    "trace": trace,
    "var": partial(_spread, False),
}

METHODS: Mapping[str, Callable[..., Any]] = {
    **_BOTH,
    # of booleans, too, for which the ufunc is not defined
    "conj": lambda a, out=None: _conjugate(a),
    "conjugate": lambda a, out=None: _conjugate(a),
    "flatten": lambda a, order="C": copied(ravel(a, order)),
    "reshape": reshaped,
    "transpose": transposed,
}
"""Methods of arrays, by name."""

_NAMED: Mapping[str, Callable[..., Any]] = {
    **_BOTH,
    "amax": _BOTH["max"],
    "amin": _BOTH["min"],
    "angle": angle,
    "append": lambda arr, values, axis=None: concatenate([arr, values], axis),
    "around": around,
    "array_split": array_split,
    "atleast_1d": partial(_at_least, 1),
    "atleast_2d": partial(_at_least, 2),
    "atleast_3d": partial(_at_least, 3),
    "average": lambda a, axis=None: mean(a, axis),
    "broadcast_arrays": broadcast_arrays,
    "broadcast_to": broadcast_to,
    "can_cast": lambda from_, to, casting="safe": np.can_cast(from_.dtype, to, casting),
    "column_stack": column_stack,
    "concatenate": concatenate,
    "count_nonzero": lambda a, axis=None, *, keepdims=False: _summed(
        "sum", astype(a, bool), axis, keepdims=keepdims
    ),
    "cumulative_prod": partial(_cumulative, "prod"),
    "cumulative_sum": partial(_cumulative, "sum"),
    "diag": diag,
    "diff": diff,
    "dstack": lambda tup: concatenate([_at_least(3, v) for v in _views([*tup])], 2),
    "einsum": einsum_of,
    "empty_like": partial(_filled, 0),
    "expand_dims": expand_dims,
    "flip": flip,
    "fliplr": lambda m: flip(m, 1),
    "flipud": lambda m: flip(m, 0),
    "full_like": full_like,
    "hstack": hstack,
    "imag": imag,
    "inner": inner,
    "iscomplexobj": lambda x: x.dtype.kind == "c",
    "isrealobj": lambda x: x.dtype.kind != "c",
    "linalg.diagonal": lambda x, /, *, offset=0: diagonal(x, offset, -2, -1),
    "linalg.matmul": matmul,
    "linalg.matrix_transpose": matrix_transpose,
    "linalg.norm": norm,
    "linalg.outer": outer,
    "linalg.tensordot": lambda x1, x2, /, *, axes=2: tensordot(x1, x2, axes),
    "linalg.trace": lambda x, /, *, offset=0, dtype=None: trace(
        x, offset, -2, -1, dtype
    ),
    "linalg.vecdot": vecdot,
    "matrix_transpose": matrix_transpose,
    "moveaxis": moveaxis,
    "ndim": lambda a: a.ndim,
    "ones_like": partial(_filled, 1),
    "outer": outer,
    "pad": pad,
    "ptp": ptp,
    "real": real,
    "reshape": reshape,
    "result_type": lambda *values: np.result_type(
        *(v.dtype if isinstance(v, View) else v for v in values)
    ),
    "roll": roll,
    "shape": lambda a: a.shape,
    "size": size_of,
    "sort": partial(_sorted, "sort"),
    "split": split,
    "stack": stack,
    "take_along_axis": take_along_axis,
    "tensordot": tensordot,
    "tile": tile,
    "transpose": transpose,
    "tril": partial(_triangle, "tril"),
    "triu": partial(_triangle, "triu"),
    "unstack": lambda x, /, *, axis=0: tuple(moveaxis(x, axis, 0)),
    "vdot": vdot,
    "vstack": vstack,
    "where": choose_elements,
    "zeros_like": partial(_filled, 0),
}


def _numpy_function(name: str) -> Any:
    value: Any = np
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    _numpy_function(name): function for name, function in _NAMED.items()
}
"""Functions of numpy that are no ufuncs, and can be traced."""
