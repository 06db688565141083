"""Operands of a call as numpy arrays: their libraries, dtypes and sizes.

Operands may be arrays of torch, of JAX, or of libraries that override numpy's einsum. A
call reads their memory through numpy, and computes at once. So it refuses operands
without such memory. It also refuses those that record operations, to differentiate,
compile or batch them later, because the result would silently lose that history.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from feinsum.calling.terms import Shape, write_in_letters
from feinsum.dtypes import get_sum_dtype, is_half
from feinsum.errors import InvalidEinsumError, InvalidTypeError
from feinsum.libraries import is_device_array, resolve_entries
from feinsum.words import describe_type, with_article

DType = np.dtype[Any]

_TRUTH = np.dtype(bool)
_COUNT = np.dtype(np.int64)
_SUPPORTED = frozenset(
    map(np.dtype, (*np.typecodes["AllInteger"], "f2", "f4", "f8", "c8", "c16"))
)
MAX_ENTRIES = 2**31 - 2**20
"""Limit of the entries of an array. Kernels count them in 32-bit integers, and the last
tile of a loop may go beyond the end of the array: a count that is rounded up to whole
tiles has to fit, too.
"""


def find_first_uses(operands: Sequence[object]) -> tuple[int, ...]:
    """Return, for each operand, the first position with the same object.

    >>> x, y = object(), object()
    >>> find_first_uses([x, y, x])
    (0, 1, 0)
    """
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x), k) for k, x in enumerate(operands))


def fits_kernels(dtypes: Sequence[DType], shapes: Sequence[Shape]) -> bool:
    """Return whether kernels support the dtypes and can count the entries."""
    kernel_dtypes = _SUPPORTED | {_TRUTH}
    # byte order does not matter: such operands are copied
    is_known = all(dtype.newbyteorder("=") in kernel_dtypes for dtype in dtypes)
    return is_known and all(prod(shape) < MAX_ENTRIES for shape in shapes)


def get_work_dtype(dtype: DType) -> DType:
    """Return the dtype in which a kernel computes a result of this dtype.

    Booleans are counted in integers, so that sums do not overflow; half precision is
    added up in single precision, as numpy does.
    """
    if dtype == _TRUTH:
        return _COUNT
    return get_sum_dtype(dtype)


def find_result_dtype(dtypes: Sequence[DType]) -> DType:
    """Return numpy's result type, in the machine's byte order.

    Raises:
        InvalidTypeError: if it is not supported.
    """
    try:
        # numpy's result is native, whatever its operands are
        dtype = np.result_type(*dtypes).newbyteorder("=") if dtypes else _TRUTH
    except TypeError:
        dtype = np.dtype(object)
    # kernels of the host do not support bfloat16, those of GPUs do
    if dtype in _SUPPORTED or dtype == _TRUTH or is_half(dtype):
        return dtype
    # supported dtypes give supported ones
    position, wrong = next(
        (k, x) for k, x in enumerate(dtypes) if not fits_kernels([x], ())
    )
    raise InvalidTypeError(
        f"operand {position} has dtype {wrong}; supported are integers, booleans, "
        "float16, float32, float64, complex64 and complex128: convert it",
        rules=("dtype",),
    )


def check_sizes(shapes: Sequence[Shape]) -> None:
    """Refuse arrays whose entries a kernel cannot count.

    Raises:
        InvalidEinsumError: with the rule ``extent``.
    """
    for shape in shapes:
        if prod(shape) >= MAX_ENTRIES:
            raise InvalidEinsumError(
                f"an array of shape {shape} has {prod(shape)} entries; a kernel can "
                f"address at most {MAX_ENTRIES - 1}: split the call",
                rules=("extent",),
            )


ON_HOST = frozenset({1, 3, 13})
"""DLPack's device types of host-readable memory: its own, pinned, or managed."""


class ArrayForm(NamedTuple):
    """The properties of an array that a call depends on."""

    shape: Shape
    strides: Shape
    dtype: DType
    is_aligned: bool


def check_out(out: Any, *, is_on_host: bool = True) -> None:
    """Refuse an ``out`` that cannot take a result, before computing one.

    Raises:
        InvalidTypeError, InvalidEinsumError: with the rule ``shape``, if it is no array
            of numpy, nor one of another library unless it has to be on the host; if it
            is read-only.
    """
    if isinstance(out, np.ndarray):
        if out.flags.writeable:
            return
        raise InvalidEinsumError(
            "out is read-only; expected a writable array", rules=("shape",)
        )
    if is_on_host or not hasattr(out, "__dlpack_device__"):
        raise InvalidTypeError(
            f"out is {describe_type(out)}; expected an array of numpy, or one where "
            "the operands are",
            rules=("shape",),
        )


def check_fit(out: Any, shape: Shape, dtype: DType | None) -> None:
    """Raise unless an array, or its form, has the shape and the dtype of a result.

    Raises:
        InvalidEinsumError: with the rule ``shape``; also if there is no dtype, since
            the result is sparse.
    """
    # numpy compares None as float64
    if dtype is None or (tuple(out.shape), np.dtype(out.dtype)) != (shape, dtype):
        raise InvalidEinsumError(
            f"out has shape {tuple(out.shape)} and dtype {out.dtype}, the result has "
            f"{shape} and {'is sparse (CSF)' if dtype is None else dtype}",
            rules=("shape",),
        )


def as_array(operand: Any, position: int | None = None) -> np.ndarray[Any, Any]:
    """Return an operand as a numpy array, without a copy if possible.

    Args:
        operand: anything that numpy can convert to an array.
        position: its position in the call, for messages; None for no operand.

    Raises:
        InvalidEinsumError: if it is sparse or masked; if numpy cannot read it; or if it
            only supports DLPack, and its memory is not on the host.

    >>> as_array([1.0, 2.0])
    array([1., 2.])
    """
    if type(operand) is np.ndarray:
        return operand
    from feinsum.sparse import is_sparse  # arrays of numpy need none of it

    number = "an operand" if position is None else f"operand {position}"
    name = f"{number} of type {type(operand).__name__}"
    if is_sparse(operand):
        raise InvalidEinsumError(
            f"{name} of shape {tuple(operand.shape)} is sparse; a "
            "prepared call takes dense arrays only: use feinsum.call_einsum",
            rules=("operand",),
        )
    if is_tensor(operand):
        return read_tensor(operand)
    if is_jax_array(operand):
        return read_jax_array(operand)
    # numpy.einsum would silently ignore the mask
    if np.ma.is_masked(operand):
        raise InvalidEinsumError(
            f"{name} hides entries, which numpy.einsum would sum; pass array.filled(0)",
            rules=("operand",),
        )
    # numpy's own protocols first: they support more dtypes than DLPack
    has_protocol = hasattr(operand, "__array__") or hasattr(
        operand, "__array_interface__"
    )
    if has_protocol or not hasattr(operand, "__dlpack__"):
        return _read(operand, name)
    device_type = operand.__dlpack_device__()[0]
    if device_type not in ON_HOST:
        raise InvalidEinsumError(
            f"{name} is on a device (type {device_type} of DLPack); "
            "copy it to the host",
            rules=("operand",),
        )
    return np.from_dlpack(operand)


def _read(operand: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(operand)
    except (TypeError, ValueError, RuntimeError) as error:  # of nested lists, of torch
        raise InvalidEinsumError(
            f"{name} cannot be read by numpy: {error}; "
            "pass an array, or a sparse one as feinsum.sparse.COO(shape, indices, "
            "values)",
            rules=("operand",),
        ) from error
    # numpy wraps a value that it does not understand in an array of one object
    if array.dtype == object and array.ndim == 0 and not isinstance(operand, Number):
        raise InvalidEinsumError(
            f"{name} cannot be read by numpy; pass an array",
            rules=("operand",),
        )
    return array


def has_sparse(operands: Sequence[Any]) -> bool:
    """Return whether any operand is sparse; several trees of one tensor count, too."""
    candidates = [
        operand
        for operand in operands
        if not isinstance(operand, np.ndarray) and not is_device_array(operand)
    ]
    if not candidates:
        return False
    from feinsum.sparse import CSF, is_sparse

    firsts = (x[0] for x in candidates if isinstance(x, (list, tuple)) and x)
    return any(map(is_sparse, candidates)) or any(isinstance(x, CSF) for x in firsts)


def get_form(array: np.ndarray[Any, Any]) -> ArrayForm:
    """Return the form of a host array."""
    return ArrayForm(array.shape, array.strides, array.dtype, array.flags.aligned)


def is_tensor(value: object) -> bool:
    """Return whether this is a tensor of torch."""
    torch = sys.modules.get("torch")  # another thread may still be importing it
    return isinstance(value, getattr(torch, "Tensor", ()))


def are_host_tensors(values: Sequence[Any]) -> bool:
    """Return whether these are some plain, strided tensors of torch on the host."""
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)
    return bool(values) and all(
        type(x) is kind and x.device.type == "cpu" and x.layout == torch.strided
        for x in values
    )


def is_jax_array(value: object) -> bool:
    """Return whether this is an array of JAX, traced or not."""
    return isinstance(value, getattr(sys.modules.get("jax"), "Array", ()))


def is_differentiating() -> bool:
    """Return whether torch tensors may have tangents, within a forward-mode level."""
    module = sys.modules.get("torch.autograd.forward_ad")
    return getattr(module, "_current_level", -1) >= 0


def check_tensor(tensor: Any) -> None:
    """Refuse a tensor whose result would have to be recorded.

    Raises:
        InvalidEinsumError: if torch is to differentiate with respect to it, or traces
            the call.
    """
    torch = sys.modules["torch"]
    if tensor.requires_grad and torch.is_grad_enabled():
        raise _make_refusal(
            "a tensor requires a gradient, which feinsum does not record: pass "
            "tensor.detach(), or use feinsum.integrations.torch_einsum"
        )
    # outside of forward mode, the query costs more than the call
    is_dual = is_differentiating() and torch.autograd.forward_ad.unpack_dual(tensor)
    if is_dual and is_dual.tangent is not None:
        raise _make_refusal(
            "a tensor has a tangent of forward-mode differentiation, which feinsum "
            "does not propagate: pass its primal, or use "
            "feinsum.integrations.torch_einsum"
        )
    tracer = sys.modules.get("torch.fx.experimental.proxy_tensor")
    if torch.jit.is_tracing() or (tracer and tracer.get_proxy_mode() is not None):
        raise _make_refusal(
            "torch traces this call, and would keep its result as a constant: use "
            "feinsum.integrations.torch_einsum in what is traced"
        )


def read_tensor(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the entries of a tensor on the host, in its own memory if they are there.

    Raises:
        InvalidEinsumError: as :func:`check_tensor`; if the memory of the tensor on the
            host does not determine its entries: for subclasses that change what
            functions do, layouts other than strided, other devices, and dtypes that
            numpy does not have.
    """
    torch = sys.modules["torch"]
    kind = type(tensor)
    functions = {
        torch.Tensor.__torch_function__.__func__,
        torch.nn.Parameter.__torch_function__,  # disabled: it changes nothing
    }
    hook = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    is_plain = kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    # a subclass such as a masked tensor gives other results for the same memory
    if hook not in functions or not is_plain:
        raise _make_refusal(
            f"{with_article(kind.__name__)} changes what functions of torch "
            "compute; pass a plain "
            "tensor with its entries, such as tensor.to_tensor(0) of a masked one"
        )
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise _make_refusal(
            f"a tensor has the layout {tensor.layout} on the device {tensor.device}; "
            "expected a strided one on the host: pass tensor.to_dense(), or "
            "tensor.cpu(), or a sparse one as feinsum.sparse.COO(shape, indices, "
            "values)"
        )
    try:
        check_tensor(tensor)
        array: np.ndarray[Any, Any] = resolve_entries(tensor).detach().numpy()
    except (RuntimeError, TypeError) as error:  # of wrapped, nested, or quantized ones
        reason = _get_first_line(error)
        raise _make_refusal(
            f"numpy cannot read a tensor of dtype {tensor.dtype}: {reason}; pass a "
            "plain tensor of a dtype of numpy, or in functions that torch.func "
            "transforms use feinsum.integrations.torch_einsum"
        ) from error
    return array


def read_jax_array(array: Any) -> np.ndarray[Any, Any]:
    """Return the entries of an array of JAX, in its own memory if that is on the host.

    Raises:
        InvalidEinsumError: if it is traced, deleted, or has no numbers.
    """
    jax = sys.modules["jax"]
    if isinstance(array, jax.core.Tracer):
        raise _make_refusal(
            f"{describe_type(array)} has no entries: JAX traces this call for jit, "
            "grad or vmap. Call feinsum outside of what is transformed, or use "
            "feinsum.integrations.jax_einsum"
        )
    if array.is_deleted():
        raise _make_refusal(
            f"an array of JAX of shape {array.shape} is deleted, or was donated to a "
            "computation; pass one that is still there"
        )
    try:
        return np.asarray(array)
    except (RuntimeError, TypeError, ValueError) as error:
        raise _make_refusal(
            f"numpy cannot read an array of JAX of dtype {array.dtype}: "
            f"{_get_first_line(error)}"
        ) from error


def get_memory(out: Any) -> np.ndarray[Any, Any]:
    """Return the memory of a tensor into which a result is written.

    Raises:
        InvalidEinsumError: as :func:`read_tensor`; if it is negated or conjugated.
    """
    if resolve_entries(out) is not out:
        raise _make_refusal("out is negated or conjugated; give a plain tensor")
    return read_tensor(out)


def as_given(result: Any, operands: Sequence[Any]) -> Any:
    """Convert a result of numpy to the library of the first operand of torch or JAX."""
    if not isinstance(result, np.ndarray | np.generic):
        return result
    # the first operand determines the device, as in the libraries themselves
    for operand in operands:
        if is_tensor(operand):
            return sys.modules["torch"].from_numpy(np.asarray(result))
        if is_jax_array(operand):
            devices = operand.devices()
            device = next(iter(devices)) if len(devices) == 1 else None
            return sys.modules["jax"].device_put(np.asarray(result), device)
    return result


def has_override(operands: Sequence[Any]) -> bool:
    """Return whether an operand overrides numpy's functions (``__array_function__``).

    Arrays of dask and quantities of pint do; subclasses of numpy's array that inherit
    its method do not.
    """
    numpys = np.ndarray.__array_function__
    return any(
        getattr(type(x), "__array_function__", numpys) is not numpys for x in operands
    )


def evaluate_by_override(
    subscripts: str, operands: Sequence[Any], **options: Any
) -> Any:
    """Evaluate an einsum by the operands' own library, through :func:`numpy.einsum`.

    Raises:
        InvalidEinsumError: if the library has no einsum, refuses the operands, or does
            not write into ``out``.
    """
    # numpy has no names in braces
    letters = write_in_letters(subscripts, [*map(get_rank, operands)])
    try:
        result = np.einsum(letters, *operands, **options)
    except (TypeError, ValueError) as error:
        kinds = ", ".join(type(operand).__name__ for operand in operands)
        raise _make_refusal(
            f"operands of types {kinds} override numpy.einsum, and it fails: {error}; "
            "pass arrays of numpy for a result of feinsum"
        ) from error
    if "out" in options and result is not options["out"]:
        raise _make_refusal(
            f"the einsum of operands that override numpy's gives a new "
            f"{type(result).__name__}; omit out"
        )
    return result


def get_rank(operand: Any) -> int:
    """Return the number of axes, without calling an override of :func:`numpy.ndim`."""
    rank = getattr(operand, "ndim", None)
    return np.ndim(operand) if rank is None else int(rank)


def _make_refusal(message: str) -> InvalidEinsumError:
    return InvalidEinsumError(message, rules=("operand",))


def _get_first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
