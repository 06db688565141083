"""Calls of arrays that lie on a GPU of CUDA, whatever library they are of.

They come and go by DLPack, without copies, on the stream that CuPy has as its current
one; DLPack makes that wait for the stream of the array, and the other way round.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feinsum.calling.kept import kept
from feinsum.calling.kernel import (
    CallKernel,
    recorded_kernel,
    untransformed_path,
)
from feinsum.calling.options import CallOptions
from feinsum.calling.place import name_of
from feinsum.calling.predicted import Problem, predicted_kernel
from feinsum.calling.reading import Reading, first_uses, read_shapes
from feinsum.errors import (
    BuildError,
    DeviceUnavailableError,
    InvalidEinsumError,
    MeasurementError,
)
from feinsum.ir import BatchedEinsum
from feinsum.targets.arrays import is_cuda_array
from feinsum.targets.cuda import CUDA, CudaBuilt, CudaDevice
from feinsum.transforms.gpu import GPU_ELEMENTS

__all__ = ["call_on_gpu"]

LIBRARIES = {"cupy": "cupy", "torch": "torch", "jaxlib": "jax.dlpack"}
"""By the first word of the module of an array's type: what takes results over."""
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def call_on_gpu(
    subscripts: str,
    operands: Sequence[Any],
    device: str | None,
    options: CallOptions,
    out: Any,
) -> Any:
    """The result, where the operands are, as an array of the first one's library.

    Raises:
        InvalidEinsumError: if notation, shapes or dtypes do not fit.
        DeviceUnavailableError: if a device is named, or the driver is not there.
        MeasurementError: if an operand is elsewhere, or not C-contiguous.
    """
    if out is not None or device is not None:
        raise DeviceUnavailableError(
            "operands are on a GPU, where the einsum is evaluated; omit out= and "
            "device="
        )
    opened = CUDA.open_ordinal(_ordinal(operands))
    adopted = [opened.session.adopted(operand) for operand in operands]
    arrays, stream = [array for array, _ in adopted], adopted[0][1]
    for position, array in enumerate(arrays):
        if not array.flags.c_contiguous:
            raise MeasurementError(
                f"operand {position} has strides {array.strides} on the GPU; give a "
                "C-contiguous copy"
            )
    result = _computed(subscripts, arrays, operands, stream, opened, options)
    return _as_given(result, operands[0])


def _ordinal(operands: Sequence[Any]) -> int:
    """The GPU on which all operands are."""
    places = []
    for position, operand in enumerate(operands):
        if not is_cuda_array(operand):
            raise MeasurementError(
                f"operand {position} is a {type(operand).__name__} that is not on a "
                "GPU of CUDA, among others that are; give arrays of one device"
            )
        places.append(int(operand.__dlpack_device__()[1]))
    if len(set(places)) > 1:
        raise MeasurementError(
            f"the operands are on the GPUs {places}; give arrays of one device"
        )
    return places[0]


def _computed(
    subscripts: str,
    arrays: Sequence[Any],
    operands: Sequence[Any],
    stream: Any,
    opened: CudaDevice,
    options: CallOptions,
) -> Any:
    """The einsum at once, or two operands at a time if that takes far less."""
    given = [(tuple(array.shape), np.dtype(array.dtype)) for array in arrays]
    reading = read_shapes(subscripts, given, first_uses(operands))
    if reading.is_empty:
        n_entries = int(np.prod(reading.shape))
        zeros = opened.session.allocate(n_entries, reading.dtype)
        opened.session.clear(zeros)
        return zeros.reshape(reading.shape)
    _check_dtype(reading)
    path = untransformed_path(reading.einsum, reading.sizes)
    if path is not None and not GPU_ELEMENTS.fits(reading.einsum):
        return _in_pairs(reading, path, arrays, stream, opened, options)
    where = opened, os.getpid(), name_of(options.database)
    kernel = kept(
        (
            reading.einsum,
            _magnitudes(reading),
            where,
            options.policy,
            options.on_miss,
            options.effort,
        ),
        lambda: (
            recorded_kernel(reading.einsum, reading.sizes, {}, opened, options)
            or _predicted(reading.einsum, reading.sizes, opened)
        ),
    )
    assert kernel is not None
    inputs = [
        arrays[feed.position].reshape(feed.shape).astype(reading.work_dtype, copy=False)
        for feed in reading.feeds
    ]
    names = [feed.name for feed in reading.feeds]
    caller = kernel.compiled.built.caller(names, reading.sizes, stream)
    return caller(inputs).astype(reading.dtype, copy=False)


def _magnitudes(reading: Reading) -> tuple[int, ...]:
    """Sizes for which one recipe does: small products take other ones than large."""
    return tuple(n.bit_length() for n in reading.sizes.values())


def _check_dtype(reading: Reading) -> None:
    if reading.work_dtype.kind not in "iuf":
        raise InvalidEinsumError(
            f"the dtype {reading.dtype} is not computed on GPUs of CUDA; copy the "
            "operands to the host, or give real numbers",
            rules=("dtype",),
        )


def _in_pairs(
    reading: Reading,
    path: Sequence[tuple[int, ...]],
    arrays: Sequence[Any],
    stream: Any,
    opened: CudaDevice,
    options: CallOptions,
) -> Any:
    einsum = reading.einsum
    letter = dict(zip(einsum.indices, LETTERS, strict=False))
    feeds = {feed.name: feed for feed in reading.feeds}
    (row,) = einsum.rows
    values = [
        (term, arrays[feeds[op.name].position].reshape(feeds[op.name].shape))
        for op, term in zip(row, einsum.inputs, strict=True)
    ]
    for step in path:
        chosen = [values[k] for k in step]
        values = [value for k, value in enumerate(values) if k not in step]
        needed = set(einsum.output).union(*(term for term, _ in values))
        joint = dict.fromkeys(i for term, _ in chosen for i in term)
        kept_indices = tuple(i for i in joint if i in needed)
        term = kept_indices if values else einsum.output
        text = ",".join("".join(letter[i] for i in t) for t, _ in chosen)
        text += "->" + "".join(letter[i] for i in term)
        operands = [array for _, array in chosen]
        made = _computed(text, operands, operands, stream, opened, options)
        values.append((term, made))
    ((_, result),) = values
    return result


def _predicted(
    einsum: BatchedEinsum, sizes: Mapping[str, int], opened: CudaDevice
) -> CallKernel:
    """Without a record: what is expected to be the fastest, and is right.

    Raises:
        BuildError: if nothing fits.
    """
    problem = Problem(einsum, sizes, strides={}, given={}, steps={})
    found = predicted_kernel(problem, opened, _check_figures)
    if found is None:
        raise BuildError(
            f"no family for GPUs works for {einsum.subscripts}; a grid has axes for "
            "three run-time extents of the output"
        )
    return found[0]


def _check_figures(kernel: CallKernel) -> None:
    built = kernel.compiled.built
    assert isinstance(built, CudaBuilt)
    built.check_figures()


def _as_given(result: Any, operand: Any) -> Any:
    """The result as an array of the operand's library."""
    word = type(operand).__module__.partition(".")[0]
    library = sys.modules.get(LIBRARIES.get(word, ""))
    return result if library is None else library.from_dlpack(result)
