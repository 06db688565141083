"""Programs traced from numpy functions: calls are recorded, not computed.

Source: NumPy Enhancement Proposals 13 (``__array_ufunc__``) and 18
(``__array_function__``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature
from math import prod
from threading import Lock
from typing import Any, NoReturn, overload

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from feinsum.errors import ProgramError
from feinsum.ir import Operand, SizeParam, array
from feinsum.ir.program import Program
from feinsum.programs.builder import program
from feinsum.programs.local import run_program
from feinsum.programs.recording import (
    RecordedArray,
    Recording,
    View,
    as_result,
    record_constant,
    record_map,
    refuse,
)
from feinsum.programs.traced_axes import index_array, matrix_transpose, transpose
from feinsum.programs.traced_elements import astype, imag, real
from feinsum.programs.traced_functions import (
    FUNCTIONS,
    METHODS,
    REDUCING,
    matmul,
    vecdot,
)

OPERATORS: Mapping[Any, str] = {
    np.add: "({} + {})",
    np.subtract: "({} - {})",
    np.multiply: "({} * {})",
    np.divide: "({} / {})",
    np.floor_divide: "({} // {})",
    np.remainder: "({} % {})",
    np.power: "({} ** {})",
    np.negative: "(-{})",
    np.equal: "({} == {})",
    np.not_equal: "({} != {})",
    np.less: "({} < {})",
    np.less_equal: "({} <= {})",
    np.greater: "({} > {})",
    np.greater_equal: "({} >= {})",
}
"""The body of each ufunc that has an operator; others are called by their names."""

PROPERTIES = {"T": transpose, "mT": matrix_transpose, "real": real, "imag": imag}
"""Attributes of arrays that are arrays, too."""

PRODUCTS: Mapping[Any, Callable[..., Any]] = {np.matmul: matmul, np.vecdot: vecdot}
"""Ufuncs of vectors and matrices."""

IN_PLACE = "write x = x + y for x += y"
"""The hint for changes in place that cannot be traced."""

N_PROGRAMS = 64
"""Number of programs that a traced function caches, by shapes and dtypes of arrays."""


@overload
def trace(function: Callable[..., Any]) -> TracedFunction: ...
@overload
def trace(function: Callable[..., Any], **operands: Operand) -> Program: ...
def trace(
    function: Callable[..., Any], **operands: Operand
) -> Program | TracedFunction:
    """Return the program that a function of numpy arrays computes.

    Args:
        function: takes arrays named as in ``operands``, and returns arrays, possibly in
            tuples, lists and dictionaries. It may use the functions listed in
            ``docs/reference/programs.md``, but must not depend on values.
        operands: symbolic arrays of :func:`feinsum.array`, with shapes and dtypes.
            Without them, the result is a function that is traced when it is called.

    Raises:
        ProgramError: naming an operation that cannot be traced.

    >>> from feinsum.ir import array
    >>> def weights(Q, K):
    ...     scores = Q @ K.T / 2.0
    ...     powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    ...     return powers / powers.sum(axis=1, keepdims=True)
    >>> print(trace(weights, Q=array("Q", (6, 4)), K=array("K", (8, 4))))
    Q[6,4]:<f8
    K[8,4]:<f8
    r0[i,j] = sum x0*x1 : Q[i,k], K[j,k]
    r1[a,b] = map (x0 / 2.0) : r0[a,b]
    r2[a] = max x0 : r1[a,b]
    r3[a,b] = map (x0 - x1) : r1[a,b], r2[a]
    r4[a,b] = map exp(x0) : r3[a,b]
    r5[a] = sum x0 : r4[a,b]
    r6[a,b] = map (x0 / x1) : r4[a,b], r5[a]
    -> r6
    >>> fast = trace(weights)
    >>> fast(np.eye(2), np.eye(2)).sum()
    np.float64(2.0)
    """
    if not operands:
        return TracedFunction(function)
    traced, _ = _trace_function(lambda arrays: function(**arrays), operands)
    return traced


class TracedFunction:
    """A function of numpy arrays that runs as a program.

    The program is traced once for arrays of the same shapes and dtypes, which may be in
    tuples, lists and dictionaries. All other arguments, and arrays that the function
    does not take as arguments, are constants of the program.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._traced = lru_cache(maxsize=N_PROGRAMS)(self._trace_for)
        self._lock = Lock()

    def program(self, *args: Any, **more: Any) -> Program:
        """Return the program for these arguments."""
        traced: Program = self._trace_call(args, more)[1][0]
        return traced

    def __call__(self, *args: Any, **more: Any) -> Any:
        """Return what the function returns for these arguments.

        Raises:
            ProgramError: if the function cannot be traced, with the reason.
        """
        arrays, (traced, names) = self._trace_call(args, more)
        return _map_leaves(run_program(traced, arrays).__getitem__, names)

    def _trace_call(self, args: Any, more: Any) -> tuple[dict[str, Any], Any]:
        arrays: dict[str, np.ndarray[Any, Any]] = {}

        def replace_array(leaf: Any) -> Any:
            if type(leaf) is np.ndarray:
                # in native byte order, as programs require
                native = leaf.astype(leaf.dtype.newbyteorder("="), copy=False)
                arrays[f"a{len(arrays)}"] = native
                return _Placeholder
            # subclasses of arrays may be hashable by identity, but change
            if not isinstance(leaf, Hashable) or hasattr(leaf, "__array_finalize__"):
                raise ProgramError(
                    f"an argument is {type(leaf).__name__}; a traced function takes "
                    "numpy arrays, in tuples, lists or dictionaries, and hashable "
                    "values"
                )
            return leaf

        form = _map_leaves(replace_array, (args, more))
        operands = tuple(array(n, x.shape, x.dtype) for n, x in arrays.items())
        # locked, so that two threads do not trace the same call
        with self._lock:
            return arrays, self._traced(_Form(_make_key(form), form), operands)

    def _trace_for(
        self, form: _Form, operands: tuple[Operand, ...]
    ) -> tuple[Program, Any]:
        def call(arrays: Mapping[str, Any]) -> Any:
            remaining = iter(arrays.values())
            args, more = _map_leaves(
                lambda leaf: next(remaining) if leaf is _Placeholder else leaf,
                form.arguments,
            )
            return self.function(*args, **more)

        return _trace_function(call, {x.name: x for x in operands})


class _Placeholder:
    """Stands for an array in arguments."""


@dataclass(frozen=True)
class _Form:
    """Arguments with placeholders for arrays, which are compared by a key."""

    key: Hashable
    arguments: Any = field(compare=False)


def _map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return the same tuples, lists and dictionaries, of other values."""
    if isinstance(value, dict):
        return {name: _map_leaves(function, item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_map_leaves(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return function(value)


def _make_key(value: Any) -> Hashable:
    """Return a key that is equal for equal values of the same types."""
    if isinstance(value, dict):
        return dict, (*value,), (*map(_make_key, value.values()),)
    if isinstance(value, tuple | list):
        return type(value), (*map(_make_key, value),)
    return type(value), value


def _trace_function(
    function: Callable[[Mapping[str, Any]], Any], operands: Mapping[str, Operand]
) -> tuple[Program, Any]:
    """Trace a function; return the program, and the result with names of outputs."""
    builder = program()
    recording = Recording(builder)
    arrays = {}
    for name, operand in operands.items():
        tensor = builder.input(operand.name, operand.shape, operand.dtype)
        memory = RecordedArray(is_argument=True)
        arrays[name] = Traced(recording, tensor, tuple(range(tensor.rank)), memory)
    returned = function(arrays)
    names = _map_leaves(lambda x: _name_result(x, recording), returned)
    return builder.build(), names


def _name_result(returned: Any, recording: Recording) -> Any:
    """Replace an array that the function returns by the name of an output."""
    if isinstance(returned, Mapping):  # of another type than dict
        return _map_leaves(lambda x: _name_result(x, recording), dict(returned))
    if isinstance(returned, np.ndarray | np.generic | bool | int | float | complex):
        tensor = record_constant(np.asarray(returned), recording)
        returned = Traced(recording, tensor, tuple(range(tensor.rank)))
    if not isinstance(returned, View):
        raise ProgramError(
            f"the function returns {type(returned).__name__}; it must return arrays, "
            "possibly in tuples, lists or dictionaries"
        )
    return recording.builder.output(as_result(returned)).name


def _call(function: Callable[..., Any], name: str, args: Any, more: Any) -> Any:
    """Call a recorded function, without arguments that numpy would ignore."""
    arguments = {
        key: value
        for key, value in more.items()
        if value is not NO_VALUE and not (value is None and key in IGNORED)
    }
    try:
        # checked first: a TypeError of the call would name the recorded function
        bound = signature(function).bind(*args, **arguments)
    except TypeError as error:
        refuse(f"{name} with other arguments ({error})")
    if bound.arguments.get("out") is not None:
        refuse(f"{name} with out=", IN_PLACE)
    return function(*args, **arguments)


NO_VALUE: Any = signature(np.sum).parameters["keepdims"].default
IGNORED = frozenset({"dtype", "initial", "like", "order", "out", "weights", "where"})
"""Parameters that are ignored if they are None."""


class Traced(View, NDArrayOperatorsMixin):
    """An array of a program, with numpy's interface, while a function is traced."""

    __array_priority__ = 1000

    @property
    def size(self) -> int:
        if any(isinstance(n, SizeParam) for n in self.shape):
            refuse("the number of entries, which is not known")
        return prod(n for n in self.shape if isinstance(n, int))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def device(self) -> str:
        return "cpu"

    def to_device(self, device: str, /, *, stream: Any = None) -> Traced:
        if device != "cpu":
            refuse(f"the device {device!r}")
        return self

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return np

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of numpy's arrays, or raise an error that names it."""
        if (view := PROPERTIES.get(name)) is not None:
            return view(self)
        if (function := METHODS.get(name)) is not None:
            return lambda *args, **more: _call(function, name, (self, *args), more)
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"numpy's arrays have no attribute {name!r}")
        return refuse(f"the attribute {name!r} of arrays")

    def __getitem__(self, key: Any) -> Any:
        return index_array(self, key)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")  # as numpy has it
        if isinstance(self.shape[0], SizeParam):
            refuse("the length of an axis whose extent is not known")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[k] for k in range(len(self)))

    def __copy__(self) -> Any:
        return METHODS["copy"](self)

    def __deepcopy__(self, _: Any) -> Any:
        return METHODS["copy"](self)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *args: Any, **more: Any
    ) -> Any:
        options = {key: value for key, value in more.items() if value is not None}
        name = f"numpy.{ufunc.__name__}"
        # numpy reduces along axis 0 by default, and over all axes for None
        if method == "reduce" and ufunc in REDUCING:
            axis = options.pop("axis", None if "axis" in more else 0)
            return _call(REDUCING[ufunc], f"{name}.reduce", (args[0], axis), options)
        out = options.pop("out", (None,))[0]
        # of the calls with out=, only x += y can be recorded, as a new value of x
        if out is not None and (out is not args[0] or isinstance(out, View)):
            refuse(f"{name} with {method} and ['out']", IN_PLACE)
        if method == "__call__" and ufunc in PRODUCTS:
            value = _call(PRODUCTS[ufunc], name, args, options)
        elif method != "__call__" or set(options) - {"dtype"}:
            refuse(f"{name} with {method} and {sorted(options)}")
        else:
            value = _record_elementwise(ufunc, name, args, options.get("dtype"))
        return value if out is None else _record_change(out, value)

    def __array_function__(
        self, function: Any, types: Any, args: Any, more: Mapping[str, Any]
    ) -> Any:
        traced = FUNCTIONS.get(function)
        name = f"{function.__module__}.{function.__name__}"
        if traced is None:
            refuse(name)
        return _call(traced, name, args, more)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refuse(
            "the values of an array, as numbers",
            "numpy.stack and numpy.concatenate make an array of several",
        )

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        refuse(
            "an assignment to entries",
            "numpy.where, numpy.stack and numpy.concatenate make new arrays",
        )

    def __bool__(self) -> NoReturn:
        refuse("a decision on values")

    def __contains__(self, _: Any) -> NoReturn:
        refuse("a decision on values")

    def __dlpack__(self, *_: Any, **__: Any) -> NoReturn:
        refuse("the values of an array, as numbers")

    def __repr__(self) -> str:
        extents = ", ".join(map(str, self.shape))
        return f"<traced array of shape ({extents}), {self.dtype}>"

    __float__ = __int__ = __index__ = __complex__ = __bool__
    __delitem__ = __contains__


def _record_elementwise(ufunc: np.ufunc, name: str, args: Any, dtype: Any) -> Any:
    # divmod has two results, so it becomes two statements
    if ufunc is np.divmod and dtype is None:
        return np.floor_divide(*args), np.remainder(*args)
    is_known = getattr(np, ufunc.__name__, None) is ufunc
    if ufunc.signature is not None or ufunc.nout != 1 or not is_known:
        refuse(name)
    form = OPERATORS.get(ufunc)
    call = f"{ufunc.__name__}({', '.join(['{}'] * ufunc.nin)})"
    result = record_map(form or call, args, dtype)
    if dtype is not None and result.dtype != dtype:
        refuse(f"{name} with dtype={np.dtype(dtype)}")
    return result


def _record_change(array: Any, value: Any) -> Any:
    """Record a change in place, and return the changed array."""
    if value.shape != array.shape:
        refuse(f"a change in place of shape {array.shape} to {value.shape}")
    changed = astype(value, array.dtype, casting="same_kind", copy=False)
    if isinstance(array, np.ndarray):
        value.recording.changed.append(array)
        return changed
    if array.memory.is_argument:
        refuse("a change in place of an argument", IN_PLACE)
    array.tensor  # noqa: B018  (refuses an array that is not up to date)
    array.latest, array.axes = changed.tensor, changed.axes
    # views of the previous value are out of date from now on
    array.memory.version += 1
    array.version = array.memory.version
    return array


def _make_in_place(ufunc: Any) -> Any:
    def change(self: Traced, other: Any) -> Any:
        return _record_change(self, ufunc(self, other))

    return change


for _name, _ufunc in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "matmul": np.matmul,
    "truediv": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}.items():
    setattr(Traced, f"__i{_name}__", _make_in_place(_ufunc))
