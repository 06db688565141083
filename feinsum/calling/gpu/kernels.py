"""Kernels for calls on a GPU: the recorded one, or those predicted for few families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from constantdict import constantdict

from feinsum.calling.faults import is_faulty
from feinsum.calling.gpu.contenders import Contender
from feinsum.calling.gpu.prepared import KernelCall
from feinsum.calling.gpu.site import Site
from feinsum.calling.kernel import CallKernel, recorded_kernel, sizes_that_matter
from feinsum.calling.kernel_cache import cached_kernel
from feinsum.calling.predicted import (
    N_TRIED,
    Problem,
    predicted_families,
    predicted_kernel,
)
from feinsum.calling.reading import Reading, reading_of, terms_of
from feinsum.calling.reading.strided import StridedTerm, c_steps, simplified
from feinsum.ir import with_extents
from feinsum.transforms.ranking import Costed

N_FAMILIES = 3
"""Families whose best recipes are timed."""


def kernel_contenders(reading: Reading, site: Site) -> Iterator[Contender]:
    """What is recorded, or the best recipes that are predicted of some families."""
    opened, einsum, sizes = site.opened, reading.einsum, reading.sizes
    recorded = cached_kernel(
        (einsum, sizes_that_matter(einsum, sizes), site.where),
        lambda: recorded_kernel(einsum, sizes, {}, opened, site.options),
    )
    if recorded is not None:
        call = _with_kernel(reading, site, recorded)
        yield Contender("kernel", 0.0, lambda: call, is_proven=True)
    if recorded is not None or site.options.effort == "recorded":
        return
    merged = _with_fixed_end(_merged(reading))
    problem = Problem(merged.einsum, merged.sizes, strides={}, given={}, steps={})
    for family in predicted_families(problem, opened)[:N_FAMILIES]:
        make = partial(_predicted, merged, site, problem, family)
        yield Contender("kernel", family[0].seconds, make)


def _merged(reading: Reading) -> Reading:
    """The einsum with indices as one that stand side by side in all arrays.

    Fewer divisions find the place of an entry. Arrays are in C's order.
    """
    numbers, terms = terms_of(reading)
    feeds = [reading.feeds[k] for k in numbers]
    inputs = [
        StridedTerm(term, feed.shape, c_steps(feed.shape))
        for term, feed in zip(terms, feeds, strict=True)
    ]
    shape = reading.shape
    output = StridedTerm(reading.einsum.output, shape, c_steps(shape))
    positions = [feed.position for feed in feeds]
    return reading_of(reading, positions, *simplified(inputs, output))


def _with_fixed_end(reading: Reading) -> Reading:
    """With the extent of the result's last index in the kernel, if others are there.

    Families put indices whose extents they do not know before all others, and then
    work-items side by side would write entries far apart.
    """
    extents, output = dict(reading.einsum.extents), reading.einsum.output
    has_fixed = any(isinstance(extents[index], int) for index in output)
    last = extents[output[-1]] if output else 0
    if not has_fixed or isinstance(last, int):
        return reading
    extents[output[-1]] = reading.sizes[last.name]
    einsum = with_extents(reading.einsum, extents)
    left = {x.name: reading.sizes[x.name] for x in einsum.size_params}
    return replace(reading, einsum=einsum, sizes=constantdict(left))


def _with_kernel(reading: Reading, site: Site, kernel: CallKernel) -> KernelCall:
    session = site.opened.session
    arrays = [site.arrays[feed.position] for feed in reading.feeds]
    is_plain = reading.dtype == reading.work_dtype and all(
        session.is_packed(array) and array.dtype == reading.dtype for array in arrays
    )
    return KernelCall(reading, site.opened, kernel, is_plain)


def _magnitudes(reading: Reading) -> tuple[int, ...]:
    """Sizes for which one recipe does: small products take other ones than large."""
    return tuple(n.bit_length() for n in reading.sizes.values())


def _predicted(
    reading: Reading, site: Site, problem: Problem, family: Sequence[Costed]
) -> KernelCall | None:
    """With the first one of these recipes that is correct and spills little."""
    einsum, opened = problem.einsum, site.opened

    def make() -> CallKernel | None:
        usable = (x for x in family if not is_faulty(einsum, x.spec, opened))
        tried = [*islice(usable, N_TRIED)]
        found = predicted_kernel(problem, opened, _check_figures, tried)
        return None if found is None else found[0]

    key = reading.einsum, _magnitudes(reading), family[0].spec.name, site.where
    kernel = cached_kernel(key, make)
    return None if kernel is None else _with_kernel(reading, site, kernel)


def _check_figures(kernel: CallKernel) -> None:
    kernel.compiled.built.check_figures()
