"""``call_einsum``: what :func:`numpy.einsum` computes, by a retrieved kernel."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from feinsum.calling.cache import BoundedCache
from feinsum.calling.kernel import CallKernel, CallOptions, build_kernel
from feinsum.calling.prepared import PreparedCall
from feinsum.calling.reading import Reading, first_uses, read_shapes
from feinsum.db import Database, default_location
from feinsum.errors import DeviceUnavailableError, InvalidEinsumError
from feinsum.measure import OpenCLDevice, open_device
from feinsum.measure.device import DEVICE_VARIABLE
from feinsum.measure.residence import (
    check_device_arrays,
    device_of,
    is_device_array,
)
from feinsum.records import Policy
from feinsum.retrieval import OnMiss

__all__ = ["CACHE_BOUND", "call_einsum", "clear_call_cache", "prepare_call"]

CACHE_BOUND = 256
"""Calls, told apart by notation, shapes and dtypes, whose kernels are kept."""

_CALLS: BoundedCache[Hashable, PreparedCall] = BoundedCache(CACHE_BOUND)
_KERNELS: WeakValueDictionary[Hashable, CallKernel] = WeakValueDictionary()
"""Kernels that several calls share, for as long as one of these is kept."""


def call_einsum(
    subscripts: str,
    *operands: Any,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    on_miss: OnMiss = "return",
    out: Any = None,
) -> Any:
    """Evaluate an einsum of arrays with the best recipe known for it.

    The first call of a notation with these shapes and dtypes retrieves and builds
    a kernel, later ones only run it, also if facts were recorded in between: see
    :func:`feinsum.calling.clear_call_cache`.

    Args:
        subscripts: as for :func:`numpy.einsum`, or with words for indices. Axes
            of extent 1 are broadcast.
        operands: arrays, or what numpy takes for arrays; or all of them
            C-contiguous :class:`pyopencl.array.Array` of one context. One object
            given twice is one operand to the kernel.
        device: part of an OpenCL device's name, for operands on the host; see
            :func:`feinsum.measure.open_device`.
        database, policy, on_miss: as for :func:`feinsum.retrieve`. Without a
            recipe the einsum is evaluated by an untransformed kernel.
        out: an array of the host for the result, of its very shape and dtype.

    Returns:
        A new array, of rank 0 for a scalar, of numpy's result type; on the device
        if the operands are there. With ``out``, that array.

    Raises:
        InvalidEinsumError: if notation, shapes or dtypes do not fit, or the dtype
            is none that is computed; operands are counted from 0.
        MeasurementError: if there is no device, or if it refuses or fails.
        FeinsumError: with ``on_miss="raise"`` why there is no recipe.

    >>> from feinsum.records import InMemoryStore
    >>> facts = InMemoryStore()
    >>> call_einsum("ij,j", np.eye(2), [3.0, 4.0], database=facts).tolist()
    [3.0, 4.0]
    """
    arrays = [_as_array(operand) for operand in operands]
    options = CallOptions(database, policy, on_miss)
    call = _prepared(subscripts, operands, arrays, device, options)
    if out is None:
        return call.run(arrays)
    _check_out(out, call.reading)
    result = call.run(arrays)
    out[...] = result.get() if is_device_array(result) else result
    return out


def prepare_call(
    subscripts: str,
    *operands: Any,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    on_miss: OnMiss = "return",
) -> PreparedCall:
    """What :func:`call_einsum` keeps for these arguments; nothing is computed."""
    arrays = [_as_array(operand) for operand in operands]
    options = CallOptions(database, policy, on_miss)
    return _prepared(subscripts, operands, arrays, device, options)


def clear_call_cache() -> None:
    """Forget all kernels of calls, so that new facts are asked for."""
    _CALLS.clear()
    _KERNELS.clear()


def _as_array(operand: Any) -> Any:
    return operand if is_device_array(operand) else np.asarray(operand)


def _prepared(
    subscripts: str,
    operands: Sequence[Any],
    arrays: Sequence[Any],
    device: str | None,
    options: CallOptions,
) -> PreparedCall:
    place = _place(arrays, device)
    first = first_uses(operands)
    given = tuple((array.shape, array.dtype) for array in arrays)
    where = (place, _name_of(options.database), options.policy, options.on_miss)

    def make() -> PreparedCall:
        reading = read_shapes(subscripts, given, first)
        if reading.is_empty:
            return PreparedCall(reading, None, options)
        opencl = open_device(place.selector) if place.is_host else device_of(arrays[0])
        kernel = _kernel(reading, (reading.einsum, where), opencl, options)
        return PreparedCall(reading, kernel, options)

    return _CALLS.get((str(subscripts), given, first, where), make)


def _kernel(
    reading: Reading, key: Hashable, opencl: OpenCLDevice, options: CallOptions
) -> CallKernel:
    kernel = _KERNELS.get(key)
    if kernel is None:
        kernel = build_kernel(reading.einsum, reading.sizes, opencl, options)
        _KERNELS[key] = kernel
    return kernel


class _Place(NamedTuple):
    """Where a call is computed: a context does not survive a fork."""

    process: int
    context: int
    selector: str

    @property
    def is_host(self) -> bool:
        """The operands are on the host; any device that matches will do."""
        return not self.context


def _place(arrays: Sequence[Any], device: str | None) -> _Place:
    if not any(map(is_device_array, arrays)):
        named = os.environ.get(DEVICE_VARIABLE, "") if device is None else device
        return _Place(os.getpid(), 0, named)
    if device is not None:
        raise DeviceUnavailableError(
            f"device={device!r} is given for operands that lie on a device; leave it "
            "out, the einsum is evaluated where they are"
        )
    check_device_arrays(arrays)
    queue = arrays[0].queue
    return _Place(os.getpid(), queue.context.int_ptr, str(queue.device.int_ptr))


def _name_of(database: Database) -> Hashable:
    """What tells databases apart; a store is kept by the call, so its id is its own."""
    if database is None:
        return default_location()
    if isinstance(database, str | os.PathLike):
        return os.fspath(database)
    return id(database)


def _check_out(out: Any, reading: Reading) -> None:
    if not isinstance(out, np.ndarray):
        raise InvalidEinsumError(
            f"out is a {type(out).__name__}; expected a numpy array", rules=("shape",)
        )
    if out.shape != reading.shape or out.dtype != reading.dtype:
        raise InvalidEinsumError(
            f"out has shape {out.shape} and dtype {out.dtype}, the result has "
            f"{reading.shape} and {reading.dtype}",
            rules=("shape",),
        )
