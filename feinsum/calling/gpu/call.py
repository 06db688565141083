"""Calls of arrays on a CUDA GPU, from any library.

Calls run on CuPy's current stream. DLPack passes arrays without copies, and makes that
stream wait for the stream of the array::

    torch's stream   --- writes A ---+                        +--- may reuse A --->
    CuPy's stream                    +--- computes the call --+

Afterwards torch's stream waits for CuPy's, since torch may reuse the operands' memory.
The streams of other libraries are unknown, so the host waits. If torch itself or
prepared launches compute the result of tensors, these run on torch's stream instead.
What computes a call is the subject of :mod:`feinsum.calling.gpu.cached`.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Hashable, Sequence
from typing import Any

from feinsum.calling.gpu.cached import get_cached_calls
from feinsum.calling.gpu.flat import FlatCall, count_min_bytes
from feinsum.calling.gpu.prepared import GpuCall, LibraryCall
from feinsum.calling.gpu.quick import (
    Ready,
    ReadyForTensors,
    get_tensor_form,
    keep_ready,
    register_form,
)
from feinsum.calling.gpu.site import Site
from feinsum.calling.kernel_cache import LookupOptions
from feinsum.calling.operands import (
    check_fit,
    check_tensor,
    is_differentiating,
    is_tensor,
)
from feinsum.errors import (
    DeviceUnavailableError,
    MeasurementError,
)
from feinsum.libraries import is_cuda_array, resolve_entries
from feinsum.targets.cuda.cupy_errors import CudaErrors
from feinsum.targets.cuda.cupy_session import CupySession
from feinsum.targets.cuda.device import CUDA, CudaDevice
from feinsum.words import describe_type

LIBRARIES = {"torch": "torch", "jaxlib": "jax.dlpack"}
"""The module that imports results, by the top-level package of an array's type."""
IMMUTABLE = "jaxlib"


def call_on_gpu(
    subscripts: str,
    operands: Sequence[Any],
    device: str | None,
    options: LookupOptions,
    out: Any,
    key: Hashable | None,
) -> Any:
    """Evaluate an einsum on the operands' GPU, as an array of the first one's library.

    Args:
        subscripts: as for :func:`feinsum.call_einsum`.
        operands: arrays of one GPU.
        device: must be None: the operands determine the GPU.
        options: how recipes are looked up.
        out: an array on the same GPU for the result, of exactly its shape and dtype; or
            None.
        key: the key under which the call is kept, see :func:`make_quick_key`.

    Raises:
        InvalidEinsumError: if notation, shapes or dtypes do not fit.
        DeviceUnavailableError: if a device is named, or there is no driver.
        MeasurementError: if an operand is elsewhere, or the GPU has too little memory.
    """
    if device is not None:
        raise DeviceUnavailableError(
            "operands are on a GPU, where the einsum is evaluated; omit device="
        )
    opened = CUDA.open_ordinal(_get_ordinal(operands))
    with opened.session.active():
        return _evaluate(subscripts, operands, opened, options, out, key)


def _evaluate(
    subscripts: str,
    operands: Sequence[Any],
    opened: CudaDevice,
    options: LookupOptions,
    out: Any,
    key: Hashable | None,
) -> Any:
    """Evaluate an einsum on the current GPU."""
    session = opened.session
    originals = operands
    for operand in filter(is_tensor, originals):
        check_tensor(operand)
    if is_differentiating():
        key = None  # it does not show tangents
    with CudaErrors("the operands cannot be read"):
        operands = [resolve_entries(operand) for operand in originals]
    if not all(map(operator.is_, originals, operands)):
        key = None  # a call by address would read the unresolved memory
    # DLPack makes CuPy's stream wait for that of each array
    adopted = [session.adopted(operand) for operand in operands]
    arrays, stream = [array for array, _ in adopted], adopted[0][1]
    site = Site(arrays, stream, opened, options)
    cached = get_cached_calls(subscripts, operands, site)
    call = cached.next(site)
    if out is None and _are_of(operands, "torch"):
        if isinstance(call, LibraryCall) and call.is_for_torch:
            return call.with_torch(sys.modules["torch"], operands)
        if isinstance(call, FlatCall):
            return _evaluate_tensors(call, operands, session, key)
    # only for a new call: a query of the driver takes longer than a short kernel
    if call is not cached.checked:
        opened.check_room(count_min_bytes(call), "what a call needs")
        cached.checked = call
    if out is not None:
        _write_result(call, arrays, stream, opened, operands, out)
        _order_streams([*operands, out], stream, session)
        return out
    result = call(arrays, stream)
    # for arrays of CuPy, the next call can skip all this by a quick key
    if all(map(operator.is_, arrays, operands)):
        register_form(type(operands[0]), session.form)
        # what a library computes for now would stay for good
        if call is cached.repeated:
            keep_ready(key, Ready(call, session))
        return result
    # JAX imports no strided arrays
    if _get_library(operands[0]) == IMMUTABLE:  # whose arrays are packed
        result = session.packed(result)
    _order_streams(operands, stream, session)
    return _as_given(result, operands[0])


def _evaluate_tensors(
    call: FlatCall,
    operands: Sequence[Any],
    session: CupySession,
    key: Hashable | None,
) -> Any:
    """Evaluate a call on torch's stream and in its memory, and keep it for repeats."""
    register_form(type(operands[0]), get_tensor_form)
    ready = ReadyForTensors(call, session, sys.modules["torch"])
    keep_ready(key, ready)
    return ready.run(operands)


def _order_streams(arrays: Sequence[Any], stream: Any, session: CupySession) -> None:
    """Make the libraries of the arrays wait for the launches on a stream.

    They may reuse the memory of an operand once it is freed, and read the result.
    """
    libraries = {_get_library(array) for array in arrays} - {"cupy"}
    if libraries == {"torch"}:
        torch = sys.modules["torch"]
        session.wait(session.stream_at(torch.cuda.current_stream().cuda_stream), stream)
    elif libraries:
        session.synchronize(stream)


def _write_result(
    call: GpuCall,
    arrays: Sequence[Any],
    stream: Any,
    opened: CudaDevice,
    operands: Sequence[Any],
    out: Any,
) -> None:
    """Write the result into an array of the caller.

    Raises:
        InvalidEinsumError: if the array does not fit the result.
        MeasurementError: if the array is elsewhere, or cannot be written.
    """
    if not is_cuda_array(out):
        raise MeasurementError(
            f"out is {describe_type(out)} that is not on a CUDA GPU, unlike the "
            "operands; give an array on their GPU"
        )
    if _get_library(out) == IMMUTABLE:
        raise MeasurementError("out is an array of JAX, which cannot be written")
    if resolve_entries(out) is not out:
        raise MeasurementError("out is negated or conjugated; give a plain tensor")
    # out has to be on the GPU of the operands
    _get_ordinal([*operands, out])
    into, _ = opened.session.adopted(out)
    parsed = call.parsed
    check_fit(into, parsed.shape, parsed.dtype)
    opened.session.overwrite(into, call(arrays, stream), stream)


def _get_ordinal(operands: Sequence[Any]) -> int:
    """Return the number of the GPU that holds all operands, or raise an error."""
    ordinals = []
    for position, operand in enumerate(operands):
        if not is_cuda_array(operand):
            raise MeasurementError(
                f"operand {position} is {describe_type(operand)} that is not on a "
                "CUDA GPU, unlike others; give arrays on one device"
            )
        ordinals.append(int(operand.__dlpack_device__()[1]))
    if len(set(ordinals)) > 1:
        raise MeasurementError(
            f"the operands are on the GPUs {ordinals}; give arrays on one device"
        )
    return ordinals[0]


def _get_library(array: Any) -> str:
    """Return the top-level package of an array's type."""
    return type(array).__module__.partition(".")[0]


def _are_of(operands: Sequence[Any], library: str) -> bool:
    return all(_get_library(operand) == library for operand in operands)


def _as_given(result: Any, operand: Any) -> Any:
    """Convert a result to an array of the operand's library."""
    name = LIBRARIES.get(_get_library(operand))
    if name is None:
        return result
    with CudaErrors("{} cannot import a result of {}", name, result.dtype):
        return importlib.import_module(name).from_dlpack(result)
