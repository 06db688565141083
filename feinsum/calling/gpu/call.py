"""Calls of arrays on a CUDA GPU, from any library.

Calls run on CuPy's current stream. DLPack passes arrays without copies, and makes that
stream wait for the stream of the array::

    torch's stream   --- writes A ---+                        +--- may reuse A --->
    CuPy's stream                    +--- computes the call --+

Afterwards torch's stream waits for CuPy's, since torch may reuse the operands' memory.
The streams of other libraries are unknown, so the host waits. If torch itself or
prepared launches compute the result of tensors, these run on torch's stream instead.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from feinsum.calling.einsum_call import EinsumCall
from feinsum.calling.gpu.building import build, make_library_call, make_view_call
from feinsum.calling.gpu.contenders import Site, parse_arrays
from feinsum.calling.gpu.flat import FlatCall, count_min_bytes
from feinsum.calling.gpu.prepared import GpuCall, LibraryCall, count_result_bytes
from feinsum.calling.gpu.quick import (
    Ready,
    ReadyForTensors,
    get_tensor_form,
    keep_ready,
    register_form,
)
from feinsum.calling.kernel_cache import Calls, LookupOptions
from feinsum.calling.operands import (
    check_fit,
    check_tensor,
    find_first_uses,
    is_differentiating,
    is_tensor,
)
from feinsum.errors import (
    DeviceUnavailableError,
    MeasurementError,
)
from feinsum.libraries import is_cuda_array, resolve_entries
from feinsum.memory import get_remembered
from feinsum.targets.cuda import CUDA, CudaDevice
from feinsum.targets.cuda.cupy_errors import CudaErrors
from feinsum.targets.cuda.cupy_session import CupySession
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
    is_new = cached.repeated is None
    call = cached.next(site)
    if out is None and _are_of(operands, "torch"):
        if isinstance(call, LibraryCall) and call.is_for_torch:
            return call.with_torch(sys.modules["torch"], operands)
        if isinstance(call, FlatCall):
            return _evaluate_tensors(call, operands, session, key)
    # only for a new call: a query of the driver takes longer than a short kernel
    if is_new:
        opened.check_room(count_min_bytes(call), "what a call needs")
    if out is not None:
        _write_result(call, arrays, stream, opened, operands, out)
        _order_streams([*operands, out], stream, session)
        return out
    result = call(arrays, stream)
    # for arrays of CuPy, the next call can skip all this by a quick key
    if all(map(operator.is_, arrays, operands)):
        register_form(type(operands[0]), session.form)
        if cached.repeated is not None:
            keep_ready(key, Ready(cached.repeated, session))
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


MAX_FIRST_BYTES = 1 << 30
"""Maximum bytes of operands and result for which the library computes the first call,
since it may need several times as much memory."""


@dataclass(eq=False)
class CachedCalls:
    """The state kept for calls of one kind.

    Attributes:
        first: computes the first call, without waiting for a kernel to be built.
        repeated: computes all later calls.
    """

    parsed: EinsumCall
    first: GpuCall | None
    repeated: GpuCall | None = None
    _lock: Lock = field(default_factory=Lock, repr=False)

    def next(self, site: Site) -> GpuCall:
        """Return the call to run next; threads wait while one of them builds it."""
        if self.repeated is not None:
            return self.repeated
        with self._lock:
            # the library computes the first call; the second one builds the kernel
            first, self.first = self.first, None
            if first is not None:
                return first
            if self.repeated is None:
                self.repeated = build(self.parsed, site)
            return self.repeated


def get_cached_calls(
    subscripts: str, operands: Sequence[Any], site: Site
) -> CachedCalls:
    """Return the cached calls for such arrays, or make them.

    Args:
        subscripts: as for :func:`feinsum.call_einsum`.
        operands: the operands as given; an object passed twice is one operand.
        site: the arrays, the GPU and the options of the call.

    Raises:
        InvalidEinsumError: if notation, shapes or dtypes do not fit.
    """
    first = find_first_uses(operands)
    session = site.opened.session

    def make() -> CachedCalls:
        parsed = parse_arrays(subscripts, site.arrays, first)
        # with a policy, the caller requires a kernel, not the library's result
        is_usual = site.options == LookupOptions(site.options.database)
        n_bytes = count_result_bytes(parsed) + sum(
            array.nbytes for array in site.arrays
        )
        # a view is ready at once
        has_view = make_view_call(parsed, site.opened) is not None
        is_first = is_usual and not has_view and n_bytes <= MAX_FIRST_BYTES
        library = make_library_call(parsed, site.opened) if is_first else None
        return CachedCalls(parsed, library)

    key = str(subscripts), first, site.lookup_key, *map(session.form, site.arrays)
    cached: CachedCalls = get_remembered(Calls).gpu.get(key, make)
    return cached
