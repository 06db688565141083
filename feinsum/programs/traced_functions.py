"""Recorded reductions and products of numpy, and the tables of all traced functions.

Their parameters have numpy's names, order and defaults. ``out`` is refused before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from feinsum.programs.recording import (
    View,
    is_array,
    list_letters,
    normalize_axis,
    record_call,
    record_einsum,
    record_map,
    record_reduction,
    record_statement,
    refuse,
)
from feinsum.programs.traced_axes import (
    array_split,
    at_least,
    broadcast_arrays,
    broadcast_to,
    column_stack,
    concatenate,
    diag,
    diagonal,
    expand_dims,
    flatten_axis,
    flip,
    hstack,
    matrix_transpose,
    moveaxis,
    pad,
    ravel,
    repeat,
    reshape,
    reshape_method,
    roll,
    sort_along,
    split,
    squeeze,
    stack,
    swapaxes,
    take,
    take_along_axis,
    take_triangle,
    tile,
    transpose,
    transpose_method,
    vstack,
)
from feinsum.programs.traced_elements import (
    angle,
    around,
    astype,
    choose_elements,
    clip,
    copy_array,
    fill_array,
    imag,
    list_views,
    normalize_axes,
    real,
    require_number,
)

# Reductions


def _widen(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which numpy adds booleans and small integers."""
    if dtype.kind in "bi" and dtype.itemsize < np.dtype(np.int_).itemsize:
        return np.dtype(np.int_)
    if dtype.kind == "u" and dtype.itemsize < np.dtype(np.uint).itemsize:
        return np.dtype(np.uint)
    return dtype


def _sum_axes(
    reduction: str,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
) -> Any:
    target = _widen(a.dtype) if dtype is None else np.dtype(dtype)
    # numpy would drop the imaginary parts with a warning
    if a.dtype.kind == "c" and target.kind != "c":
        refuse(f"a {reduction} of {a.dtype} with dtype={target}")
    return record_reduction(
        reduction, a, normalize_axes(axis, a.ndim), keepdims, target
    )


def _reduce_axes(
    reduction: str, a: Any, axis: Any = None, out: Any = None, keepdims: bool = False
) -> Any:
    return record_reduction(reduction, a, normalize_axes(axis, a.ndim), keepdims)


def count_size(a: Any, axis: Any = None, *, purpose: str = "a size") -> int:
    return prod(
        require_number(a.shape[k], purpose) for k in normalize_axes(axis, a.ndim)
    )


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
) -> Any:
    is_half = dtype is None and a.dtype == np.float16
    # as in numpy: float16 is added in single precision, integers in double
    if dtype is None:
        default = np.dtype(np.float64) if a.dtype.kind in "biu" else a.dtype
        dtype = np.dtype(np.float32) if is_half else default
    if np.dtype(dtype).kind not in "fc":
        refuse(f"a mean with dtype={np.dtype(dtype)}")
    total = _sum_axes("sum", a, axis, dtype, keepdims=keepdims)
    n = count_size(a, axis, purpose="a mean")
    quotient = record_map(f"({{}} / {_write_divisor(n)})", [total])
    return astype(quotient, np.float16) if is_half else quotient


def _write_divisor(n: float) -> str:
    return repr(float(n))


def _compute_spread(
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
    """Return the variance, or its root, from the squared distances to the mean.

    The mean of squares minus the square of the mean would lose digits by cancellation.
    """
    ddof = ddof if correction is None else correction
    if dtype is None and a.dtype.kind in "biu":
        dtype = np.float64
    n = count_size(a, axis, purpose="a mean")
    total = _sum_axes("sum", a, axis, dtype, keepdims=True)
    middle = record_map(f"({{}} / {_write_divisor(n)})", [total])
    distance = record_map("({} - {})", [a, middle])
    squares = record_map(_write_square(distance), [distance])
    total = _sum_axes("sum", squares, axis, dtype, None, keepdims)
    variance = record_map(f"({{}} / {_write_divisor(max(n - ddof, 0))})", [total])
    return record_map("sqrt({})", [variance]) if is_root else variance


def _write_square(a: Any) -> str:
    """Return the form of the squared absolute value of entries."""
    return "real({0} * conj({0}))" if a.dtype.kind == "c" else "({0} * {0})"


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    maximum, minimum = (
        _reduce_axes(r, a, axis, None, keepdims) for r in ("max", "min")
    )
    return record_map("({} - {})", [maximum, minimum])


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    is_euclid = ord is None or (ord == 2 and isinstance(axis, int))
    if not (is_euclid or (ord == 2 and x.ndim == 1)):
        refuse(f"numpy.linalg.norm with ord={ord!r}")
    # squares of small integers would overflow
    if x.dtype.kind in "biu":
        x = astype(x, np.float64)
    squares = record_map(_write_square(x), [x])
    return record_map("sqrt({})", [_sum_axes("sum", squares, axis, keepdims=keepdims)])


def _find_extreme(
    function: str, a: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False
) -> Any:
    flat, position = flatten_axis(a, axis)
    positions = record_call(function, [flat], position)
    if not keepdims:
        return positions
    shape = [1 if axis is None or k == position else n for k, n in enumerate(a.shape)]
    return reshape(positions, shape)


def _accumulate(
    function: str, a: Any, axis: Any = None, dtype: Any = None, out: Any = None
) -> Any:
    target = _widen(a.dtype) if dtype is None else np.dtype(dtype)
    flat, position = flatten_axis(a, axis)
    return record_call(function, [astype(flat, target, copy=False)], position)


def _accumulate_along(
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
    return _accumulate(f"cum{function}", x, axis, dtype)


def diff(a: Any, n: int = 1, axis: int = -1) -> Any:
    position = normalize_axis(axis, a.ndim)
    leading = (slice(None),) * position
    for _ in range(n):
        late, early = a[(*leading, slice(1, None))], a[(*leading, slice(None, -1))]
        a = late ^ early if a.dtype.kind == "b" else late - early
    return a


def trace(
    a: Any,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    return _sum_axes("sum", diagonal(a, offset, axis1, axis2), -1, dtype)


# Products


def matmul(left: Any, right: Any, /) -> Any:
    if _is_scalar(left) or _is_scalar(right):
        refuse("a product of matrices with a scalar")
    a, b = list_views([left, right])
    # without i, j and k, which the matrices have
    batch = tuple("abcdefghlmnopqrstuvwxyz"[: max(a.ndim, b.ndim, 2) - 2])
    first = (*batch[len(batch) - a.ndim + 2 :], "i", "k")
    second = (*batch[len(batch) - b.ndim + 2 :], "k", "j")
    terms = [first if a.ndim > 1 else ("k",), second if b.ndim > 1 else ("k",)]
    rows = ["i"] if a.ndim > 1 else []
    columns = ["j"] if b.ndim > 1 else []
    return record_statement([a, b], terms, (*batch, *rows, *columns))


def _is_scalar(value: Any) -> bool:
    return not is_array(value) or (isinstance(value, View) and not value.ndim)


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Multiply every matrix of one stack by every matrix of the other."""
    if _is_scalar(a) or _is_scalar(b):
        return record_map("({} * {})", [a, b])
    left, right = list_views([a, b])
    if right.ndim < 3:
        return matmul(left, right)
    return tensordot(left, right, ([-1], [-2]))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    left, right = list_views([a, b])
    if isinstance(axes, int | np.integer):
        pair = [*range(left.ndim - int(axes), left.ndim)], [*range(int(axes))]
    else:
        pair = normalize_axes(axes[0], left.ndim), normalize_axes(axes[1], right.ndim)
    if len(pair[0]) != len(pair[1]):
        refuse(f"tensordot along {axes!r}")
    letters = list_letters(left.ndim + right.ndim)
    first, second = [*letters[: left.ndim]], [*letters[left.ndim :]]
    for k, n in zip(*pair, strict=True):
        second[n] = first[k]
    output = [i for k, i in enumerate(first) if k not in pair[0]]
    output += [i for k, i in enumerate(second) if k not in pair[1]]
    return record_statement([left, right], [tuple(first), tuple(second)], tuple(output))


def inner(a: Any, b: Any, /) -> Any:
    if _is_scalar(a) or _is_scalar(b):
        return record_map("({} * {})", [a, b])
    return tensordot(a, b, ([-1], [-1]))


def outer(a: Any, b: Any, out: Any = None) -> Any:
    left, right = map(ravel, list_views([a, b]))
    return record_map("({} * {})", [expand_dims(left, 1), right])


def vdot(a: Any, b: Any, /) -> Any:
    left, right = map(ravel, list_views([a, b]))
    return matmul(_conjugate(left), right)


def _conjugate(a: Any) -> Any:
    return record_map("conj({})", [a]) if a.dtype.kind == "c" else a


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    left, right = list_views([x1, x2])
    left, right = (moveaxis(x, axis, -1) for x in (_conjugate(left), right))
    return record_einsum("...i,...i->...", [left, right])


def trace_einsum(subscripts: Any, *operands: Any, optimize: Any = False) -> Any:
    if not isinstance(subscripts, str):
        refuse("numpy.einsum with lists of indices")
    return record_einsum(subscripts, list_views(operands))


REDUCING: Mapping[Any, Callable[..., Any]] = {
    np.add: partial(_sum_axes, "sum"),
    np.multiply: partial(_sum_axes, "prod"),
    np.maximum: partial(_reduce_axes, "max"),
    np.minimum: partial(_reduce_axes, "min"),
    np.logical_or: partial(_reduce_axes, "any"),
    np.logical_and: partial(_reduce_axes, "all"),
}
"""The recorded reductions, by ufunc."""

_BOTH: Mapping[str, Callable[..., Any]] = {
    "all": partial(_reduce_axes, "all"),
    "any": partial(_reduce_axes, "any"),
    "argmax": partial(_find_extreme, "argmax"),
    "argmin": partial(_find_extreme, "argmin"),
    "argsort": partial(sort_along, "argsort"),
    "astype": astype,
    "clip": clip,
    "copy": copy_array,
    "cumprod": partial(_accumulate, "cumprod"),
    "cumsum": partial(_accumulate, "cumsum"),
    "diagonal": diagonal,
    "dot": dot,
    "max": partial(_reduce_axes, "max"),
    "mean": mean,
    "min": partial(_reduce_axes, "min"),
    "prod": partial(_sum_axes, "prod"),
    "ravel": ravel,
    "repeat": repeat,
    "round": around,
    "squeeze": squeeze,
    "std": partial(_compute_spread, True),
    "sum": partial(_sum_axes, "sum"),
    "swapaxes": swapaxes,
    "take": take,
    "trace": trace,
    "var": partial(_compute_spread, False),
}

METHODS: Mapping[str, Callable[..., Any]] = {
    **_BOTH,
    # of booleans, too, for which the ufunc is not defined
    "conj": lambda a, out=None: _conjugate(a),
    "conjugate": lambda a, out=None: _conjugate(a),
    "flatten": lambda a, order="C": copy_array(ravel(a, order)),
    "reshape": reshape_method,
    "transpose": transpose_method,
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
    "atleast_1d": partial(at_least, 1),
    "atleast_2d": partial(at_least, 2),
    "atleast_3d": partial(at_least, 3),
    "average": lambda a, axis=None: mean(a, axis),
    "broadcast_arrays": broadcast_arrays,
    "broadcast_to": broadcast_to,
    "can_cast": lambda from_, to, casting="safe": np.can_cast(from_.dtype, to, casting),
    "column_stack": column_stack,
    "concatenate": concatenate,
    "count_nonzero": lambda a, axis=None, *, keepdims=False: _sum_axes(
        "sum", astype(a, bool), axis, keepdims=keepdims
    ),
    "cumulative_prod": partial(_accumulate_along, "prod"),
    "cumulative_sum": partial(_accumulate_along, "sum"),
    "diag": diag,
    "diff": diff,
    "dstack": lambda tup: concatenate([at_least(3, v) for v in list_views([*tup])], 2),
    "einsum": trace_einsum,
    "empty_like": partial(fill_array, 0),
    "expand_dims": expand_dims,
    "flip": flip,
    "fliplr": lambda m: flip(m, 1),
    "flipud": lambda m: flip(m, 0),
    "full_like": lambda a, fill_value, *args, **more: fill_array(
        fill_value, a, *args, **more
    ),
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
    "ones_like": partial(fill_array, 1),
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
    "size": count_size,
    "sort": partial(sort_along, "sort"),
    "split": split,
    "stack": stack,
    "take_along_axis": take_along_axis,
    "tensordot": tensordot,
    "tile": tile,
    "transpose": transpose,
    "tril": partial(take_triangle, "tril"),
    "triu": partial(take_triangle, "triu"),
    "unstack": lambda x, /, *, axis=0: tuple(moveaxis(x, axis, 0)),
    "vdot": vdot,
    "vstack": vstack,
    "where": choose_elements,
    "zeros_like": partial(fill_array, 0),
}


def _find_numpy_function(name: str) -> Any:
    value: Any = np
    for attribute in name.split("."):
        value = getattr(value, attribute, None)
    return value


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    _find_numpy_function(name): function for name, function in _NAMED.items()
}
"""The recorded functions, by function of numpy; ufuncs are recorded elsewhere."""
