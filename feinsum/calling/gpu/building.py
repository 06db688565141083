"""How a call on a GPU is built: contenders are timed, and the fastest is kept.

Each contender has a predicted time, and only the plausible ones are compiled::

    product    a matrix product of BLAS, with copies if needed     two operands
    cutensor   a contraction of arrays of any strides              two operands
    steps      ij,jk,kl->il as ij,jk->ik and ik,kl->il, each       the best paths
               built from its own contenders
    kernel     the recorded recipe; else the best predicted ones   of a few families
    library    CuPy's einsum                                       up to two operands
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

from feinsum.calling.einsum_call import (
    EinsumCall,
    StridedTerm,
    compute_c_steps,
    normalize_terms,
    with_terms,
)
from feinsum.calling.gpu.flat import FlatCall, flatten_call
from feinsum.calling.gpu.prepared import (
    LETTERS,
    CopyCall,
    CutensorCall,
    GpuCall,
    KernelCall,
    ProductCall,
    StepsCall,
    count_result_bytes,
    get_blas_dtype,
    make_library_call,
    make_trivial_call,
    shape_arrays,
)
from feinsum.calling.gpu.products import Product
from feinsum.calling.gpu.site import Site, parse_arrays
from feinsum.calling.gpu.steps import (
    Contraction,
    PlannedSteps,
    order_as_operands,
    plan_paths,
    plan_step,
    predict_contraction_s,
)
from feinsum.calling.kernel import (
    N_TRIED,
    CallKernel,
    KernelProblem,
    build_predicted_kernel,
    build_recorded_kernel,
    find_untransformed_path,
    is_faulty,
    list_predicted_families,
    make_sizes_key,
    note_fault,
)
from feinsum.calling.kernel_cache import get_cached_kernel
from feinsum.calling.operands import find_first_uses
from feinsum.contraction import Step
from feinsum.dtypes import is_half
from feinsum.errors import BuildError, DeviceLostError, FeinsumError
from feinsum.ir import IndexList, write_subscripts
from feinsum.select import find_fastest
from feinsum.targets.cuda.built import CudaBuilt
from feinsum.targets.cuda.cutensor import has_cutensor
from feinsum.transforms.cost import Costed

logger = logging.getLogger(__name__)

PLAUSIBLE = 2.5
"""Maximum predicted slowdown at which a contender may still prove the fastest."""
N_PLANS = 2
"""Paths that are timed if their predicted times differ by less than ``CLOSE``."""
CLOSE = 1.3
LIBRARY_SHARE = 2.0
"""Time of CuPy's einsum, as a multiple of the minimum time of the operation."""


class Contender(NamedTuple):
    """A way to compute an einsum.

    Attributes:
        kind: its name in messages.
        seconds: the predicted time.
        make: builds the call; returns None if that is not possible.
        is_proven: whether it is timed whatever its predicted time is.
    """

    kind: str
    seconds: float
    make: Callable[[], GpuCall | None]
    is_proven: bool = False

    def attempt(self) -> GpuCall | None:
        """Build the call; None if that fails, such as for too large intermediates."""
        try:
            return self.make()
        except DeviceLostError:
            raise
        except FeinsumError as error:
            logger.warning("skipped %s: %s", self.kind, error)
            return None


def choose_fastest(calls: Sequence[GpuCall], site: Site) -> GpuCall:
    """Return the call that is certainly faster than the first one; else the first.

    Calls that fail are logged and left out.
    """
    # without a rival there is nothing to time
    if len(calls) == 1:
        return calls[0]
    working = [call for call in calls if _can_run(call, site)]
    if not working:
        return calls[0]
    return working[find_fastest([partial(_time_call, call, site) for call in working])]


def _can_run(call: GpuCall, site: Site) -> bool:
    """Return whether a call runs; this first run compiles and allocates, untimed."""
    try:
        _time_call(call, site)
    except DeviceLostError:
        raise
    except FeinsumError as error:
        logger.warning("skipped %r: %s", call, error)
        return False
    return True


def _time_call(call: GpuCall, site: Site) -> float:
    """Time a call on the GPU, or on the host if that takes longer."""
    on_host_s = 0.0

    def run() -> None:
        nonlocal on_host_s
        start = perf_counter()
        call(site.arrays, site.stream)
        on_host_s = perf_counter() - start

    try:
        on_gpu_s = site.opened.session.timed(run, site.stream)
    except DeviceLostError:
        _note_faults(call, site)
        raise
    logger.debug("%r takes %.3g s, the host %.3g s", call, on_gpu_s, on_host_s)
    # a call cannot be repeated faster than the host launches it
    return max(on_gpu_s, on_host_s)


def _note_faults(call: GpuCall, site: Site) -> None:
    """Record the predicted recipes of a call that cost the device, to exclude them."""
    # an error shows at the next synchronization, so any launch may have caused it
    for kernel_call in _list_kernels(call):
        kernel = kernel_call.kernel
        if kernel is not None and kernel.spec is not None:
            note_fault(kernel_call.parsed.einsum, kernel.spec, site.opened)


def _list_kernels(call: GpuCall | None) -> Iterator[KernelCall]:
    # a flat call repeats the launches of another one
    if isinstance(call, FlatCall):
        call = call.origin
    if isinstance(call, KernelCall):
        yield call
    inner_calls: Iterable[GpuCall | None] = ()
    if isinstance(call, StepsCall):
        inner_calls = (step for _, step in call.steps)
    elif isinstance(call, ProductCall):
        inner_calls = (*call.copies, call.added)
    for inner_call in inner_calls:
        yield from _list_kernels(inner_call)


def build(parsed: EinsumCall, site: Site) -> GpuCall:
    """Build the contenders for an einsum, and return the fastest call.

    Raises:
        BuildError: if no contender can compute it.
        DeviceLostError: if a contender cost this process the GPU.
        MeasurementError: if there is not enough memory for the result.
    """
    opened = site.opened
    trivial = make_trivial_call(parsed, opened)
    if trivial is not None:
        return trivial
    opened.check_room(count_result_bytes(parsed), "a result")
    contenders = [*_list_contenders(parsed, site)]
    predicted = [x.seconds for x in contenders if not x.is_proven]
    limit = PLAUSIBLE * min(predicted, default=0.0)
    # the others are not even compiled, since that takes longer than all runs
    plausible = [x for x in contenders if x.is_proven or x.seconds <= limit]
    attempted = [x.attempt() for x in plausible]
    calls = [flatten_call(x, opened, site.arrays) for x in attempted if x is not None]
    return choose_fastest(
        calls or [_require_library(make_library_call(parsed, opened), parsed)], site
    )


def _list_contenders(parsed: EinsumCall, site: Site) -> Iterator[Contender]:
    """Yield the ways to compute an einsum."""
    problem = _build_contraction(parsed, site)
    # neither BLAS nor cuTENSOR multiplies integers
    if len(problem.terms) == 2 and parsed.work_dtype.kind in "fc":
        yield from _list_products(parsed, site, problem)
        seconds = predict_contraction_s(problem)
        if seconds is not None and has_cutensor():
            contract = CutensorCall(parsed, site.opened)
            yield Contender("cutensor", seconds, lambda: contract)
    for plan in _list_plans(parsed, site, problem):
        make = partial(_build_steps, parsed, site, plan)
        yield Contender("steps", plan.seconds, make)
    if parsed.work_dtype.kind in "iuf":
        yield from list_kernel_contenders(parsed, site)
    # with more operands, the library chooses a path that this code cannot know
    library = make_library_call(parsed, site.opened)
    if library is not None and len(problem.terms) <= 2:
        seconds, _ = plan_step(problem, problem.values, problem.output)
        yield Contender("library", LIBRARY_SHARE * seconds, lambda: library)


def _list_products(
    parsed: EinsumCall, site: Site, problem: Contraction
) -> Iterator[Contender]:
    """Yield the fastest product; if its sum is split, also the fastest unsplit one."""
    # partial sums in half precision would lose digits
    for is_whole in (True,) if is_half(parsed.dtype) else (False, True):
        seconds, product = plan_step(
            problem, problem.values, problem.output,
            is_free=not site.is_exact, is_whole=is_whole,
        )  # fmt: skip
        if product is None:
            return
        make = partial(_build_product, parsed, site, product)
        yield Contender("product", seconds, make)
        if product.n_parts == 1:
            return


def _list_plans(
    parsed: EinsumCall, site: Site, problem: Contraction
) -> Iterator[PlannedSteps]:
    """Yield the fastest plans, and one whose last step is a transposed view."""
    n_operands = len(problem.terms)
    path = find_untransformed_path(parsed.einsum, parsed.sizes)
    fastest_plans = plan_paths(problem, path or (tuple(range(n_operands)),))[:N_PLANS]
    limit = CLOSE * fastest_plans[0].seconds if fastest_plans else 0.0
    yield from (plan for plan in fastest_plans if plan.seconds <= limit)
    order = order_as_operands(problem)
    if order != problem.output and not site.is_exact:
        seconds, _ = plan_step(problem, problem.values, order)
        every = Step(tuple(range(n_operands)), problem.terms, order)
        last = Step((n_operands,), (order,), problem.output)
        yield PlannedSteps(seconds, (every, last))


def _require_library(library: GpuCall | None, parsed: EinsumCall) -> GpuCall:
    """Return the library's call; raise a BuildError if there is none."""
    if library is None:
        raise BuildError(
            f"nothing computes {parsed.einsum.subscripts} on a GPU: libraries take at "
            f"most {len(LETTERS)} indices, and no family for GPUs fits; copy the "
            "operands to the host"
        )
    return library


def _build_contraction(parsed: EinsumCall, site: Site) -> Contraction:
    numbers, terms = parsed.uses, parsed.inputs
    arguments = shape_arrays(
        parsed, site.arrays, get_blas_dtype(parsed), site.opened.session
    )
    strides = [
        tuple(stride // feed.itemsize for stride in feed.strides) for feed in arguments
    ]
    return Contraction(
        terms,
        parsed.output,
        parsed.extents,
        tuple(strides[k] for k in numbers),
        get_blas_dtype(parsed).itemsize,
        site.gpu,
    )


def _build_product(parsed: EinsumCall, site: Site, product: Product) -> ProductCall:
    """Build the call of BLAS, with the fastest copies that it needs."""
    numbers, terms = parsed.uses, parsed.inputs
    arguments = shape_arrays(
        parsed, site.arrays, get_blas_dtype(parsed), site.opened.session
    )
    copies = (
        None if order is None else _build_copy(term, order, arguments[k], site)
        for k, term, order in zip(numbers, terms, product.orders, strict=True)
    )
    return ProductCall(
        parsed, site.opened, product, tuple(copies), _build_added(parsed, site, product)
    )


def _build_added(parsed: EinsumCall, site: Site, product: Product) -> GpuCall | None:
    """Build the call that adds up partial sums; None if the sum is not split."""
    if product.n_parts == 1:
        return None
    shape, session = (product.n_parts, product.n_results), site.opened.session
    partial_sums = session.empty(shape, get_blas_dtype(parsed))
    # fresh memory may hold any values, such as denormal ones, which distort timings
    session.clear(partial_sums, site.stream)
    return build(parse_arrays("ij->j", [partial_sums], (0,)), site.part(partial_sums))


def _build_copy(term: IndexList, order: IndexList, array: Any, site: Site) -> GpuCall:
    """Build the fastest copy of an array with its indices in another order."""
    parsed = parse_arrays(write_subscripts([term], order), [array], (0,))
    of_copy = site.part(array)
    calls: list[GpuCall | None] = [CopyCall(parsed, site.opened)]
    is_packed = array.ndim > 1 and site.opened.session.is_packed(array)
    if is_packed and parsed.work_dtype.kind in "iuf":
        calls += [x.attempt() for x in list_kernel_contenders(parsed, of_copy)]
    return choose_fastest([call for call in calls if call is not None], of_copy)


def _build_steps(parsed: EinsumCall, site: Site, plan: PlannedSteps) -> StepsCall:
    """Build the call of a plan, each step with the results of those before it."""
    arguments = shape_arrays(
        parsed, site.arrays, parsed.work_dtype, site.opened.session
    )
    values: list[Any] = [arguments[k] for k in parsed.uses]
    steps = []
    for step in plan.steps:
        arrays = [values[k] for k in step.operands]
        text = write_subscripts(step.inputs, step.output)
        of_step = parse_arrays(text, arrays, find_first_uses(arrays))
        # the plan assumes C order for all results but the last
        is_exact = site.is_exact or step is not plan.steps[-1]
        call = build(of_step, site.part(*arrays, is_exact=is_exact))
        steps.append((step.operands, call))
        for k in step.operands:
            values[k] = None  # frees intermediates
        values.append(call(arrays, site.stream))
    return StepsCall(parsed, site.opened, tuple(steps))


N_FAMILIES = 3
"""Families whose best recipes are timed."""


def list_kernel_contenders(parsed: EinsumCall, site: Site) -> Iterator[Contender]:
    """Yield the recorded kernel, or the best predicted recipes of some families."""
    # other kernels would read and write twice as many bytes, in casts of their own
    parsed = replace(parsed, is_narrow=is_half(parsed.dtype))
    opened, einsum, sizes = site.opened, parsed.einsum, parsed.sizes
    # a recorded recipe was measured: predictions are for what has none
    recorded = get_cached_kernel(
        (einsum, make_sizes_key(einsum, sizes), site.lookup_key),
        lambda: build_recorded_kernel(
            KernelProblem(einsum, sizes), opened, site.options
        ),
    )
    if recorded is not None:
        call = _with_kernel(parsed, site, recorded)
        yield Contender("kernel", 0.0, lambda: call, is_proven=True)
    if recorded is not None or site.options.effort == "recorded":
        return
    # recipes depend on the kernel that is built, which has merged indices
    merged = _with_fixed_end(_merge_indices(parsed))
    problem = KernelProblem(merged.einsum, merged.sizes)
    for family in list_predicted_families(problem, opened)[:N_FAMILIES]:
        make = partial(_build_predicted, merged, site, problem, family)
        yield Contender("kernel", family[0].seconds, make)


def _merge_indices(parsed: EinsumCall) -> EinsumCall:
    """Merge indices that are adjacent in all arrays; arrays are in C order.

    The kernel then needs fewer divisions to locate an entry.
    """
    numbers, terms = parsed.uses, parsed.inputs
    arguments = [parsed.arguments[k] for k in numbers]
    inputs = [
        StridedTerm(term, feed.shape, compute_c_steps(feed.shape))
        for term, feed in zip(terms, arguments, strict=True)
    ]
    shape = parsed.shape
    output = StridedTerm(parsed.output, shape, compute_c_steps(shape))
    return with_terms(parsed, *normalize_terms(inputs, output))


def _with_fixed_end(parsed: EinsumCall) -> EinsumCall:
    """Fix the extent of the result's last index in the kernel, if others are fixed.

    Families put indices of unknown extents before all others; then adjacent work-items
    would write entries that are far apart.
    """
    output = parsed.output
    has_fixed = any(index not in parsed.size_params for index in output)
    return replace(parsed, fixed=frozenset(output[-1:])) if has_fixed else parsed


def _with_kernel(parsed: EinsumCall, site: Site, kernel: CallKernel) -> KernelCall:
    session = site.opened.session
    arrays = [site.arrays[feed.position] for feed in parsed.arguments]
    is_plain = parsed.dtype == parsed.work_dtype and all(
        session.is_packed(array) and array.dtype == parsed.dtype for array in arrays
    )
    built = kernel.compiled.built
    assert isinstance(built, CudaBuilt)
    names = [feed.name for feed in parsed.arguments]
    launches = built.list_launches(names, parsed.sizes)
    recipe = str(kernel.spec or "a recorded recipe")
    return KernelCall(parsed, site.opened, launches, recipe, is_plain, kernel)


def _compute_magnitudes(parsed: EinsumCall) -> tuple[int, ...]:
    """Return the bit lengths of the sizes, since the best recipe depends on them."""
    return tuple(n.bit_length() for n in parsed.sizes.values())


def _build_predicted(
    parsed: EinsumCall, site: Site, problem: KernelProblem, family: Sequence[Costed]
) -> KernelCall | None:
    """Build the first of these recipes that is correct and spills few registers."""
    einsum, opened = problem.einsum, site.opened

    def make() -> CallKernel | None:
        # a recipe that once crashed the GPU is not tried again
        usable = (x for x in family if not is_faulty(einsum, x.spec, opened))
        tried = [*islice(usable, N_TRIED)]
        kernel_and_time = build_predicted_kernel(problem, opened, _check_figures, tried)
        return None if kernel_and_time is None else kernel_and_time[0]

    key = (
        parsed.einsum,
        _compute_magnitudes(parsed),
        family[0].spec.name,
        site.lookup_key,
    )
    kernel = get_cached_kernel(key, make)
    return None if kernel is None else _with_kernel(parsed, site, kernel)


def _check_figures(kernel: CallKernel) -> None:
    kernel.compiled.built.check_figures()
