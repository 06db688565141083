"""Calls by the simplest einsum that computes them: recorded, or else predicted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feinsum.calling.arguments import (
    IN_ORDER,
    Form,
    Lie,
    as_array,
    can_write,
    form_of,
    lie_at,
    lie_of,
    strides_of,
    values_of,
)
from feinsum.calling.kernel import OUTPUT, CallKernel, CallOptions, recorded_kernel
from feinsum.calling.lying import Lying, c_steps, simplified
from feinsum.calling.predicted import Problem, predicted_kernel, seen_as
from feinsum.calling.prepared import PreparedCall, Take, from_host
from feinsum.calling.reading import (
    Feed,
    Reading,
    first_uses,
    read_shapes,
    reading_of,
    terms_of,
)
from feinsum.canonical import canonicalize
from feinsum.measure import OpenDevice
from feinsum.targets.protocol import Array

__all__ = ["read_call", "simple_call"]

Keep = Callable[[Hashable, Callable[[], CallKernel | None]], CallKernel | None]
"""A kernel by its key, made where none is kept."""


@dataclass(frozen=True)
class Simple:
    """A reading in as few axes as can be.

    Attributes:
        lying: how the array of each feed lies, by its name.
        output: how the result lies.
    """

    reading: Reading
    lying: Mapping[str, Lying]
    output: Lying


def read_call(subscripts: str, *operands: Any) -> Reading:
    """The einsum that a call evaluates, as it is best tuned: in as few axes as can be.

    Args:
        subscripts: as for :func:`feinsum.call_einsum`.
        operands: arrays, or what numpy takes for arrays; one object given twice
            is one operand.

    Raises:
        InvalidEinsumError: as :func:`feinsum.call_einsum` does.

    >>> import numpy as np
    >>> u = np.ones((1000, 3))
    >>> reading = read_call("ei,ej->eij", u, u)
    >>> print(reading.einsum)
    i0 i1, i0 i2 -> i0 i1 i2 of (a0 a0) with a0[n0,3]:<f8
    >>> dict(reading.sizes), reading.shape
    ({'n0': 1000}, (1000, 3, 3))
    """
    arrays = [as_array(x) for x in operands]
    forms = [form_of(array) for array in arrays]
    given = [(form.shape, form.dtype) for form in forms]
    reading = read_shapes(subscripts, given, first_uses(operands))
    if reading.is_empty:
        return reading
    return _simple(reading, arrays, _lies(reading, forms), None).reading


def _lies(reading: Reading, forms: Sequence[Form]) -> dict[str, Lie]:
    dtype = reading.work_dtype
    return {x.name: lie_of(x, forms[x.position], dtype) for x in reading.feeds}


def simple_call(
    reading: Reading,
    arrays: Sequence[Any],
    lies: Mapping[str, Lie],
    target: Form | None,
    opened: OpenDevice,
    options: CallOptions,
    keep: Keep,
) -> PreparedCall | None:
    """The call with a recorded or a predicted recipe; None if there is none that works.

    Args:
        arrays: the operands of the call.
        lies: of the arrays that the reading speaks of.
        target: the form of ``out``.
    """
    simple = _simple(reading, arrays, lies, target)
    form = canonicalize(simple.reading.einsum)
    names = form.relabeling.operands
    feeds = {names[feed.name]: feed for feed in simple.reading.feeds}
    copies = _copies(reading, lies)
    problem = _problem(simple, feeds, arrays, copies)
    quiet = replace(options, on_miss="return")  # the einsum that was given is missed

    def make() -> CallKernel | None:
        einsum, strides = problem.einsum, problem.strides
        known = recorded_kernel(einsum, problem.sizes, strides, opened, quiet)
        return known or predicted_kernel(problem, opened)

    kernel = keep(("simple", form.text, tuple(sorted(problem.strides.items()))), make)
    if kernel is None:
        return None
    built = kernel.compiled.built
    is_program = not built.n_launches
    takes = tuple(
        (
            feed.position,
            _take(copies.get(feed.position), simple.lying[feed.name], is_program),
        )
        for feed in feeds.values()
    )
    return PreparedCall(
        reading,
        kernel,
        options,
        takes,
        built.caller([*feeds], {**problem.sizes, **problem.steps}),
        _into(reading, target).is_in_place and reading.dtype == reading.work_dtype,
        _take(None, simple.output, is_program),
    )


def _simple(
    reading: Reading,
    arrays: Sequence[Any],
    lies: Mapping[str, Lie],
    target: Form | None,
) -> Simple:
    numbers, terms = terms_of(reading)
    placed = [
        _placed(term, reading.feeds[k], lies, arrays)
        for k, term in zip(numbers, terms, strict=True)
    ]
    result = Lying(reading.einsum.output, reading.shape, c_steps(reading.shape))
    if target is not None and _into(reading, target).is_in_place:
        steps = tuple(step // target.dtype.itemsize for step in target.strides)
        result = replace(result, steps=steps)
    inputs, output = simplified(placed, result)
    positions = [reading.feeds[k].position for k in numbers]
    simple = reading_of(reading, positions, inputs, output)
    (row,) = simple.einsum.rows
    lying = {operand.name: x for operand, x in zip(row, inputs, strict=True)}
    return Simple(simple, lying, output)


def _into(reading: Reading, target: Form | None) -> Lie:
    return IN_ORDER if target is None else can_write(OUTPUT, target, reading.work_dtype)


def _copies(reading: Reading, lies: Mapping[str, Lie]) -> dict[int, Take]:
    """What is made of the operands that a kernel cannot read where they are."""
    return {
        feed.position: from_host(feed, reading.work_dtype)
        for feed in reading.feeds
        if not lies[feed.name].is_in_place
    }


def _problem(
    simple: Simple,
    feeds: Mapping[str, Feed],
    arrays: Sequence[Any],
    copies: Mapping[int, Take],
) -> Problem:
    """The simple einsum in canonical names, with the operands of the call.

    Args:
        feeds: by their canonical names.
    """
    form = canonicalize(simple.reading.einsum)
    sizes = form.relabeling.size_params
    lies = {name: lie_at(name, simple.lying[x.name]) for name, x in feeds.items()}
    lies[OUTPUT] = lie_at(OUTPUT, simple.output)
    held = {position: take(arrays[position]) for position, take in copies.items()}
    given = {
        name: seen_as(held.get(x.position, arrays[x.position]), simple.lying[x.name])
        for name, x in feeds.items()
    }
    return Problem(
        form.einsum,
        {sizes[name]: n for name, n in simple.reading.sizes.items()},
        strides_of(lies),
        given,
        values_of(lies),
    )


def _placed(
    term: tuple[str, ...], feed: Feed, lies: Mapping[str, Lie], arrays: Sequence[Any]
) -> Lying:
    """How the array that a kernel reads lies; copies are in C's order."""
    if not lies[feed.name].is_in_place:
        return Lying(term, feed.shape, c_steps(feed.shape))
    array = arrays[feed.position]
    steps = iter(
        step // array.itemsize
        for step, extent in zip(array.strides, array.shape, strict=True)
        if extent != 1
    )
    own = tuple(1 if extent == 1 else next(steps) for extent in feed.shape)
    return Lying(term, feed.shape, own)


def _take(copy: Take | None, lying: Lying, is_program: bool) -> Take | None:
    """What is made of an argument; a kernel wants its address alone."""
    if not is_program:
        return copy

    def take(array: Array) -> Array:
        return seen_as(array if copy is None else copy(array), lying)

    return take
