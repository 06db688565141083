"""Calls by the simplified einsum, with a recorded or else a predicted recipe."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import perf_counter, sleep
from typing import Any, Protocol

from feinsum.calling.host.prepared import PreparedCall, Take, from_host
from feinsum.calling.kernel import OUTPUT, CallKernel, recorded_kernel
from feinsum.calling.options import CallOptions
from feinsum.calling.predicted import (
    Problem,
    checked_kernel,
    predicted_kernel,
    view_as,
)
from feinsum.calling.reading import (
    Feed,
    Reading,
    first_uses,
    read_shapes,
    reading_of,
    terms_of,
)
from feinsum.calling.reading.arguments import (
    IN_ORDER,
    ArgumentLayout,
    operand_layout,
    output_layout,
    strided_layout,
    strides_of,
    values_of,
)
from feinsum.calling.reading.forms import Form, as_array, form_of
from feinsum.calling.reading.strided import StridedTerm, c_steps, simplified
from feinsum.canonical import CanonicalForm, canonicalize
from feinsum.errors import FeinsumError
from feinsum.measure import OpenDevice
from feinsum.measure.kernel import SPIN_S
from feinsum.predict import MEASURING
from feinsum.records import TransformSpec
from feinsum.select import find_fastest
from feinsum.targets.protocol import Array

logger = logging.getLogger(__name__)

Arrays = Sequence[Any]


class Kernels(Protocol):
    """Kernels shared by calls, by what they compute."""

    def get(self, key: Hashable, /) -> CallKernel | None: ...

    def __setitem__(self, key: Hashable, kernel: CallKernel, /) -> None: ...


@dataclass(frozen=True)
class Simple:
    """A reading with as few axes as possible.

    Attributes:
        strided: the memory layout of each feed's array, by name.
        output: the memory layout of the result.
    """

    reading: Reading
    strided: Mapping[str, StridedTerm]
    output: StridedTerm


def read_call(subscripts: str, *operands: Any) -> Reading:
    """The einsum that a call evaluates, as best tuned: with as few axes as possible.

    Args:
        subscripts: as for :func:`feinsum.call_einsum`.
        operands: arrays, or anything that numpy can convert to arrays; an object passed
            twice is one operand.

    Raises:
        InvalidEinsumError: as :func:`feinsum.call_einsum` does.

    >>> import numpy as np
    >>> u = np.ones((1000, 3))
    >>> reading = read_call("ei,ej->eij", u, u)
    >>> print(reading.einsum)
    {i0}{i1}, {i0}{i2} -> {i0}{i1}{i2} of (a0 a0) with a0[n0,3]:<f8
    >>> dict(reading.sizes), reading.shape
    ({'n0': 1000}, (1000, 3, 3))
    """
    arrays = [as_array(x) for x in operands]
    forms = [form_of(array) for array in arrays]
    given = [(form.shape, form.dtype) for form in forms]
    reading = read_shapes(subscripts, given, first_uses(operands))
    if reading.is_empty:
        return reading
    return _simple(reading, arrays, _layouts(reading, forms), None).reading


def _layouts(reading: Reading, forms: Sequence[Form]) -> dict[str, ArgumentLayout]:
    dtype = reading.work_dtype
    return {x.name: operand_layout(x, forms[x.position], dtype) for x in reading.feeds}


@dataclass(frozen=True)
class Site:
    """A call for operands with given memory layouts, without the operands themselves.

    Attributes:
        simple: the reading with as few axes as possible.
        form: the canonical form of its einsum.
        feeds: the feeds of the simple reading, by canonical name.
        copies: conversions of the operands that a kernel cannot read in place.
        target: the form of ``out``.
        kernels: those of other calls, to be shared.
        n_rivals: how many other recipes are built and timed, too.
    """

    reading: Reading
    simple: Simple
    form: CanonicalForm
    feeds: Mapping[str, Feed]
    copies: Mapping[int, Take]
    target: Form | None
    opened: OpenDevice
    options: CallOptions
    kernels: Kernels

    @cached_property
    def layouts(self) -> Mapping[str, ArgumentLayout]:
        """Layouts of the simple einsum's arrays and result, by canonical name."""
        strided = self.simple.strided
        layouts = {
            name: strided_layout(name, strided[x.name])
            for name, x in self.feeds.items()
        }
        return {**layouts, OUTPUT: strided_layout(OUTPUT, self.simple.output)}

    @cached_property
    def key(self) -> Hashable:
        """Equal for all calls that can share a kernel."""
        return "simple", self.form.text, tuple(sorted(strides_of(self.layouts).items()))

    @property
    def sizes(self) -> Mapping[str, int]:
        names = self.form.relabeling.size_params
        return {names[name]: n for name, n in self.simple.reading.sizes.items()}

    def problem(self, arrays: Sequence[Any]) -> Problem:
        """The simple einsum in canonical names, with the operands of the call."""
        held = {
            position: take(arrays[position]) for position, take in self.copies.items()
        }
        strided = self.simple.strided
        given = {
            name: view_as(held.get(x.position, arrays[x.position]), strided[x.name])
            for name, x in self.feeds.items()
        }
        return Problem(
            self.form.einsum,
            self.sizes,
            strides_of(self.layouts),
            given,
            values_of(self.layouts),
        )

    def prepared(self, kernel: CallKernel) -> PreparedCall:
        """The call with a kernel, which other calls may share."""
        self.kernels[self.key] = kernel
        built, reading = kernel.compiled.built, self.reading
        is_program = not built.n_launches
        takes = tuple(
            (
                feed.position,
                _take(
                    self.copies.get(feed.position),
                    self.simple.strided[feed.name],
                    is_program,
                ),
            )
            for feed in self.feeds.values()
        )
        is_in_place = _into(reading, self.target).is_in_place
        constants = {**self.sizes, **values_of(self.layouts)}
        return PreparedCall(
            reading,
            kernel,
            self.options,
            takes,
            built.caller([*self.feeds], constants),
            is_in_place and reading.dtype == reading.work_dtype,
            _take(None, self.simple.output, is_program),
            names=(*self.feeds,),
            constants=constants,
        )

    def with_recipe(self, spec: TransformSpec, arrays: Sequence[Any]) -> PreparedCall:
        """The call with another recipe, if that is correct for these operands.

        Raises:
            FeinsumError: if it cannot be built, or is wrong.
        """
        return self.prepared(checked_kernel(spec, self.problem(arrays), self.opened))


def simple_call(
    reading: Reading,
    arrays: Sequence[Any],
    layouts: Mapping[str, ArgumentLayout],
    target: Form | None,
    opened: OpenDevice,
    options: CallOptions,
    kernels: Kernels,
    n_rivals: int = 0,
) -> PreparedCall | None:
    """The call with a recorded or predicted recipe; None if none works.

    Args:
        arrays: the operands of the call.
        layouts: of the arrays of the reading.
        target: the form of ``out``.
        kernels: those of other calls, to be shared.
        n_rivals: how many other recipes are built and timed, too.
    """
    simple = _simple(reading, arrays, layouts, target)
    form = canonicalize(simple.reading.einsum)
    names = form.relabeling.operands
    feeds = {names[feed.name]: feed for feed in simple.reading.feeds}
    copies = _copies(reading, layouts)
    site = Site(reading, simple, form, feeds, copies, target, opened, options, kernels)
    known = kernels.get(site.key) or _recorded(site)
    if known is not None:
        return site.prepared(known)
    if options.effort == "recorded":
        return None
    found = predicted_kernel(site.problem(arrays), opened)
    if found is None:
        return None
    kernel, rivals = found
    call = site.prepared(kernel)
    if n_rivals == 0:
        return call
    return _fastest(call, _diverse(kernel, rivals)[:n_rivals], site, arrays)


def _fastest(
    call: PreparedCall, rivals: Sequence[TransformSpec], site: Site, arrays: Arrays
) -> PreparedCall:
    """The fastest of a call and others like it with other recipes."""
    calls = [call]
    for spec in rivals:
        try:
            calls.append(site.with_recipe(spec, arrays))
        except FeinsumError as error:
            logger.warning("skipped the predicted recipe %s: %s", spec, error)
        except Exception:  # no recipe may break a call
            logger.exception("skipped the predicted recipe %s", spec)
    runs = [partial(_time, one, arrays) for one in calls]
    return calls[find_fastest(runs)]


def _time(call: PreparedCall, arrays: Arrays) -> float:
    """The seconds of a call, as its user sees it."""
    start_s = perf_counter()
    call.run(arrays)
    elapsed_s = perf_counter() - start_s
    if call.kernel is not None and call.kernel.compiled.built.n_launches == 0:
        sleep(SPIN_S)  # the threads of a library go on looking for work
    return elapsed_s


def _diverse(kernel: CallKernel, specs: Sequence[TransformSpec]) -> list[TransformSpec]:
    """The best of each family first: where costs are wrong, they are for a family."""
    assert kernel.spec is not None
    best = {kernel.spec.name: kernel.spec}
    for spec in specs:
        best.setdefault(spec.name, spec)
    first = [*best.values()][1:]
    return [*first, *(spec for spec in specs if spec not in first)]


def _recorded(site: Site) -> CallKernel | None:
    """The einsum that was given is missed, if one is; unless this one is measured."""
    options = site.options
    if options.effort not in MEASURING:
        options = replace(options, on_miss="return")
    strides = strides_of(site.layouts)
    return recorded_kernel(site.form.einsum, site.sizes, strides, site.opened, options)


def _simple(
    reading: Reading,
    arrays: Sequence[Any],
    layouts: Mapping[str, ArgumentLayout],
    target: Form | None,
) -> Simple:
    numbers, terms = terms_of(reading)
    placed = [
        _placed(term, reading.feeds[k], layouts, arrays)
        for k, term in zip(numbers, terms, strict=True)
    ]
    result = StridedTerm(reading.einsum.output, reading.shape, c_steps(reading.shape))
    if target is not None and _into(reading, target).is_in_place:
        steps = tuple(step // target.dtype.itemsize for step in target.strides)
        result = replace(result, steps=steps)
    inputs, output = simplified(placed, result)
    positions = [reading.feeds[k].position for k in numbers]
    simple = reading_of(reading, positions, inputs, output)
    (row,) = simple.einsum.rows
    strided = {operand.name: x for operand, x in zip(row, inputs, strict=True)}
    return Simple(simple, strided, output)


def _into(reading: Reading, target: Form | None) -> ArgumentLayout:
    return (
        IN_ORDER
        if target is None
        else output_layout(OUTPUT, target, reading.work_dtype)
    )


def _copies(reading: Reading, layouts: Mapping[str, ArgumentLayout]) -> dict[int, Take]:
    """Conversions of the operands that a kernel cannot read in place."""
    return {
        feed.position: from_host(feed, reading.work_dtype)
        for feed in reading.feeds
        if not layouts[feed.name].is_in_place
    }


def _placed(
    term: tuple[str, ...],
    feed: Feed,
    layouts: Mapping[str, ArgumentLayout],
    arrays: Sequence[Any],
) -> StridedTerm:
    """How the array that a kernel reads lies; copies are in C order."""
    if not layouts[feed.name].is_in_place:
        return StridedTerm(term, feed.shape, c_steps(feed.shape))
    array = arrays[feed.position]
    steps = iter(
        step // array.itemsize
        for step, extent in zip(array.strides, array.shape, strict=True)
        if extent != 1
    )
    own = tuple(1 if extent == 1 else next(steps) for extent in feed.shape)
    return StridedTerm(term, feed.shape, own)


def _take(copy: Take | None, strided: StridedTerm, is_program: bool) -> Take | None:
    """The conversion of an argument; a kernel takes its address only."""
    if not is_program:
        return copy

    def take(array: Array) -> Array:
        return view_as(array if copy is None else copy(array), strided)

    return take
