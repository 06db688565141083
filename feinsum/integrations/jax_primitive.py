"""``jax_einsum``: einsums of arrays that JAX compiles, differentiates and batches.

:func:`feinsum.einsum` computes at once, so it refuses arrays that JAX traces.
:func:`jax_einsum` binds the primitive ``feinsum_einsum``, for which JAX has rules::

    jit, on the host    a foreign function of XLA, which calls feinsum.einsum
    jvp                 an einsum per operand that has a tangent
    vjp, grad           the transpose in that operand: an einsum
    vmap                one einsum with one more index
    other platforms     refused by JAX: the primitive has no rule there

XLA passes addresses and shapes in structures of its C interface, which :mod:`ctypes`
reads. So nothing has to be compiled, and no array is copied.

Source: ``xla/ffi/api/c_api.h`` in :func:`jax.ffi.include_dir`.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from feinsum.calling import einsum
from feinsum.calling.terms import as_subscripts
from feinsum.errors import InvalidEinsumError, InvalidTypeError
from feinsum.extras import require_extra
from feinsum.integrations.multilinear import (
    batch_subscripts,
    infer_result_shape,
    transpose_einsum,
)

TARGET = "feinsum_einsum"


def jax_einsum(*arguments: Any) -> Any:
    """Evaluate an einsum of arrays that JAX may trace, on the host.

    Args:
        arguments: subscripts and arrays, or arrays alternating with index lists, as for
            :func:`jax.numpy.einsum`. Their dtypes are promoted as JAX does.

    Returns:
        An array of JAX.

    Raises:
        FeinsumError: if JAX is not installed.
        InvalidTypeError: for an operand that JAX does not convert to an array.
        InvalidEinsumError: as :func:`feinsum.call_einsum`; for a dtype that numpy does
            not have.

    >>> import pytest
    >>> jax = pytest.importorskip("jax")
    >>> A, x = jax.numpy.eye(2), jax.numpy.array([3.0, 4.0])
    >>> print(jax.jit(jax.grad(lambda A: jax_einsum("ij,j->", A, x)))(A))
    [[3. 4.]
     [3. 4.]]
    """
    with require_extra("jax", None, "an einsum of arrays of JAX"):
        from jax import numpy as jnp
    subscripts, operands = as_subscripts(arguments)
    if not operands:
        raise InvalidEinsumError("an einsum needs an operand; give an array")
    operands = tuple(_as_array(x, k, jnp) for k, x in enumerate(operands))
    dtype = jnp.result_type(*operands)
    # numpy has no bfloat16; products of such numbers are exact in single precision
    work = jnp.dtype("float32") if dtype == jnp.bfloat16 else dtype
    if work.type.__module__ != "numpy":
        raise InvalidEinsumError(
            f"operands of dtype {dtype}, which numpy does not have; pass "
            "array.astype('float32')"
        )
    arrays = [x.astype(work) for x in operands]
    return _register_primitive().bind(*arrays, subscripts=subscripts).astype(dtype)


def _as_array(operand: Any, position: int, library: Any) -> Any:
    try:
        return library.asarray(operand)
    except (TypeError, ValueError):
        raise InvalidTypeError(
            f"operand {position} is of type {type(operand).__name__}; expected an "
            "array of JAX"
        ) from None


@lru_cache(1)
def _register_primitive() -> Any:
    """Register the primitive and its rules."""
    import jax
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    primitive = Primitive(TARGET)

    def infer_shape(*operands: Any, subscripts: str) -> Any:
        shape = infer_result_shape(subscripts, [x.shape for x in operands])
        return jax.core.ShapedArray(shape, operands[0].dtype)

    @lru_cache(4096)
    def compile_einsum(subscripts: str) -> Any:
        return jax.jit(lambda *arrays: primitive.bind(*arrays, subscripts=subscripts))

    def differentiate(
        primals: Sequence[Any], tangents: Sequence[Any], subscripts: str
    ) -> tuple[Any, Any]:
        result = primitive.bind(*primals, subscripts=subscripts)
        # there is a tangent, since JAX calls the rule only then
        directions = [
            primitive.bind(*primals[:k], x, *primals[k + 1 :], subscripts=subscripts)
            for k, x in enumerate(tangents)
            if not isinstance(x, ad.Zero)
        ]
        return result, sum(directions[1:], start=directions[0])

    def transpose_in(cotangent: Any, *operands: Any, subscripts: str) -> list[Any]:
        # JAX transposes in one operand at a time, and the others are known
        (position,) = (k for k, x in enumerate(operands) if ad.is_undefined_primal(x))
        result: list[Any] = [None] * len(operands)
        if isinstance(cotangent, ad.Zero):
            result[position] = ad.Zero(operands[position].aval)
            return result
        shapes = tuple(
            tuple(x.aval.shape if ad.is_undefined_primal(x) else x.shape)
            for x in operands
        )
        transposed = transpose_einsum(subscripts, shapes, position)
        other_operands = operands[:position] + operands[position + 1 :]
        terms = transposed.operands(
            cotangent, other_operands, jax.numpy, dtype=cotangent.dtype
        )
        gradient = primitive.bind(*terms, subscripts=transposed.subscripts)
        result[position] = gradient.reshape(transposed.shape)
        return result

    def batch(
        operands: Sequence[Any], axes: Sequence[Any], subscripts: str
    ) -> tuple[Any, int]:
        text = batch_subscripts(subscripts, [x.shape for x in operands], axes)
        return primitive.bind(*operands, subscripts=text), 0

    primitive.def_abstract_eval(infer_shape)
    primitive.def_impl(lambda *x, subscripts: compile_einsum(subscripts)(*x))
    ad.primitive_jvps[primitive] = differentiate
    ad.primitive_transposes[primitive] = transpose_in
    batching.primitive_batchers[primitive] = batch
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_HANDLER), platform="cpu")
    mlir.register_lowering(primitive, jax.ffi.ffi_lowering(TARGET), platform="cpu")
    return primitive


class _Sized(c.Structure):
    _fields_: ClassVar[Sequence[Any]] = (("struct_size", c.c_size_t),)


class _Extensible(_Sized):
    _fields_: ClassVar[Sequence[Any]] = (("extension", c.c_void_p),)


class _Extension(_Sized):
    """``XLA_FFI_Metadata_Extension``, by which XLA queries the version."""

    _fields_ = (("type", c.c_int), ("next", c.c_void_p), ("metadata", c.c_void_p))


class _Version(_Extensible):
    _fields_ = (("major", c.c_int), ("minor", c.c_int))


class _Metadata(_Sized):
    _fields_ = (("version", _Version),)


class _Buffer(_Extensible):
    """``XLA_FFI_Buffer``: an array in C order."""

    _fields_ = (
        ("dtype", c.c_int),
        ("data", c.c_void_p),
        ("rank", c.c_int64),
        ("shape", c.POINTER(c.c_int64)),
    )


class _Text(c.Structure):
    """``XLA_FFI_ByteSpan``."""

    _fields_ = (("data", c.c_void_p), ("size", c.c_size_t))


class _Buffers(_Extensible):
    """``XLA_FFI_Args`` and ``XLA_FFI_Rets``."""

    _fields_ = (
        ("size", c.c_int64),
        ("types", c.c_void_p),
        ("items", c.POINTER(c.POINTER(_Buffer))),
    )


class _Attributes(_Extensible):
    _fields_ = (
        ("size", c.c_int64),
        ("types", c.c_void_p),
        ("names", c.c_void_p),
        ("items", c.POINTER(c.POINTER(_Text))),
    )


class _Api(_Extensible):
    """The beginning of ``XLA_FFI_Api``."""

    _fields_ = (
        ("version", _Version),
        ("internal", c.c_void_p),
        ("create_error", c.CFUNCTYPE(c.c_void_p, c.c_void_p)),
    )


class _ErrorArguments(_Extensible):
    _fields_ = (("message", c.c_char_p), ("code", c.c_int))


class _Frame(_Sized):
    """``XLA_FFI_CallFrame``."""

    _fields_ = (
        ("extension", c.POINTER(_Extension)),
        ("api", c.POINTER(_Api)),
        ("context", c.c_void_p),
        ("stage", c.c_int),
        ("operands", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    )


METADATA = 1
"""``XLA_FFI_Extension_Metadata``."""

INTERNAL = 13
"""``XLA_FFI_Error_Code_INTERNAL``."""

_CODES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 18)
DTYPES = {k: np.dtype(char) for k, char in zip(_CODES, "?bhilBHILefdFD", strict=True)}
"""The numpy dtype of each ``XLA_FFI_DataType``."""


def _handle(frame: Any) -> int | None:
    """Evaluate an einsum for XLA, or report the version of the interface."""
    call = frame.contents
    try:
        if call.extension and call.extension.contents.type == METADATA:
            _write_version(call)
            return None
        text = call.attributes.items[0].contents
        subscripts = c.string_at(text.data, text.size).decode()
        operands = [
            _read_array(call.operands.items[k]) for k in range(call.operands.size)
        ]
        einsum(subscripts, *operands, out=_read_array(call.results.items[0]))
    except Exception as error:  # noqa: BLE001  (no exception may pass through XLA)
        message = f"{type(error).__name__}: {error}".encode()
        arguments = _ErrorArguments(c.sizeof(_ErrorArguments), None, message, INTERNAL)
        created: int = call.api.contents.create_error(c.addressof(arguments))
        return created
    return None


_HANDLER = c.CFUNCTYPE(c.c_void_p, c.POINTER(_Frame))(_handle)
"""The callback. XLA keeps its address, so it must live as long as the process."""


def _write_version(call: Any) -> None:
    metadata = _Metadata.from_address(call.extension.contents.metadata)
    metadata.version.major = call.api.contents.version.major
    metadata.version.minor = call.api.contents.version.minor


def _read_array(pointer: Any) -> np.ndarray[Any, Any]:
    """Return the memory of a buffer as an array, without a copy."""
    buffer = pointer.contents
    shape = tuple(buffer.shape[: buffer.rank])
    dtype = DTYPES[buffer.dtype]
    n_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if n_bytes == 0:
        return np.empty(shape, dtype)
    memory: Any = (c.c_char * n_bytes).from_address(buffer.data)
    return np.frombuffer(memory, dtype).reshape(shape)
