"""Arrays of torch, JAX and of libraries with an einsum of their own, on the host.

A call of their arrays computes numbers at once, in memory that numpy can read. So it
refuses what has no such memory, and what records operations to differentiate, compile
or batch them later: the result would lose its history without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from feinsum.calling.reading.terms import in_letters
from feinsum.device_arrays import resolved
from feinsum.errors import InvalidEinsumError
from feinsum.words import type_in_words, with_article


def is_tensor(value: object) -> bool:
    """Whether this is a tensor of torch."""
    torch = sys.modules.get("torch")  # of which an import may still be under way
    return isinstance(value, getattr(torch, "Tensor", ()))


def is_jax_array(value: object) -> bool:
    """Whether this is an array of JAX, traced or not."""
    return isinstance(value, getattr(sys.modules.get("jax"), "Array", ()))


def is_differentiating() -> bool:
    """Whether tensors of torch may have tangents, within a level of forward mode."""
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
        raise _refuse(
            "a tensor requires a gradient, which feinsum does not record: pass "
            "tensor.detach(), call within torch.no_grad(), or use torch.einsum"
        )
    is_dual = is_differentiating() and torch.autograd.forward_ad.unpack_dual(tensor)
    if is_dual and is_dual.tangent is not None:
        raise _refuse(
            "a tensor has a tangent of forward-mode differentiation, which feinsum "
            "does not propagate: pass its primal, or use torch.einsum"
        )
    tracer = sys.modules.get("torch.fx.experimental.proxy_tensor")
    if torch.jit.is_tracing() or (tracer and tracer.get_proxy_mode() is not None):
        raise _refuse(
            "torch traces this call, and would keep its result as a constant: use "
            "torch.einsum in what is traced"
        )


def tensor_numbers(tensor: Any) -> np.ndarray[Any, Any]:
    """The entries of a tensor on the host, in its own memory if they are there.

    Raises:
        InvalidEinsumError: as :func:`check_tensor`; if the tensor has other entries
            than its memory, or none: subclasses that change what functions do, layouts
            other than strided, other devices, and dtypes that numpy does not have.
    """
    torch = sys.modules["torch"]
    kind = type(tensor)
    functions = {
        torch.Tensor.__torch_function__.__func__,
        torch.nn.Parameter.__torch_function__,  # none
    }
    own = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    is_plain = kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    if own not in functions or not is_plain:
        raise _refuse(
            f"{with_article(kind.__name__)} changes what functions of torch "
            "compute; pass a plain "
            "tensor with its entries, such as tensor.to_tensor(0) of a masked one"
        )
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise _refuse(
            f"a tensor has the layout {tensor.layout} on the device {tensor.device}; "
            "expected a strided one on the host: pass tensor.to_dense(), or "
            "tensor.cpu(), or a sparse one as feinsum.sparse.COO(shape, indices, "
            "values)"
        )
    try:
        check_tensor(tensor)
        array: np.ndarray[Any, Any] = resolved(tensor).detach().numpy()
    except (RuntimeError, TypeError) as error:  # of wrapped, nested, or quantized ones
        reason = _first_line(error)
        raise _refuse(
            f"numpy cannot read a tensor of dtype {tensor.dtype}: {reason}; pass a "
            "plain tensor of a dtype of numpy, or use torch.einsum in functions that "
            "torch.func transforms"
        ) from error
    return array


def jax_numbers(array: Any) -> np.ndarray[Any, Any]:
    """The entries of an array of JAX, in its own memory if that is on the host.

    Raises:
        InvalidEinsumError: if it is traced, deleted, or has no numbers.
    """
    jax = sys.modules["jax"]
    if isinstance(array, jax.core.Tracer):
        raise _refuse(
            f"{type_in_words(array)} has no entries: JAX traces this call for jit, "
            "grad or vmap. Call feinsum outside of what is transformed, or use "
            "jax.numpy.einsum"
        )
    if array.is_deleted():
        raise _refuse(
            f"an array of JAX of shape {array.shape} is deleted, or was donated to a "
            "computation; pass one that is still there"
        )
    try:
        return np.asarray(array)
    except (RuntimeError, TypeError, ValueError) as error:
        raise _refuse(
            f"numpy cannot read an array of JAX of dtype {array.dtype}: "
            f"{_first_line(error)}"
        ) from error


def memory_of(out: Any) -> np.ndarray[Any, Any]:
    """The memory of a tensor into which a result is written.

    Raises:
        InvalidEinsumError: as :func:`tensor_numbers`; if it is negated or conjugated.
    """
    if resolved(out) is not out:
        raise _refuse("out is negated or conjugated; give a plain tensor")
    return tensor_numbers(out)


def as_given(result: Any, operands: Sequence[Any]) -> Any:
    """A result of numpy in the library of the operands.

    It is that of the first operand of torch or JAX, if there is one.
    """
    if not isinstance(result, np.ndarray | np.generic):
        return result
    for operand in operands:
        if is_tensor(operand):
            return sys.modules["torch"].from_numpy(np.asarray(result))
        if is_jax_array(operand):
            devices = operand.devices()
            there = next(iter(devices)) if len(devices) == 1 else None
            return sys.modules["jax"].device_put(np.asarray(result), there)
    return result


def has_override(operands: Sequence[Any]) -> bool:
    """Whether an operand overrides functions of numpy, by ``__array_function__``.

    So do arrays of dask and quantities of pint. Classes that inherit from numpy's array
    without an override do not.
    """
    numpys = np.ndarray.__array_function__
    return any(
        getattr(type(x), "__array_function__", numpys) is not numpys for x in operands
    )


def by_override(subscripts: str, operands: Sequence[Any], **options: Any) -> Any:
    """The einsum of the library of an operand, as called by :func:`numpy.einsum`.

    Raises:
        InvalidEinsumError: if the library has none, refuses the operands, or does not
            write into ``out``.
    """
    letters = in_letters(subscripts, [*map(rank_of, operands)])
    try:
        result = np.einsum(letters, *operands, **options)
    except (TypeError, ValueError) as error:
        kinds = ", ".join(type(operand).__name__ for operand in operands)
        raise _refuse(
            f"operands of types {kinds} override numpy.einsum, and it fails: {error}; "
            "pass arrays of numpy for a result of feinsum"
        ) from error
    if "out" in options and result is not options["out"]:
        raise _refuse(
            f"the einsum of operands that override numpy's gives a new "
            f"{type(result).__name__}; omit out"
        )
    return result


def rank_of(operand: Any) -> int:
    """The number of axes; overrides of :func:`numpy.ndim` are not asked."""
    rank = getattr(operand, "ndim", None)
    return np.ndim(operand) if rank is None else int(rank)


def _refuse(message: str) -> InvalidEinsumError:
    return InvalidEinsumError(message, rules=("operand",))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
