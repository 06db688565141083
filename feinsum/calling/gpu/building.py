"""How a call on a GPU is built: contenders are timed, and the fastest is kept."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from constantdict import constantdict

from feinsum.calling.faults import is_faulty, note_fault
from feinsum.calling.gpu.flat import FlatCall, flattened
from feinsum.calling.gpu.prepared import (
    LETTERS,
    CopyCall,
    GpuCall,
    KernelCall,
    LibraryCall,
    ProductCall,
    StepsCall,
    ViewCall,
    ZerosCall,
    blas_dtype,
    result_bytes,
    shaped,
)
from feinsum.calling.gpu.products import Product
from feinsum.calling.gpu.steps import (
    Contraction,
    Plan,
    Step,
    as_operands,
    plans,
    step_of,
)
from feinsum.calling.kernel import (
    CallKernel,
    recorded_kernel,
    sizes_that_matter,
    untransformed_path,
)
from feinsum.calling.kernel_cache import cached_kernel
from feinsum.calling.options import CallOptions
from feinsum.calling.place import name_of
from feinsum.calling.predicted import (
    N_TRIED,
    Problem,
    predicted_families,
    predicted_kernel,
)
from feinsum.calling.reading import (
    Reading,
    first_uses,
    read_shapes,
    reading_of,
    terms_of,
)
from feinsum.calling.reading.strided import StridedTerm, c_steps, simplified
from feinsum.errors import (
    BuildError,
    DeviceLostError,
    FeinsumError,
)
from feinsum.ir import IndexList, with_extents
from feinsum.predict import machine_of
from feinsum.targets.cuda import CudaDevice
from feinsum.transforms.cost import Gpu
from feinsum.transforms.ranking import Costed

__all__ = ["Site", "build", "library_call", "read", "view_call"]

logger = logging.getLogger(__name__)

PLAUSIBLE = 2.5
"""Predicted slow-down at which a contender may prove the fastest."""
N_PLANS = 2
"""Paths that are timed, if the second is not expected to take much longer."""
CLOSE = 1.3
LIBRARY_SHARE = 2.0
"""Time of CuPy's einsum, as a multiple of what the operation takes at best."""
N_FAMILIES = 3
"""Families whose best recipes are timed."""
N_TIMED = 5
"""Runs of each contender; the fastest counts."""


class Site(NamedTuple):
    """The arguments for which a call is built; the arrays are not kept.

    Attributes:
        stream: on which the arrays are ready; contenders are timed there.
        is_exact: whether the result is to lie in C's order.
    """

    arrays: Sequence[Any]
    stream: Any
    opened: CudaDevice
    options: CallOptions
    is_exact: bool = False

    def part(self, *arrays: Any, is_exact: bool = True) -> Site:
        """For a part of the call, of which nobody expects a record."""
        options = replace(self.options, on_miss="return")
        return self._replace(arrays=arrays, options=options, is_exact=is_exact)

    @property
    def where(self) -> Hashable:
        """All but the einsum that decides which kernel is found."""
        options = self.options
        return (
            self.opened, os.getpid(), name_of(options.database),
            options.policy, options.on_miss, options.effort,
        )  # fmt: skip

    @property
    def gpu(self) -> Gpu:
        gpu = machine_of(self.opened.device).gpu
        assert gpu is not None
        return gpu


def read(text: str, arrays: Sequence[Any], first: Sequence[int]) -> Reading:
    given = [(tuple(array.shape), np.dtype(array.dtype)) for array in arrays]
    return read_shapes(text, given, first)


class _Contender(NamedTuple):
    """A way to compute an einsum.

    Attributes:
        kind: names it in messages.
        seconds: the predicted time.
        make: None if it does not work.
        is_proven: whether it is timed whatever is predicted.
    """

    kind: str
    seconds: float
    make: Callable[[], GpuCall | None]
    is_proven: bool = False


def build(reading: Reading, site: Site) -> GpuCall:
    """The fastest known call.

    Raises:
        BuildError: if nothing computes it.
        DeviceLostError: if a contender cost this process the GPU.
        MeasurementError: if there is no memory for the result.
    """
    opened = site.opened
    if reading.is_empty:
        return ZerosCall(reading, opened)
    view = view_call(reading, opened)
    if view is not None:
        return view
    opened.check_room(result_bytes(reading), "a result")
    found = [*_contenders(reading, site)]
    limit = PLAUSIBLE * min((x.seconds for x in found if not x.is_proven), default=0.0)
    made = [_made(one) for one in found if one.is_proven or one.seconds <= limit]
    calls = [flattened(x, opened, site.arrays) for x in made if x is not None]
    return _fastest(calls or [_required(library_call(reading, opened), reading)], site)


def _made(one: _Contender) -> GpuCall | None:
    """None if it does not work, such as with too large an intermediate result."""
    try:
        return one.make()
    except DeviceLostError:
        raise
    except FeinsumError as error:
        logger.warning("%s was skipped: %s", one.kind, error)
        return None


def _contenders(reading: Reading, site: Site) -> Iterator[_Contender]:
    """The ways to compute an einsum."""
    problem = _contraction(reading, site)
    if len(problem.terms) == 2 and reading.work_dtype.kind in "fc":
        yield from _products(reading, site, problem)
    for plan in _plans(reading, site, problem):
        make = partial(_steps, reading, site, plan)
        yield _Contender("steps", plan.seconds, make)
    if reading.work_dtype.kind in "iuf":
        yield from _kernels(reading, site)
    library = library_call(reading, site.opened)
    if library is not None and len(problem.terms) <= 2:
        seconds, _ = step_of(problem, problem.values, problem.output)
        yield _Contender("library", LIBRARY_SHARE * seconds, lambda: library)


def _products(
    reading: Reading, site: Site, problem: Contraction
) -> Iterator[_Contender]:
    """By BLAS as it is expected to be the fastest; also whole, if that is in parts."""
    is_half = reading.dtype == np.float16  # in which no partial sums are kept
    for is_whole in (True,) if is_half else (False, True):
        how = {"is_free": not site.is_exact, "is_whole": is_whole}
        seconds, product = step_of(problem, problem.values, problem.output, **how)
        if product is None:
            return
        make = partial(_product, reading, site, product)
        yield _Contender("product", seconds, make)
        if product.n_parts == 1:
            return


def _plans(reading: Reading, site: Site, problem: Contraction) -> Iterator[Plan]:
    """Paths, and the result in the order of the operands, which is then a view."""
    n_operands = len(problem.terms)
    path = untransformed_path(reading.einsum, reading.sizes)
    found = plans(problem, path or (tuple(range(n_operands)),))[:N_PLANS]
    yield from (plan for plan in found if plan.seconds <= CLOSE * found[0].seconds)
    order = as_operands(problem)
    if order != problem.output and not site.is_exact:
        seconds, _ = step_of(problem, problem.values, order)
        every = Step(tuple(range(n_operands)), order)
        yield Plan(seconds, (every, Step((0,), problem.output)))


def _fastest(calls: Sequence[GpuCall], site: Site) -> GpuCall:
    """The call that takes the least time with these arrays."""
    if len(calls) == 1:
        return calls[0]
    return min(calls, key=lambda call: _seconds(call, site))


def _seconds(call: GpuCall, site: Site) -> float:
    """Of the GPU, or of the host if that takes longer."""

    def run() -> None:
        start = perf_counter()
        call(site.arrays, site.stream)
        on_host.append(perf_counter() - start)

    on_host: list[float] = []
    try:
        run()
        timed = site.opened.session.timed
        on_gpu = min(timed(run, site.stream) for _ in range(N_TIMED))
    except DeviceLostError:
        _note_faults(call, site)
        raise
    except FeinsumError as error:
        logger.warning("%r was skipped: %s", call, error)
        return float("inf")
    logger.debug("%r takes %.3g s, the host %.3g s", call, on_gpu, min(on_host))
    return max(on_gpu, min(on_host))


def _note_faults(call: GpuCall, site: Site) -> None:
    """Leave out its predicted recipes from now on, one of which is to blame."""
    for one in _kernels_of(call):
        if one.kernel.spec is not None:
            note_fault(one.reading.einsum, one.kernel.spec, site.opened)


def _kernels_of(call: GpuCall | None) -> Iterator[KernelCall]:
    if isinstance(call, FlatCall):
        call = call.origin
    if isinstance(call, KernelCall):
        yield call
    parts: Iterable[GpuCall | None] = ()
    if isinstance(call, StepsCall):
        parts = (step for _, step in call.steps)
    elif isinstance(call, ProductCall):
        parts = (*call.copies, call.added)
    for part in parts:
        yield from _kernels_of(part)


def view_call(reading: Reading, opened: CudaDevice) -> ViewCall | None:
    """None if entries are added, or there are several operands."""
    term, output = reading.einsum.inputs[0], reading.einsum.output
    if len(reading.einsum.inputs) > 1 or {*term} != {*output}:
        return None
    return ViewCall(reading, opened)


def library_call(reading: Reading, opened: CudaDevice) -> LibraryCall | None:
    """None if the notation of the library has too few letters."""
    is_short = len(reading.einsum.indices) <= len(LETTERS)
    is_needed = is_short and not reading.is_empty
    return LibraryCall(reading, opened) if is_needed else None


def _required(library: GpuCall | None, reading: Reading) -> GpuCall:
    """The call of a library, where there is no other one."""
    if library is None:
        raise BuildError(
            f"nothing computes {reading.einsum.subscripts} on a GPU: libraries take at "
            f"most {len(LETTERS)} indices, and no family for GPUs fits; copy the "
            "operands to the host"
        )
    return library


def _contraction(reading: Reading, site: Site) -> Contraction:
    numbers, terms = terms_of(reading)
    feeds = shaped(reading, site.arrays, blas_dtype(reading), site.opened.session)
    strides = [
        tuple(stride // feed.itemsize for stride in feed.strides) for feed in feeds
    ]
    sizes = {
        index: extent if isinstance(extent, int) else reading.sizes[extent.name]
        for index, extent in reading.einsum.extents.items()
    }
    return Contraction(
        tuple(terms),
        reading.einsum.output,
        sizes,
        tuple(strides[k] for k in numbers),
        blas_dtype(reading).itemsize,
        site.gpu,
    )


def _product(reading: Reading, site: Site, product: Product) -> ProductCall:
    """The call of BLAS, with the quickest copies that it needs."""
    numbers, terms = terms_of(reading)
    feeds = shaped(reading, site.arrays, blas_dtype(reading), site.opened.session)
    copies = (
        None if order is None else _copy(term, order, feeds[k], site)
        for k, term, order in zip(numbers, terms, product.orders, strict=True)
    )
    return ProductCall(
        reading, site.opened, product, tuple(copies), _added(reading, site, product)
    )


def _added(reading: Reading, site: Site, product: Product) -> GpuCall | None:
    """How partial results are added up."""
    if product.n_parts == 1:
        return None
    shape, session = (product.n_parts, product.n_results), site.opened.session
    parts = session.empty(shape, blas_dtype(reading))
    session.clear(parts, site.stream)
    return build(read("ij->j", [parts], (0,)), site.part(parts))


def _copy(term: IndexList, order: IndexList, array: Any, site: Site) -> GpuCall:
    """How an array is copied with its indices in another order."""
    reading = read(_in_words([term], order), [array], (0,))
    here = site.part(array)
    calls: list[GpuCall | None] = [CopyCall(reading, site.opened)]
    is_packed = array.ndim > 1 and site.opened.session.is_packed(array)
    if is_packed and reading.work_dtype.kind in "iuf":
        calls += [one.make() for one in _kernels(reading, here)]
    return _fastest([call for call in calls if call is not None], here)


def _steps(reading: Reading, site: Site, plan: Plan) -> StepsCall:
    """The call of a plan, whose steps are built with what those before them give."""
    numbers, terms = terms_of(reading)
    feeds = shaped(reading, site.arrays, reading.work_dtype, site.opened.session)
    values = [(term, feeds[k]) for k, term in zip(numbers, terms, strict=True)]
    steps = []
    for taken, output in plan.steps:
        chosen = [values[k] for k in taken]
        values = [value for k, value in enumerate(values) if k not in taken]
        arrays = [array for _, array in chosen]
        text = _in_words([term for term, _ in chosen], output)
        given = read(text, arrays, first_uses(arrays))
        # the plan counts on C order for all results but the last
        is_exact = site.is_exact or bool(values)
        call = build(given, site.part(*arrays, is_exact=is_exact))
        steps.append((taken, call))
        values.append((output, call(arrays, site.stream)))
    return StepsCall(reading, site.opened, tuple(steps))


def _in_words(terms: Sequence[IndexList], output: IndexList) -> str:
    """The notation of any number of indices, by their names."""
    return f"{', '.join(map(' '.join, terms))} -> {' '.join(output)}"


def _kernels(reading: Reading, site: Site) -> Iterator[_Contender]:
    """What is recorded, or the best recipes that are predicted of some families."""
    opened, einsum, sizes = site.opened, reading.einsum, reading.sizes
    recorded = cached_kernel(
        (einsum, sizes_that_matter(einsum, sizes), site.where),
        lambda: recorded_kernel(einsum, sizes, {}, opened, site.options),
    )
    if recorded is not None:
        call = _with_kernel(reading, site, recorded)
        yield _Contender("kernel", 0.0, lambda: call, is_proven=True)
    if recorded is not None or site.options.effort == "recorded":
        return
    merged = _with_fixed_end(_merged(reading))
    problem = Problem(merged.einsum, merged.sizes, strides={}, given={}, steps={})
    for family in predicted_families(problem, opened)[:N_FAMILIES]:
        make = partial(_predicted, merged, site, problem, family)
        yield _Contender("kernel", family[0].seconds, make)


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
