"""How a call is computed: as a view, by the simplified einsum, or by the given one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from feinsum.calling.host.prepared import (
    PreparedCall,
    Take,
    from_device,
    from_host,
    view_of,
)
from feinsum.calling.host.simple import simple_call
from feinsum.calling.kernel import (
    OUTPUT,
    CallKernel,
    recorded_kernel,
    sizes_that_matter,
    untransformed_kernel,
    untransformed_path,
)
from feinsum.calling.kernel_cache import SharedKernels, cached_kernel
from feinsum.calling.options import CallOptions
from feinsum.calling.place import Where
from feinsum.calling.reading import Reading
from feinsum.calling.reading.arguments import (
    COPIED,
    IN_ORDER,
    ArgumentLayout,
    operand_layout,
    output_layout,
    strides_of,
    values_of,
)
from feinsum.calling.reading.forms import Form
from feinsum.measure import open_device
from feinsum.predict import MEASURING
from feinsum.result_memory import check_room
from feinsum.targets.opencl.device import device_of


def build_call(
    reading: Reading,
    arrays: Sequence[Any],
    forms: Sequence[Form],
    target: Form | None,
    where: Where,
    options: CallOptions,
    n_rivals: int = 0,
) -> PreparedCall:
    """A call together with what computes it.

    Args:
        arrays: the operands, with the given forms.
        target: the form of ``out``.
        n_rivals: recipes, next to the one that is predicted to be the fastest, that are
            built and timed.
    """
    place = where[0]
    is_view = place.is_host and target is None
    if is_view and (view := view_call(reading)):
        open_device(place.selector)  # refuses a device that is not there
        return PreparedCall(reading, None, options, view=view)
    if reading.is_empty:
        return PreparedCall(reading, None, options)
    if not place.is_host:
        return device_call(reading, arrays, where, options)
    return host_call(reading, arrays, forms, target, where, options, n_rivals)


def view_call(reading: Reading) -> Take | None:
    """See :func:`feinsum.calling.host.prepared.view_of`."""
    if reading.einsum.n_operands != 1:
        return None
    return view_of(reading, reading.einsum.inputs[0], reading.einsum.output)


def host_call(
    reading: Reading,
    arrays: Sequence[Any],
    forms: Sequence[Form],
    target: Form | None,
    where: Where,
    options: CallOptions,
    n_rivals: int,
) -> PreparedCall:
    """A call of host arrays, on any device."""
    opened, dtype = open_device(where[0].selector), reading.work_dtype
    layouts = {
        x.name: operand_layout(x, forms[x.position], dtype) for x in reading.feeds
    }
    into = IN_ORDER if target is None else output_layout(OUTPUT, target, dtype)
    if not opened.reads_in_place:
        layouts, into = dict.fromkeys(layouts, COPIED), COPIED
    _check_room(reading, layouts, into if target is not None else COPIED)
    einsum, sizes = reading.einsum, reading.sizes
    strides = strides_of({**layouts, OUTPUT: into})
    sharing = (where, sizes_that_matter(einsum, sizes))
    key = (einsum, tuple(sorted(strides.items())), sharing)
    kernel = None
    # otherwise simple_call tunes the simplified einsum, whose facts more calls share
    if not (opened.reads_in_place and options.effort in MEASURING):
        kernel = cached_kernel(
            key, lambda: recorded_kernel(einsum, sizes, strides, opened, options)
        )
    if kernel is None and opened.reads_in_place:
        kernels = SharedKernels(sharing)
        call = simple_call(
            reading, arrays, layouts, target, opened, options, kernels, n_rivals
        )
        if call is not None:
            return call
    if kernel is None:
        kernel = cached_kernel(
            # the path depends on sizes, which are not in the einsum of the key
            ("untransformed", untransformed_path(einsum, sizes), *key),
            lambda: untransformed_kernel(einsum, sizes, strides, opened),
        )
        assert kernel is not None
    return _with_kernel(reading, kernel, layouts, into, options)


def _with_kernel(
    reading: Reading,
    kernel: CallKernel,
    layouts: Mapping[str, ArgumentLayout],
    into: ArgumentLayout,
    options: CallOptions,
) -> PreparedCall:
    """A call with a kernel of the einsum as it was given."""
    dtype = reading.work_dtype
    takes = (
        (x.position, None if layouts[x.name].is_in_place else from_host(x, dtype))
        for x in reading.feeds
    )
    constants = {**reading.sizes, **values_of({**layouts, OUTPUT: into})}
    caller = kernel.compiled.built.caller([*layouts], constants)
    is_written = into.is_in_place and reading.dtype == dtype
    return PreparedCall(
        reading,
        kernel,
        options,
        tuple(takes),
        caller,
        is_written,
        names=(*layouts,),
        constants=constants,
    )


def device_call(
    reading: Reading, arrays: Sequence[Any], where: Where, options: CallOptions
) -> PreparedCall:
    """A call of arrays on an OpenCL device."""
    opened, dtype = device_of(arrays[0]), reading.work_dtype
    einsum, sizes = reading.einsum, reading.sizes
    kernel = cached_kernel(
        (
            einsum,
            where,
            sizes_that_matter(einsum, sizes),
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


def _check_room(
    reading: Reading, layouts: Mapping[str, ArgumentLayout], into: ArgumentLayout
) -> None:
    """First, refuse copies and a result that do not fit into memory.

    Args:
        into: whether the result is written into an array that is there.

    Raises:
        MeasurementError: if they do not.
    """
    entries = [prod(x.shape) for x in reading.feeds if not layouts[x.name].is_in_place]
    if entries:
        n_bytes = sum(entries) * reading.work_dtype.itemsize
        check_room(n_bytes, "copies of operands")
    if not into.is_in_place:
        n_bytes = prod(reading.shape) * reading.work_dtype.itemsize
        check_room(n_bytes, "a result")
