"""Numpy statements, which numpy computes as a whole, such as reshapes and slices.

The reduction of such a statement is the word ``numpy``. Its body is a function of
:data:`FUNCTIONS`, called with all operands in order and then literals, or a subscript::

    r1[a,b,c] = numpy reshape(x0, (2, 3, 4)) : r0[d,e]
    r2[a,b] = numpy x0[:, ::2, 0] : r1[c,d,e]
    r3[a,b] = numpy concatenate(x0, x1, 1) : r2[c,d], r2[e,f]

Every axis has an index of its own, because such a statement cannot be computed in
parts.
"""

from __future__ import annotations

import ast
import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir.expressions import get_operand_name, parse_expression
from feinsum.ir.operand import Extent, SizeParam
from feinsum.words import format_count

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[Extent, ...]
Shapes = Sequence[Shape]

NUMPY = "numpy"
"""The word that a numpy statement has in place of a reduction."""

MAX_ENTRIES = 1 << 40
"""Largest number of entries of a constant: its text must not claim absurd shapes."""


def _infer_result_dtype(dtypes: Sequence[np.dtype[Any]], *_: Any) -> np.dtype[Any]:
    return np.result_type(*dtypes)


@dataclass(frozen=True)
class Function:
    """A function of arrays and literals.

    Attributes:
        compute: takes the arrays, then the literals.
        shape: computes the result's shape from the arrays' shapes and the literals.
        dtype: computes its dtype from the arrays' dtypes and the literals.
        is_view: whether the result may share the memory of an operand or of a cache.
    """

    compute: Callable[..., Any]
    shape: Callable[..., Shape]
    dtype: Callable[..., np.dtype[Any]] = _infer_result_dtype
    is_view: bool = False


class _Operand(NamedTuple):
    """An operand within a subscript."""

    position: int


class _Call(NamedTuple):
    function: Function
    literals: tuple[Any, ...]


def infer_numpy_shape(body: str, shapes: Shapes) -> Shape:
    """Return the shape of a numpy statement.

    Raises:
        ProgramError: if the body is no call, or is not defined for these shapes.

    >>> infer_numpy_shape("reshape(x0, (-1, 4))", [(2, 6)])
    (3, 4)
    >>> infer_numpy_shape("x0[1:, None, ::-2]", [(2, 6)])
    (1, 1, 3)
    """
    call = _parse_call(body, len(shapes))
    try:
        return tuple(call.function.shape(shapes, *call.literals))
    except ProgramError as error:
        _fail(body, error)
    except (TypeError, ValueError, LookupError) as error:
        _fail(
            body,
            f"undefined for shapes {', '.join(map(_format_shape, shapes))} ({error})",
        )


def infer_numpy_dtype(body: str, dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype of a numpy statement.

    >>> infer_numpy_dtype("concatenate(x0, x1, 0)", [np.dtype("f4"), np.dtype("i4")])
    dtype('float64')
    """
    call = _parse_call(body, len(dtypes))
    try:
        return np.dtype(call.function.dtype(dtypes, *call.literals))
    except (TypeError, ValueError) as error:
        _fail(body, error)


def evaluate_numpy(body: str, operands: Sequence[Array]) -> Array:
    """Compute the value of a numpy statement, which may be a view of an operand.

    Raises:
        ProgramError: if an index array has an entry that is out of bounds.

    >>> evaluate_numpy("x0[x1]", [np.arange(3.0) + 1, np.array([2, 0])])
    array([3., 1.])
    """
    call = _parse_call(body, len(operands))
    try:
        return np.asarray(call.function.compute(operands, *call.literals))
    except (TypeError, ValueError, IndexError) as error:
        _fail(body, error)


def is_view(body: str, n_operands: int) -> bool:
    """Return whether the result of a numpy statement may share memory."""
    return _parse_call(body, n_operands).function.is_view


def write_constant(array: Array) -> str:
    """Return the body of a statement whose value is an array of numbers.

    >>> evaluate_numpy(write_constant(np.eye(2, dtype="f4")), [])
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    dtype = array.dtype.newbyteorder("<")
    data = np.ascontiguousarray(array, dtype).reshape(-1)
    # an array of one repeated entry, such as np.zeros, is written as that entry
    first = data[:1].tobytes()
    raw = first if data.tobytes() == first * data.size else data.tobytes()
    text = base64.b64encode(raw).decode()
    return f"constant({dtype.str!r}, {array.shape!r}, {text!r})"


def _fail(body: str, why: object) -> NoReturn:
    raise ProgramError(f"numpy statement {body!r:.200}: {why}", rules=("body",))


def _format_shape(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


@lru_cache(maxsize=1024)
def _parse_call(body: str, n_operands: int) -> _Call:
    """Return the function that a body names, with its literals."""
    try:
        call, n_used = _parse_node(parse_expression(body))
    except (InvalidEinsumError, ValueError, TypeError):
        call, n_used = None, 0
    if call is None or n_used != n_operands:
        _fail(
            body,
            f"expected a subscript of x0, or one of {', '.join(sorted(FUNCTIONS))} of "
            f"{format_count(n_operands, 'operand')}, in order, and literals",
        )
    return call


def _parse_node(node: ast.expr) -> tuple[_Call | None, int]:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
            name in FUNCTIONS
        ):
            n = sum(isinstance(arg, ast.Name) for arg in args)
            names = [arg.id for arg in args[:n] if isinstance(arg, ast.Name)]
            # operands in order, each once: then positions need no names
            if names == [*map(get_operand_name, range(n))]:
                literals = tuple(map(ast.literal_eval, args[n:]))
                return _Call(FUNCTIONS[name], literals), n
        case ast.Subscript(value=ast.Name(id="x0"), slice=key):
            parts = key.elts if isinstance(key, ast.Tuple) else [key]
            names = [part.id for part in parts if isinstance(part, ast.Name)]
            if names == [get_operand_name(k + 1) for k in range(len(names))]:
                return _Call(_SUBSCRIPT, (_parse_subscripts(parts),)), len(names) + 1
    return None, 0


def _parse_subscripts(nodes: Sequence[ast.expr]) -> tuple[Any, ...]:
    subscripts: list[Any] = []
    for node in nodes:
        if isinstance(node, ast.Slice):
            ends = (node.lower, node.upper, node.step)
            subscripts.append(
                slice(*(None if x is None else _parse_integer(x) for x in ends))
            )
        elif isinstance(node, ast.Name):
            subscripts.append(
                _Operand(1 + sum(isinstance(x, _Operand) for x in subscripts))
            )
        elif isinstance(node, ast.Constant) and node.value in (None, Ellipsis):
            subscripts.append(node.value)
        else:
            subscripts.append(_parse_integer(node))
    return tuple(subscripts)


def _parse_integer(node: ast.expr) -> int:
    value = ast.literal_eval(node)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _require_literal(extent: Extent) -> int:
    if isinstance(extent, SizeParam):
        raise ProgramError(f"the extent {extent} of the axis is not known")
    return extent


def _normalize_axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ProgramError(
            f"no axis {axis} in an array with {format_count(rank, 'axis')}"
        )
    return axis % rank


def _infer_reshape(shapes: Shapes, shape: Sequence[int]) -> Shape:
    """Return the shape of a reshape; at most one -1 is computed from the others."""
    (source,) = shapes
    params = [
        size_before for size_before in source if isinstance(size_before, SizeParam)
    ]
    size_before = prod(extent for extent in source if not isinstance(extent, SizeParam))
    free = [k for k, extent in enumerate(shape) if extent == -1]
    size_after = prod(extent for extent in shape if extent != -1)
    wanted = _format_shape(tuple(shape))
    if len(free) > 1 or min(shape, default=0) < -1:
        raise ProgramError(f"{wanted} is no shape")
    if params and (len(params) > 1 or len(free) != 1 or size_after != size_before):
        raise ProgramError(
            f"{_format_shape(source)} does not become {wanted}: at most one "
            "extent may be "
            "unknown, which has to stay as it is, as -1"
        )
    if not params and (
        size_before != size_after
        if not free
        else size_after == 0 or size_before % size_after
    ):
        raise ProgramError(f"{_format_shape(source)} does not become {wanted}")
    # -1 stands for the size parameter, or for what remains of the entries
    missing = params[0] if params else size_before // size_after if free else 0
    return tuple(missing if extent == -1 else extent for extent in shape)


def _infer_transpose(shapes: Shapes, order: Sequence[int]) -> Shape:
    (shape,) = shapes
    if sorted(order) != [*range(len(shape))]:
        raise ProgramError(f"{order} is no order of {format_count(len(shape), 'axis')}")
    return tuple(shape[k] for k in order)


def _infer_concatenate(shapes: Shapes, axis: int) -> Shape:
    first_shape = shapes[0]
    position = _normalize_axis(axis, len(first_shape))
    for other in shapes:
        if (*other[:position], *other[position + 1 :]) != (
            *first_shape[:position],
            *first_shape[position + 1 :],
        ):
            raise ProgramError(
                f"{_format_shape(first_shape)} and {_format_shape(other)} differ "
                f"beside axis {position}"
            )
    total = sum(_require_literal(shape[position]) for shape in shapes)
    return (*first_shape[:position], total, *first_shape[position + 1 :])


def _infer_broadcast(shapes: Shapes, shape: Sequence[int]) -> Shape:
    (shape_before,) = shapes
    if len(shape_before) > len(shape) or any(
        n not in (1, m) for n, m in zip(shape_before[::-1], shape[::-1], strict=False)
    ):
        raise ProgramError(
            f"{_format_shape(shape_before)} does not become "
            f"{_format_shape(tuple(shape))}"
        )
    return tuple(shape)


def _infer_along(shapes: Shapes, axis: int) -> Shape:
    """Return the shape of the entries that an index array selects along an axis.

    Both arrays have the same extents along all other axes.
    """
    (shape, index_shape), position = shapes, _normalize_axis(axis, len(shapes[0]))
    other_axes = [
        (n, m)
        for k, (n, m) in enumerate(zip(shape, index_shape, strict=True))
        if k != position
    ]
    if any(n != m for n, m in other_axes):
        raise ProgramError(
            f"{_format_shape(shape)} and {_format_shape(index_shape)} differ "
            f"beside axis {position}"
        )
    return tuple(index_shape)


def _infer_without(shapes: Shapes, axis: int) -> Shape:
    (shape,) = shapes
    position = _normalize_axis(axis, len(shape))
    # argmax of nothing is an error of numpy
    if shape[position] == 0:
        raise ProgramError("an axis without entries has none that is the largest")
    return (*shape[:position], *shape[position + 1 :])


def _infer_same(shapes: Shapes, *literals: Any) -> Shape:
    return shapes[0]


def _infer_same_along(shapes: Shapes, axis: int, *_: Any) -> Shape:
    _normalize_axis(axis, len(shapes[0]))
    return shapes[0]


def _infer_roll(shapes: Shapes, _: int, axis: int) -> Shape:
    return _infer_same_along(shapes, axis)


def _infer_repeat(shapes: Shapes, n: int, axis: int) -> Shape:
    (shape,) = shapes
    position = _normalize_axis(axis, len(shape))
    if n < 0:
        raise ProgramError(f"{n} repeats")
    return (
        *shape[:position],
        n * _require_literal(shape[position]),
        *shape[position + 1 :],
    )


def _infer_pad(shapes: Shapes, widths: Sequence[tuple[int, int]], _: Any) -> Shape:
    (shape,) = shapes
    if min((n for pair in widths for n in pair), default=0) < 0:
        raise ProgramError(f"widths {widths}")
    pairs = zip(shape, widths, strict=True)
    return tuple(
        n if pair == (0, 0) else sum(pair) + _require_literal(n) for n, pair in pairs
    )


def _infer_subscript(shapes: Shapes, key: tuple[Any, ...]) -> Shape:
    """Return the shape of a subscript, by numpy's rules for index arrays.

    The axes of index arrays become those of all index arrays broadcast together: in
    place if they are adjacent, otherwise at the front.
    """
    extents = list(shapes[0])
    subscripts = _expand_ellipsis(key, len(extents))
    has_arrays = any(isinstance(subscript, _Operand) for subscript in subscripts)
    shape: list[Extent] = []
    index_shapes: list[Shape] = []
    axes: list[int] = []
    numbers: list[int] = []
    for k, subscript in enumerate(subscripts):
        # None makes a new axis
        if subscript is None:
            shape.append(1)
            continue
        extent = extents.pop(0)
        if isinstance(subscript, slice):
            is_whole = subscript == slice(None)
            n = extent if is_whole else len(range(_require_literal(extent))[subscript])
            shape.append(n)
            continue
        # numpy refuses a number that is out of range, so the shape is undefined, too
        if isinstance(subscript, int):
            range(_require_literal(extent))[subscript]  # or an IndexError
        if has_arrays:
            is_operand = isinstance(subscript, _Operand)
            index_shapes.append(shapes[subscript.position] if is_operand else ())
            axes.append(len(shape))
            numbers.append(k)
    if not has_arrays:
        return tuple(shape)
    is_together = numbers == [*range(numbers[0], numbers[-1] + 1)]
    begin = axes[0] if is_together else 0
    return (*shape[:begin], *_broadcast_shapes(index_shapes), *shape[begin:])


def _expand_ellipsis(key: tuple[Any, ...], rank: int) -> list[Any]:
    n = rank - sum(
        subscript is not None and subscript is not Ellipsis for subscript in key
    )
    if n < 0 or sum(subscript is Ellipsis for subscript in key) > 1:
        raise ProgramError(f"{rank} axes, and other subscripts")
    full_slices = [slice(None)] * n
    if Ellipsis not in key:
        return [*key, *full_slices]
    k = key.index(Ellipsis)
    return [*key[:k], *full_slices, *key[k + 1 :]]


def _broadcast_shapes(shapes: Shapes) -> Shape:
    """Return the shape to which arrays broadcast."""
    extents: list[Extent] = []
    for k in range(max(map(len, shapes))):
        sides = {shape[-1 - k] for shape in shapes if len(shape) > k} - {1}
        if len(sides) > 1:
            raise ProgramError(
                f"{' and '.join(map(_format_shape, shapes))} do not broadcast"
            )
        extents.append(sides.pop() if sides else 1)
    return tuple(extents[::-1])


def _take(arrays: Sequence[Array], key: tuple[Any, ...]) -> Any:
    return arrays[0][
        tuple(arrays[x.position] if isinstance(x, _Operand) else x for x in key)
    ]


def _infer_entry_dtype(dtypes: Sequence[np.dtype[Any]], *_: Any) -> np.dtype[Any]:
    """Return the dtype of the first operand; the others are integer indices."""
    if any(dtype.kind not in "iu" for dtype in dtypes[1:]):
        raise ProgramError("places in an array are integers")
    return dtypes[0]


def _infer_index_dtype(dtypes: Sequence[np.dtype[Any]], *_: Any) -> np.dtype[Any]:
    return np.dtype(np.intp)


def _infer_constant(_: Shapes, dtype: str, shape: Sequence[int], data: str) -> Shape:
    if not all(type(n) is int and n >= 0 for n in shape) or prod(shape) > MAX_ENTRIES:
        raise ProgramError(f"{shape} is no shape")
    # data that do not fit the shape are refused when the program is read
    _get_constant([], dtype, tuple(shape), data)
    return tuple(shape)


@lru_cache(maxsize=64)
def _decode_constant(dtype: str, shape: tuple[int, ...], data: str) -> Array:
    try:
        entries = np.frombuffer(base64.b64decode(data, validate=True), dtype)
    except binascii.Error as error:
        raise ProgramError(f"the data of a constant: {error}") from None
    entries = entries.astype(entries.dtype.newbyteorder("="), copy=False)
    if entries.size not in (1, prod(shape)):
        raise ProgramError(
            f"{format_count(entries.size, 'entry')} for the shape "
            f"{_format_shape(shape)}"
        )
    # the cached array is shared by all evaluations
    entries.flags.writeable = False
    if entries.size != prod(shape):
        return np.broadcast_to(entries[0], shape)
    return entries.reshape(shape)


def _get_constant(
    _: Sequence[Array], dtype: str, shape: Sequence[int], data: str
) -> Array:
    return _decode_constant(dtype, tuple(shape), data)


def _call_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda arrays, *literals: function(*arrays, *literals)


_SUBSCRIPT = Function(_take, _infer_subscript, _infer_entry_dtype, is_view=True)

_OF_NUMPY: Mapping[str, tuple[Any, ...]] = {
    "argmax": (_infer_without, _infer_index_dtype),
    "argmin": (_infer_without, _infer_index_dtype),
    "argsort": (_infer_same_along, _infer_index_dtype),
    "broadcast_to": (_infer_broadcast, _infer_result_dtype, True),
    "repeat": (_infer_repeat,),
    "reshape": (_infer_reshape, _infer_result_dtype, True),
    "roll": (_infer_roll,),
    "sort": (_infer_same_along,),
    "take_along_axis": (_infer_along, _infer_entry_dtype),
    "transpose": (_infer_transpose, _infer_result_dtype, True),
    "tril": (_infer_same,),
    "triu": (_infer_same,),
}
"""Rules of the functions that take the arrays and then the literals, as in numpy."""

FUNCTIONS: Mapping[str, Function] = {
    "concatenate": Function(np.concatenate, _infer_concatenate),
    "constant": Function(
        _get_constant,
        _infer_constant,
        lambda _, dtype, *__: np.dtype(dtype),
        is_view=True,
    ),
    "cumprod": Function(
        lambda a, k: np.cumprod(a[0], k, a[0].dtype), _infer_same_along
    ),
    "cumsum": Function(lambda a, k: np.cumsum(a[0], k, a[0].dtype), _infer_same_along),
    "pad": Function(
        lambda a, widths, x: np.pad(a[0], widths, constant_values=x), _infer_pad
    ),
    **{
        name: Function(_call_numpy(getattr(np, name)), *rules)
        for name, rules in _OF_NUMPY.items()
    },
}
"""The functions that numpy statements may call, by name."""
