"""Recorded functions of numpy that arrange axes and entries: shapes, joins, parts.

Their parameters have numpy's names, order and defaults. ``out`` is refused before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feinsum.ir import SizeParam
from feinsum.programs.recording import (
    View,
    as_view,
    normalize_axis,
    record_call,
    record_einsum,
    record_numpy,
    refuse,
)
from feinsum.programs.traced_elements import (
    astype,
    copy_array,
    find_first_view,
    list_views,
    normalize_axes,
    require_number,
)
from feinsum.words import format_count


def flatten_axis(a: Any, axis: Any) -> tuple[Any, int]:
    """Return an array and the number of its axis; flatten it without an axis."""
    return (ravel(a), 0) if axis is None else (a, normalize_axis(axis, a.ndim))


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
    shaped = a if is_same else record_call("reshape", [a], wanted, is_view=True)
    return copy_array(shaped) if copy else shaped.viewed(shaped.tensor, shaped.axes)


def ravel(a: Any, order: str = "C") -> Any:
    return reshape(a, (-1,), order)


def _permute(a: Any, axes: Sequence[int]) -> Any:
    return a.viewed(a.tensor, [a.axes[k] for k in axes])


def transpose(a: Any, axes: Any = None) -> Any:
    order = [*range(a.ndim)][::-1] if axes is None else normalize_axes(axes, a.ndim)
    if len(order) != a.ndim:
        refuse(f"the order {axes!r} of an array with {format_count(a.ndim, 'axis')}")
    return _permute(a, order)


def transpose_method(a: Any, *axes: Any) -> Any:
    """Do the same as a method of arrays."""
    is_one = len(axes) == 1 and not isinstance(axes[0], int | np.integer)
    return transpose(a, (axes[0] if is_one else axes or None))


def reshape_method(
    a: Any, *shape: Any, order: str = "C", copy: bool | None = None
) -> Any:
    """Do the same as a method of arrays."""
    if not shape:
        refuse("reshape without a shape")
    extents = shape[0] if len(shape) == 1 else shape
    return reshape(a, extents, order, copy=copy)


def matrix_transpose(x: Any, /) -> Any:
    if x.ndim < 2:
        refuse(f"a matrix transpose of an array with {format_count(x.ndim, 'axis')}")
    return swapaxes(x, -1, -2)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    order = [*range(a.ndim)]
    first, second = normalize_axis(axis1, a.ndim), normalize_axis(axis2, a.ndim)
    order[first], order[second] = order[second], order[first]
    return _permute(a, order)


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    sources, destinations = (
        normalize_axes(source, a.ndim),
        normalize_axes(destination, a.ndim),
    )
    if len(sources) != len(destinations):
        refuse(f"moveaxis from {source!r} to {destination!r}")
    order = [k for k in range(a.ndim) if k not in sources]
    for position, k in sorted(zip(destinations, sources, strict=True)):
        order.insert(position, k)
    return _permute(a, order)


def expand_dims(a: Any, axis: Any) -> Any:
    axes = axis if isinstance(axis, Sequence) else [axis]
    rank = a.ndim + len(axes)
    added = normalize_axes(axes, rank)
    remaining_axes = iter(a.axes)
    return a.viewed(
        a.tensor, [None if k in added else next(remaining_axes) for k in range(rank)]
    )


def squeeze(a: Any, axis: Any = None) -> Any:
    unit_axes = [k for k, n in enumerate(a.shape) if n == 1]
    removed = unit_axes if axis is None else normalize_axes(axis, a.ndim)
    if any(k not in unit_axes for k in removed):
        refuse(f"squeeze of axes {axis!r}, one of which has not the extent 1")
    # a subscript 0 removes the axis
    return a[tuple(0 if k in removed else slice(None) for k in range(a.ndim))]


def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    extents = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if any(isinstance(n, SizeParam) for n in extents):
        refuse("broadcast_to a shape that is not known")
    return record_call("broadcast_to", [array], extents, is_view=True)


def broadcast_arrays(*args: Any, subok: bool = False) -> Any:
    arrays = list_views(args)
    # numpy broadcasts shapes without entries
    shapes: Any = [array.shape for array in arrays]
    shape = np.broadcast_shapes(*shapes)
    return tuple(broadcast_to(array, shape) for array in arrays)


def at_least(rank: int, *arys: Any) -> Any:
    def pad_axes(a: Any) -> Any:
        if a.ndim >= rank:
            return a
        if rank == 3 and a.ndim == 2:
            return expand_dims(a, 2)
        if rank == 3 and a.ndim == 1:
            return expand_dims(a, (0, 2))
        return expand_dims(a, tuple(range(rank - a.ndim)))

    arrays = tuple(map(pad_axes, list_views(arys)))
    return arrays if len(arrays) > 1 else arrays[0]


def concatenate(arrays: Any, /, axis: Any = 0, out: Any = None, **more: Any) -> Any:
    if set(more) - {"dtype", "casting"}:
        refuse(f"concatenate with {', '.join(more)}")
    views = list_views([*arrays])
    if axis is None:
        # as numpy does without an axis
        views, axis = [ravel(view) for view in views], 0
    if more.get("dtype") is not None:
        casting = more.get("casting", "same_kind")
        views = [astype(v, more["dtype"], casting=casting, copy=False) for v in views]
    return record_call("concatenate", views, normalize_axis(axis, views[0].ndim))


def stack(arrays: Any, axis: int = 0, out: Any = None, **more: Any) -> Any:
    views = list_views([*arrays])
    position = normalize_axis(axis, views[0].ndim + 1)
    return concatenate(
        [expand_dims(view, position) for view in views], position, **more
    )


def vstack(tup: Any, **more: Any) -> Any:
    return concatenate([at_least(2, view) for view in list_views([*tup])], 0, **more)


def hstack(tup: Any, **more: Any) -> Any:
    views = [at_least(1, view) for view in list_views([*tup])]
    return concatenate(views, 0 if views[0].ndim == 1 else 1, **more)


def column_stack(tup: Any) -> Any:
    views = list_views([*tup])
    return concatenate([expand_dims(v, 1) if v.ndim == 1 else v for v in views], 1)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    position = normalize_axis(axis, ary.ndim)
    n = require_number(ary.shape[position], "a split")
    if isinstance(indices_or_sections, int | np.integer):
        k = int(indices_or_sections)
        # the first parts get one entry more
        sizes = [n // k + (i < n % k) for i in range(k)]
        ends = [sum(sizes[: i + 1]) for i in range(k - 1)]
    else:
        ends = [int(end) for end in indices_or_sections]
    leading = (slice(None),) * position
    sides = zip([0, *ends], [*ends, n], strict=True)
    return [ary[(*leading, slice(low, high))] for low, high in sides]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    if isinstance(indices_or_sections, int | np.integer):
        n = require_number(ary.shape[normalize_axis(axis, ary.ndim)], "a split")
        if n % indices_or_sections:
            refuse(f"a split of {n} entries into {indices_or_sections} equal parts")
    return array_split(ary, indices_or_sections, axis)


def flip(m: Any, axis: Any = None) -> Any:
    flipped = normalize_axes(axis, m.ndim)
    step = {True: slice(None, None, -1), False: slice(None)}
    return m[tuple(step[k in flipped] for k in range(m.ndim))]


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    if axis is None:
        return reshape(roll(ravel(a), shift, 0), a.shape)
    axes = axis if isinstance(axis, Sequence) else [axis]
    shifts = shift if isinstance(shift, Sequence) else [shift] * len(axes)
    for n, k in zip(shifts, axes, strict=True):
        a = record_call("roll", [a], int(n), normalize_axis(k, a.ndim))
    return a


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    if not isinstance(repeats, int | np.integer):
        refuse("repeat with several numbers")
    flat, position = flatten_axis(a, axis)
    return record_call("repeat", [flat], int(repeats), position)


def tile(a: Any, reps: Any, /) -> Any:
    counts = [*reps] if isinstance(reps, Sequence) else [reps]
    if min(counts, default=1) < 1:
        refuse(f"tile with {reps!r} repeats")
    if len(counts) > a.ndim:
        a = expand_dims(a, tuple(range(len(counts) - a.ndim)))
    for axis, n in enumerate(counts, a.ndim - len(counts)):
        a = concatenate([a] * n, axis) if n > 1 else a
    return copy_array(a)


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
    return record_call("pad", [array], tuple(map(tuple, widths)), number)


def take_triangle(function: str, m: Any, k: int = 0) -> Any:
    if m.ndim < 2:
        refuse(f"{function} of an array with {format_count(m.ndim, 'axis')}")
    return record_call(function, [m], int(k))


def _cut_diagonal(a: Any, offset: int, axis1: int, axis2: int) -> Any:
    """Move the axes of a diagonal to the end, and cut both to its length."""
    first, second = normalize_axis(axis1, a.ndim), normalize_axis(axis2, a.ndim)
    if first == second:
        refuse(f"a diagonal of axis {axis1} and itself")
    other_axes = [k for k in range(a.ndim) if k not in (first, second)]
    square = _permute(a, [*other_axes, first, second])
    rows, columns = square.shape[-2:]
    if rows != columns or offset:
        first_row, first_column = max(0, -offset), max(0, offset)
        n = min(
            require_number(rows, "a diagonal") - first_row,
            require_number(columns, "a diagonal") - first_column,
        )
        n = max(0, n)
        square = square[..., first_row : first_row + n, first_column : first_column + n]
    return square


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    square = _cut_diagonal(a, offset, axis1, axis2)
    entries = record_einsum("...ii->...i", [square])
    return a.viewed(entries.tensor, entries.axes)


def diag(v: Any, k: int = 0) -> Any:
    if v.ndim != 2:
        refuse(f"numpy.diag of an array with {format_count(v.ndim, 'axis')}")
    return diagonal(v, k)


def sort_along(
    function: str,
    a: Any,
    axis: Any = -1,
    kind: Any = None,
    order: Any = None,
    *,
    stable: Any = None,
) -> Any:
    flat, position = flatten_axis(a, axis)
    kind = "stable" if stable else kind
    return record_call(
        function, [flat], position, *([] if kind is None else [str(kind)])
    )


def take(
    a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise"
) -> Any:
    if mode != "raise":
        refuse(f"take with mode={mode!r}")
    a = as_view(a, find_first_view([a, indices]))
    flat, position = flatten_axis(a, axis)
    positions = indices if isinstance(indices, View | int) else np.asarray(indices)
    return copy_array(index_array(flat, (*(slice(None),) * position, positions)))


def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    arrays = list_views([arr, indices])
    if axis is None:
        arrays, axis = [ravel(arrays[0]), arrays[1]], 0
    return record_call("take_along_axis", arrays, normalize_axis(axis, arrays[0].ndim))


def index_array(a: Any, key: Any) -> Any:
    """Index an array by numbers, slices, new axes, and arrays of integers."""
    subscripts = [*key] if isinstance(key, tuple) else [key]
    # only new axes: a view without a statement
    if all(
        subscript is None or subscript is Ellipsis or _is_all(subscript)
        for subscript in subscripts
    ):
        return _insert_axes(a, subscripts)
    arrays, texts = [a], []
    for subscript in subscripts:
        if isinstance(subscript, bool | np.bool_):
            refuse("a truth value as a subscript")
        if subscript is None or subscript is Ellipsis:
            texts.append("..." if subscript is Ellipsis else "None")
        elif isinstance(subscript, slice):
            texts.append(
                ":".join(
                    map(_write_end, (subscript.start, subscript.stop, subscript.step))
                )
            )
        elif isinstance(subscript, int | np.integer):
            texts.append(repr(int(subscript)))
        elif isinstance(subscript, View | np.ndarray | list | tuple):
            arrays.append(_as_positions(subscript, a))
            texts.append(f"x{len(arrays) - 1}")
        else:
            refuse(f"the subscript {subscript!r}")
    body = f"x0[{', '.join(texts)}]"
    return record_numpy(body, arrays, is_view=len(arrays) == 1)


def _is_all(subscript: Any) -> bool:
    return isinstance(subscript, slice) and subscript == slice(None)


def _insert_axes(a: Any, subscripts: Sequence[Any]) -> Any:
    """Insert new axes into a view."""
    n_given = sum(_is_all(subscript) for subscript in subscripts)
    if n_given > a.ndim or sum(subscript is Ellipsis for subscript in subscripts) > 1:
        refuse(f"{n_given} subscripts of an array with {format_count(a.ndim, 'axis')}")
    remaining_axes: list[int | None] = [*a.axes]
    axes: list[int | None] = []
    for subscript in subscripts:
        n = a.ndim - n_given if subscript is Ellipsis else int(subscript is not None)
        axes += [None] if subscript is None else remaining_axes[:n]
        remaining_axes = remaining_axes[n:]
    return a.viewed(a.tensor, [*axes, *remaining_axes])


def _write_end(value: Any) -> str:
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
