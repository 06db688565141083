"""How a call of arrays on a GPU is made: by a kernel, by a library, or in pairs."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from feinsum.calling.first_call import path_for_numpy
from feinsum.calling.kernel import (
    CallKernel,
    recorded_kernel,
    untransformed_path,
)
from feinsum.calling.kernel_cache import Calls, cached_kernel
from feinsum.calling.options import CallOptions
from feinsum.calling.place import name_of
from feinsum.calling.predicted import Problem, predicted_kernel
from feinsum.calling.reading import Reading, first_uses, read_shapes, terms_of
from feinsum.codegen import ContractionPath
from feinsum.errors import BuildError
from feinsum.ir import BatchedEinsum, IndexList
from feinsum.memory import remembered
from feinsum.predict import machine_of, predictions
from feinsum.targets.cuda import CudaBuilt, CudaDevice
from feinsum.transforms.gpu.library import library_s, path_s
from feinsum.transforms.ranking import at_sizes

__all__ = ["GpuCall", "LibraryCall", "gpu_call"]

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
UNPROVEN = 1.5
"""Required predicted speed-up of an unrecorded recipe over a library."""
N_TIMED = 3
"""Runs of each contender; the fastest counts."""


class GpuCall(Protocol):
    """A call that can be repeated with other arrays of the same shapes and dtypes."""

    @property
    def reading(self) -> Reading: ...

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        """The result, on the stream on which the arrays are ready."""
        ...


def gpu_call(
    subscripts: str,
    arrays: Sequence[Any],
    operands: Sequence[Any],
    opened: CudaDevice,
    options: CallOptions,
    stream: Any,
) -> GpuCall:
    """The call that was made for such arrays, or a new one, which is kept.

    Args:
        operands: as they were given: one object given twice is one operand.
        stream: on which the arrays are ready; contenders are timed there.

    Raises:
        InvalidEinsumError: if notation, shapes or dtypes do not fit.
        BuildError: if nothing computes it.
    """
    given = tuple((tuple(array.shape), np.dtype(array.dtype)) for array in arrays)
    first = first_uses(operands)
    where = (
        opened, os.getpid(), name_of(options.database),
        options.policy, options.on_miss, options.effort,
    )  # fmt: skip

    def make() -> _CachedCalls:
        reading = read_shapes(subscripts, given, first)
        is_usual = options == CallOptions(options.database)
        is_short = is_usual and path_for_numpy(reading) is not None
        return _CachedCalls(
            reading, _library(reading, opened) if is_short else None, options
        )

    key = str(subscripts), given, first, where
    kept_call: _CachedCalls = remembered(Calls).gpu.get(key, make)
    return kept_call.next(_Site(arrays, stream, opened, options, where))


class _Site(NamedTuple):
    """The arguments for which a call is built; the arrays are not kept."""

    arrays: Sequence[Any]
    stream: Any
    opened: CudaDevice
    options: CallOptions
    where: Hashable


@dataclass(eq=False)
class _CachedCalls:
    """The state kept for calls of one kind.

    Attributes:
        first: answers the first one, sooner than a kernel is built.
        options: kept for the store in them, whose id tells it from others.
        made: answers the others.
    """

    reading: Reading
    first: GpuCall | None
    options: CallOptions
    made: GpuCall | None = None

    def next(self, site: _Site) -> GpuCall:
        if self.made is None and self.first is not None:
            first, self.first = self.first, None
            return first
        if self.made is None:
            self.made = _build(self.reading, site)
        return self.made


def _build(reading: Reading, site: _Site) -> GpuCall:
    """The fastest known call.

    Raises:
        BuildError: if nothing computes it.
    """
    opened, options = site.opened, site.options
    if reading.is_empty:
        return ZerosCall(reading, opened)
    library = _library(reading, opened)
    if reading.work_dtype.kind not in "iuf":
        return _some(library, reading)
    path = untransformed_path(reading.einsum, reading.sizes)
    if path is not None and _is_quicker_in_pairs(reading, opened, path):
        return PairsCall(reading, opened, path, options)
    product = library if _library_s(reading, opened) is not None else None
    recorded = _recorded(reading, site)
    if recorded is not None:
        return recorded if product is None else _faster(recorded, product, site)
    if product is not None and _is_quicker(reading, opened):
        return product
    kernel = cached_kernel(
        (reading.einsum, _magnitudes(reading), site.where),
        lambda: _predicted(reading.einsum, reading.sizes, opened),
    )
    if kernel is None:
        return _some(library, reading)
    return KernelCall(reading, opened, kernel)


def _library(reading: Reading, opened: CudaDevice) -> LibraryCall | None:
    """None if the notation of the library has too few letters."""
    is_short = len(reading.einsum.indices) <= len(LETTERS)
    is_needed = is_short and not reading.is_empty
    return LibraryCall(reading, opened) if is_needed else None


def _some(library: GpuCall | None, reading: Reading) -> GpuCall:
    if library is None:
        raise BuildError(
            f"nothing computes {reading.einsum.subscripts} on a GPU: libraries take "
            f"{len(LETTERS)} indices, and no family for GPUs fits"
        )
    return library


def _recorded(reading: Reading, site: _Site) -> KernelCall | None:
    einsum, opened = reading.einsum, site.opened
    kernel = cached_kernel(
        (einsum, site.where),
        lambda: recorded_kernel(einsum, reading.sizes, {}, opened, site.options),
    )
    return None if kernel is None else KernelCall(reading, opened, kernel)


def _magnitudes(reading: Reading) -> tuple[int, ...]:
    """Sizes for which one recipe does: small products take other ones than large."""
    return tuple(n.bit_length() for n in reading.sizes.values())


@dataclass(frozen=True, eq=False)
class _Prepared:
    """The common part of all calls."""

    reading: Reading
    opened: CudaDevice

    def prepare(self, arrays: Sequence[Any]) -> list[Any]:
        """The arrays to read for the einsum's operands, in the working dtype."""
        reading = self.reading
        return [
            arrays[feed.position]
            .reshape(feed.shape)
            .astype(reading.work_dtype, copy=False)
            for feed in reading.feeds
        ]

    def finish(self, result: Any) -> Any:
        return result.astype(self.reading.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class ZerosCall(_Prepared):
    """No product is formed."""

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        shape, session = self.reading.shape, self.opened.session
        zeros = session.allocate(int(np.prod(shape)), self.reading.dtype)
        session.clear(zeros, stream)
        return zeros.reshape(shape)


@dataclass(frozen=True, eq=False)
class LibraryCall(_Prepared):
    """The libraries of the vendor compute everything."""

    @cached_property
    def text(self) -> str:
        """The notation in letters, with a term for each operand of the einsum."""
        return _in_letters(self.reading.einsum.inputs, self.reading.einsum.output)

    @cached_property
    def numbers(self) -> list[int]:
        """Which feed each operand of the einsum is."""
        return terms_of(self.reading)[0]

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        inputs = self.prepare(arrays)
        ordered = [inputs[k] for k in self.numbers]
        session = self.opened.session
        return self.finish(session.einsum(self.text, ordered, stream))

    def with_torch(self, torch: Any, tensors: Sequence[Any]) -> Any:
        """The result of tensors by torch itself, on its own stream."""
        kind = getattr(torch, str(self.reading.work_dtype))
        feeds = self.reading.feeds
        inputs = [tensors[x.position].reshape(x.shape).to(kind) for x in feeds]
        result = torch.einsum(self.text, *(inputs[k] for k in self.numbers))
        return result.to(getattr(torch, str(self.reading.dtype))).contiguous()


@dataclass(frozen=True, eq=False)
class KernelCall(_Prepared):
    """A kernel computes everything; it reads arrays in C's order."""

    kernel: CallKernel

    @cached_property
    def caller(self) -> Callable[..., Any]:
        names = [feed.name for feed in self.reading.feeds]
        return self.kernel.compiled.built.caller(names, self.reading.sizes)

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        packed = [self.opened.session.packed(array) for array in self.prepare(arrays)]
        return self.finish(self.caller(packed, None, stream))


@dataclass(frozen=True, eq=False)
class PairsCall(_Prepared):
    """Two operands at a time, where one nest would do far more work."""

    path: ContractionPath
    options: CallOptions

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        reading = self.reading
        feeds = [arrays[x.position].reshape(x.shape) for x in reading.feeds]
        numbers, terms = terms_of(reading)
        values = [(term, feeds[k]) for k, term in zip(numbers, terms, strict=True)]
        for step in self.path:
            chosen = [values[k] for k in step]
            values = [value for k, value in enumerate(values) if k not in step]
            needed = set(reading.einsum.output).union(*(term for term, _ in values))
            joint = dict.fromkeys(i for term, _ in chosen for i in term)
            left = tuple(i for i in joint if i in needed)
            term = left if values else reading.einsum.output
            operands = [array for _, array in chosen]
            text = _in_letters([term for term, _ in chosen], term)
            call = gpu_call(text, operands, operands, self.opened, self.options, stream)
            values.append((term, call(operands, stream)))
        ((_, result),) = values
        return result


def _in_letters(terms: Sequence[IndexList], output: IndexList) -> str:
    """The notation of a few indices, whatever their names."""
    indices = dict.fromkeys(i for term in terms for i in term)
    letter = dict(zip(indices, LETTERS, strict=False))
    left = ",".join("".join(letter[i] for i in term) for term in terms)
    return left + "->" + "".join(letter[i] for i in output)


def _library_s(reading: Reading, opened: CudaDevice) -> float | None:
    """Time of a matrix product by a library; None if the einsum is none."""
    gpu = machine_of(opened.device).gpu
    assert gpu is not None
    if reading.work_dtype.kind != "f" or len(reading.einsum.indices) > len(LETTERS):
        return None
    return library_s(at_sizes(reading.einsum, reading.sizes), gpu)


def _is_quicker_in_pairs(
    reading: Reading, opened: CudaDevice, path: ContractionPath
) -> bool:
    """Whether a path is expected to be faster than one kernel for everything."""
    gpu = machine_of(opened.device).gpu
    assert gpu is not None
    seconds = path_s(at_sizes(reading.einsum, reading.sizes), path, gpu)
    best = predictions(reading.einsum, reading.sizes, opened.device)[:1]
    return all(seconds < UNPROVEN * one.seconds for one in best)


def _is_quicker(reading: Reading, opened: CudaDevice) -> bool:
    """Whether a library is expected to be faster than the predicted recipe."""
    seconds = _library_s(reading, opened)
    best = predictions(reading.einsum, reading.sizes, opened.device)[:1]
    return seconds is not None and all(seconds < UNPROVEN * one.seconds for one in best)


def _faster(one: GpuCall, other: GpuCall, site: _Site) -> GpuCall:
    """The call that takes less time with these arrays, by events."""

    def seconds(call: GpuCall) -> float:
        def run() -> None:
            call(site.arrays, site.stream)

        run()
        timed = site.opened.session.timed
        return min(timed(run, site.stream) for _ in range(N_TIMED))

    return min((one, other), key=seconds)


def _predicted(
    einsum: BatchedEinsum, sizes: Mapping[str, int], opened: CudaDevice
) -> CallKernel | None:
    """Without a record: the correct recipe that is expected to be the fastest."""
    problem = Problem(einsum, sizes, strides={}, given={}, steps={})
    found = predicted_kernel(problem, opened, _check_figures)
    return None if found is None else found[0]


def _check_figures(kernel: CallKernel) -> None:
    built = kernel.compiled.built
    assert isinstance(built, CudaBuilt)
    built.check_figures()
