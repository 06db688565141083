"""``call_einsum``: what :func:`numpy.einsum` computes, by a retrieved kernel."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from numpy import ndarray

from feinsum.calling.amortized import AmortizedCall
from feinsum.calling.arguments import (
    COPIED,
    IN_ORDER,
    Form,
    Lie,
    as_array,
    can_write,
    form_of,
    lie_of,
    strides_of,
    values_of,
)
from feinsum.calling.cache import BoundedCache
from feinsum.calling.kernel import (
    OUTPUT,
    CallKernel,
    CallOptions,
    recorded_kernel,
    untransformed_kernel,
    untransformed_path,
)
from feinsum.calling.prepared import (
    PreparedCall,
    Take,
    from_device,
    from_host,
    view_of,
)
from feinsum.calling.reading import Reading, first_uses, read_shapes
from feinsum.calling.simple import simple_call
from feinsum.db import Database
from feinsum.db.sql.location import ENVIRONMENT_VARIABLE
from feinsum.errors import DeviceUnavailableError, InvalidEinsumError
from feinsum.measure import open_device
from feinsum.measure.intermediates import all_have_room
from feinsum.memory import remembered
from feinsum.predict import MEASURING, Effort, effort_of
from feinsum.records import Policy
from feinsum.retrieval import OnMiss
from feinsum.targets.devices import DEVICE_VARIABLE
from feinsum.targets.host.results import check_room
from feinsum.targets.opencl.residence import (
    check_device_arrays,
    device_of,
    is_device_array,
)

__all__ = ["CACHE_BOUND", "call_einsum", "clear_call_cache", "prepare_call"]

CACHE_BOUND = 256
"""Calls, told apart by notation, shapes and dtypes, whose kernels are kept."""


_Call: TypeAlias = PreparedCall | AmortizedCall


class _Calls:
    """What is kept of calls.

    Attributes:
        kernels: those that several calls share, for as long as one of these is kept.
        quick: the same calls under keys that are made sooner; dropped when there are
            many.
    """

    def __init__(self) -> None:
        self.prepared: BoundedCache[Hashable, _Call] = BoundedCache(CACHE_BOUND)
        self.kernels: WeakValueDictionary[Hashable, CallKernel] = WeakValueDictionary()
        self.quick: dict[Hashable, _Call] = {}


def call_einsum(
    subscripts: str,
    *operands: Any,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    on_miss: OnMiss = "return",
    effort: Effort | None = None,
    out: Any = None,
) -> Any:
    """Evaluate an einsum of arrays with the best recipe known or predicted for it.

    The first call of a notation with these shapes and dtypes retrieves and builds
    a kernel, later ones only run it, also if facts were recorded in between: see
    :func:`feinsum.calling.clear_call_cache`.

    Args:
        subscripts: as for :func:`numpy.einsum`, or with words for indices. Axes
            of extent 1 are broadcast.
        operands: arrays, also views with any strides, or what numpy takes for arrays,
            or what offers its memory by DLPack; or all of them C-contiguous
            :class:`pyopencl.array.Array` of one context. One object given twice is one
            operand to the kernel. The host reads arrays of the result's dtype where
            they are.
        device: part of a device's name, for operands on the host; see
            :func:`feinsum.measure.open_device`.
        database, policy, on_miss: as for :func:`feinsum.retrieve`.
        effort: as for :func:`feinsum.retrieve`. By default ``amortized``: the recipe is
            used that is predicted to be the fastest, and the next best ones are timed
            out of a quarter of the time that calls have taken.
        out: an array of the host for the result, of its very shape and dtype.

    Returns:
        A new array, of rank 0 for a scalar, of numpy's result type; on the device
        if the operands are there. Of one operand without a sum, a view of it. With
        ``out``, that array.

    Raises:
        InvalidEinsumError: if notation, shapes or dtypes do not fit, or the dtype
            is none that is computed; operands are counted from 0.
        MeasurementError: if there is no device, or if it refuses or fails.
        FeinsumError: with ``on_miss="raise"`` why there is no recipe; if the effort is
            none.

    >>> from feinsum.records import InMemoryStore
    >>> facts = InMemoryStore()
    >>> call_einsum("ij,j", np.eye(2), [3.0, 4.0], database=facts).tolist()
    [3.0, 4.0]
    """
    n_objects = len({id(x) for x in operands})
    are_simple = n_objects == len(operands) and all(
        type(x) is ndarray for x in operands
    )
    if out is not None or not are_simple:
        options = CallOptions(database, policy, on_miss, _effort(effort))
        return _called(subscripts, operands, device, options, out)
    named = os.environ.get(DEVICE_VARIABLE, "") if device is None else device
    where = _name_of(database)
    key = (
        subscripts,
        named,
        where,
        policy,
        on_miss,
        effort,
        os.getpid(),
        *[(x.shape, x.strides, x.dtype, x.flags.aligned) for x in operands],
    )
    quick = remembered(_Calls).quick
    call = quick.get(key)
    if call is None:
        call = _prepared(
            subscripts,
            operands,
            operands,
            device,
            CallOptions(database, policy, on_miss, _effort(effort)),
            None,
        )
        if len(quick) >= CACHE_BOUND:
            quick.clear()
        quick[key] = call
    return call.run(operands)


def _called(
    subscripts: str,
    operands: Sequence[Any],
    device: str | None,
    options: CallOptions,
    out: Any,
) -> Any:
    """A call of whatever operands, and of whatever result."""
    arrays = [_as_array(operand) for operand in operands]
    if out is not None:
        _check_out(out)
    call = _prepared(subscripts, operands, arrays, device, options, out)
    return call.run(arrays, out)


def prepare_call(
    subscripts: str,
    *operands: Any,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
    on_miss: OnMiss = "return",
    effort: Effort | None = None,
    out: Any = None,
) -> PreparedCall:
    """What :func:`call_einsum` keeps for these arguments; nothing is computed."""
    arrays = [_as_array(operand) for operand in operands]
    options = CallOptions(database, policy, on_miss, _effort(effort))
    call = _prepared(subscripts, operands, arrays, device, options, out)
    return call.call if isinstance(call, AmortizedCall) else call


def _effort(given: Effort | None) -> Effort:
    return effort_of(given, default="amortized")


def clear_call_cache() -> None:
    """Forget all kernels of calls, so that new facts are asked for."""
    calls = remembered(_Calls)
    calls.prepared.clear()
    calls.kernels.clear()
    calls.quick.clear()


def _as_array(operand: Any) -> Any:
    if type(operand) is np.ndarray or is_device_array(operand):
        return operand
    return as_array(operand)


def _prepared(
    subscripts: str,
    operands: Sequence[Any],
    arrays: Sequence[Any],
    device: str | None,
    options: CallOptions,
    out: Any,
) -> _Call:
    place = _place(arrays, device)
    forms = tuple(map(form_of if place.is_host else _form_there, arrays))
    target = None if out is None else form_of(out)
    first = first_uses(operands)
    where = (
        place,
        _name_of(options.database),
        options.policy,
        options.on_miss,
        options.effort,
    )

    def make() -> _Call:
        reading = read_shapes(subscripts, [(f.shape, f.dtype) for f in forms], first)
        _check_form(target, reading)
        if reading.is_empty:
            return PreparedCall(reading, None, options)
        if place.is_host and target is None and (view := _view(reading, forms)):
            open_device(place.selector)  # refuses a device that is not there
            return PreparedCall(reading, None, options, view=view)
        if place.is_host:
            return _on_host(reading, arrays, forms, target, where, options)
        return _on_device(reading, arrays, where, options)

    key = (str(subscripts), forms, target, first, where)
    return remembered(_Calls).prepared.get(key, make)


def _view(reading: Reading, forms: Sequence[Form]) -> Take | None:
    """See :func:`feinsum.calling.prepared.view_of`; none of another byte order."""
    if reading.einsum.n_operands != 1 or forms[0].dtype != reading.dtype:
        return None
    return view_of(reading, reading.einsum.inputs[0], reading.einsum.output)


def _on_host(
    reading: Reading,
    arrays: Sequence[Any],
    forms: Sequence[Form],
    target: Form | None,
    where: _Where,
    options: CallOptions,
) -> _Call:
    """A call of arrays of the host, on whatever device."""
    opened, dtype = open_device(where[0].selector), reading.work_dtype
    lies = {x.name: lie_of(x, forms[x.position], dtype) for x in reading.feeds}
    into = IN_ORDER if target is None else can_write(OUTPUT, target, dtype)
    if not opened.reads_in_place:
        lies, into = dict.fromkeys(lies, COPIED), COPIED
    strides = strides_of({**lies, OUTPUT: into})
    _check_room(reading, lies, into if target is not None else COPIED)
    sharing = (where, _sizes_that_matter(reading))
    key = (reading.einsum, tuple(sorted(strides.items())), sharing)
    kernel = None
    if not (opened.reads_in_place and options.effort in MEASURING):
        kernel = _kept(
            key,
            lambda: recorded_kernel(
                reading.einsum, reading.sizes, strides, opened, options
            ),
        )
    if kernel is None and opened.reads_in_place:
        kernels = _Shared(sharing)
        call = simple_call(reading, arrays, lies, target, opened, options, kernels)
        if call is not None:
            return call
    if kernel is None:
        kernel = _kept(
            ("untransformed", untransformed_path(reading.einsum, reading.sizes), *key),
            lambda: untransformed_kernel(
                reading.einsum, reading.sizes, strides, opened
            ),
        )
        assert kernel is not None
    takes = (
        (x.position, None if lies[x.name].is_in_place else from_host(x, dtype))
        for x in reading.feeds
    )
    constants = {**reading.sizes, **values_of({**lies, OUTPUT: into})}
    caller = kernel.compiled.built.caller([*lies], constants)
    is_written = into.is_in_place and reading.dtype == dtype
    return PreparedCall(reading, kernel, options, tuple(takes), caller, is_written)


def _on_device(
    reading: Reading, arrays: Sequence[Any], where: _Where, options: CallOptions
) -> PreparedCall:
    """A call of arrays of an OpenCL device."""
    opened, dtype = device_of(arrays[0]), reading.work_dtype
    einsum, sizes = reading.einsum, reading.sizes
    kernel = _kept(
        (
            einsum,
            where,
            _sizes_that_matter(reading),
            untransformed_path(einsum, sizes),
        ),
        lambda: (
            recorded_kernel(einsum, sizes, {}, opened, options)
            or untransformed_kernel(einsum, sizes, {}, opened)
        ),
    )
    assert kernel is not None
    takes = ((x.position, from_device(x, dtype)) for x in reading.feeds)
    names = [x.name for x in reading.feeds]
    caller = kernel.compiled.built.caller(names, reading.sizes, arrays[0].queue)
    return PreparedCall(reading, kernel, options, tuple(takes), caller)


def _check_room(reading: Reading, lies: Mapping[str, Lie], into: Lie) -> None:
    """Refuse copies and a result that do not fit the memory, before all else.

    Args:
        into: whether the result is written into an array that is there.

    Raises:
        MeasurementError: if they do not.
    """
    entries = [prod(x.shape) for x in reading.feeds if not lies[x.name].is_in_place]
    if entries:
        n_bytes = sum(entries) * reading.work_dtype.itemsize
        check_room(n_bytes, "copies of operands")
    if not into.is_in_place:
        n_bytes = prod(reading.shape) * reading.work_dtype.itemsize
        check_room(n_bytes, "a result")


def _sizes_that_matter(reading: Reading) -> Hashable:
    """What calls that share a kernel have in common, beside the einsum.

    None where every intermediate that a kernel could have fits the memory; the sizes
    where one does not, for it decides on the kernel.
    """
    if all_have_room(reading.einsum, reading.sizes):
        return None
    return tuple(sorted(reading.sizes.items()))


_Make: TypeAlias = Callable[[], CallKernel | None]


def _kept(key: Hashable, make: _Make) -> CallKernel | None:
    """A kernel that calls share, for as long as one of them is kept."""
    kernels = remembered(_Calls).kernels
    kernel = kernels.get(key)
    if kernel is None:
        kernel = make()
        if kernel is not None:
            kernels[key] = kernel
    return kernel


@dataclass(frozen=True)
class _Shared:
    """The kernels of calls that are looked up in the same way."""

    where: Hashable

    def get(self, key: Hashable, /) -> CallKernel | None:
        return remembered(_Calls).kernels.get((key, self.where))

    def __setitem__(self, key: Hashable, kernel: CallKernel, /) -> None:
        remembered(_Calls).kernels[key, self.where] = kernel


class _Place(NamedTuple):
    """Where a call is computed: a context does not survive a fork."""

    process: int
    queue: int
    selector: str

    @property
    def is_host(self) -> bool:
        """The operands are on the host; any device that matches will do."""
        return not self.queue


_Where: TypeAlias = tuple[_Place, Hashable, Policy | None, OnMiss, Effort]
"""All that decides which kernel is found for an einsum."""


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
    return _Place(os.getpid(), queue.int_ptr, str(queue.device.int_ptr))


def _form_there(array: Any) -> Form:
    """That of an array of a device, which is in C's order."""
    return Form(array.shape, (), array.dtype, True)


def _name_of(database: Database) -> Hashable:
    """What tells databases apart; a store is kept by the call, so its id is its own."""
    if database is None:
        return os.environ.get(ENVIRONMENT_VARIABLE, "")
    if isinstance(database, str | os.PathLike):
        return os.fspath(database)
    return id(database)


def _check_out(out: Any) -> None:
    if not isinstance(out, np.ndarray):
        raise InvalidEinsumError(
            f"out is a {type(out).__name__}; expected a numpy array", rules=("shape",)
        )
    if not out.flags.writeable:
        raise InvalidEinsumError(
            "out is read-only; expected an array that can be written", rules=("shape",)
        )


def _check_form(out: Form | None, reading: Reading) -> None:
    if out is not None and (out.shape, out.dtype) != (reading.shape, reading.dtype):
        raise InvalidEinsumError(
            f"out has shape {out.shape} and dtype {out.dtype}, the result has "
            f"{reading.shape} and {reading.dtype}",
            rules=("shape",),
        )
