"""Predict the fastest recipes for a workload on a device.

A recipe may be written in vectors that a processor lacks: gcc spills vectors longer
than the processor's to the stack: see docs/explanation/prediction.md. LLVM, used by
OpenCL on CPUs, splits them in two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf

from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum
from feinsum.machine import MachineModel
from feinsum.measure.intermediates import has_room, intermediate_limit_bytes
from feinsum.nests import EstimatedTime, choose_form, network_of, sizes_at
from feinsum.nests.cost import evaluate
from feinsum.predict.machine import machine_of
from feinsum.records import Device, DevicePeaks, ParameterValue, TransformSpec
from feinsum.records.environment import HOST_PLATFORM
from feinsum.transforms import REGISTRY, Transform, find_transform
from feinsum.transforms.nests import SPARSE_NEST, nests_at, parameters_of, usual_sizes
from feinsum.transforms.ranking import Costed, at_sizes, ranked
from feinsum.transforms.registry import Cost

HOPELESS = 30
"""Factor over the lowest expected time: more than any cost is wrong by."""

OUTDONE = 1.3
"""Factor over the better recipe's time: costs of one family err by less."""


def predictions(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    peaks: DevicePeaks | None = None,
    *,
    intermediate_bytes: int | None = None,
) -> list[Costed]:
    """Return recipes with their expected seconds, fastest first.

    If an extent is zero, there are none. For GPUs, only the families made for them are
    predicted. Recipes for a sparse operand come from
    :func:`sparse_predictions`.

    Recipes differ in family or cost: of similar ones, only one is returned.

    Args:
        einsum: the canonical einsum.
        sizes: values of its size parameters, as far as known.
        device: the device to predict for.
        peaks: measured limits of the device, if there are any.
        intermediate_bytes: limit on the intermediates of a recipe; by default
            :func:`feinsum.measure.intermediates.intermediate_limit_bytes`.

    Raises:
        MeasurementError: if the variable for this limit is not a number.
    """
    is_empty = 0 in at_sizes(einsum, sizes).extents.values()
    if device.kind not in ("cpu", "gpu") or is_empty:
        return []
    if einsum.sparse_position is not None:
        is_cpu = device.kind == "cpu"
        return sparse_predictions(einsum, sizes, device) if is_cpu else []
    # sorted by version: the last one of a name replaces those before
    newest = dict(sorted(REGISTRY))
    transforms = [REGISTRY[name] for name in newest.items()]
    suited = [t for t in transforms if _cost_on(device, t)]
    machine, limit = machine_of(device, peaks), intermediate_bytes
    if limit is None:
        limit = intermediate_limit_bytes(einsum, sizes)
    candidates = [
        candidate
        for candidate in ranked(einsum, sizes, suited, machine)
        if has_vectors(candidate.spec, einsum, device)
        and has_room(candidate.spec, einsum, sizes, limit)
    ]
    if machine.gpu is not None:
        candidates = [candidate for candidate in candidates if candidate.seconds < inf]
    # the cheapest of each set of similar recipes
    first: dict[tuple[str, str], Costed] = {}
    for candidate in sorted(candidates, key=lambda candidate: candidate.seconds):
        first.setdefault(_likeness(candidate), candidate)
    return [*first.values()]


def hopeless(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    least_s: float,
    peaks: DevicePeaks | None = None,
) -> Callable[[TransformSpec], bool]:
    """Tell whether a recipe is expected to take far longer than ``least_s``.

    One nest of many operands, for example, may take hours. Families without a cost have
    no expectation.
    """
    sized, machine = at_sizes(einsum, sizes), machine_of(device, peaks)

    def is_hopeless(spec: TransformSpec) -> bool:
        cost = _cost_on(device, find_transform(spec.name, spec.version))
        return cost is not None and (
            cost(sized, spec.parameters, machine) > HOPELESS * least_s
        )

    return is_hopeless


def is_outdone(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    recipe: TransformSpec,
    other: TransformSpec,
) -> bool:
    """Tell whether the other recipe of the same family should be clearly faster.

    Only costs of one family are compared, which differ in tiles and vector widths;
    between families they err by more than this margin.
    """
    cost = _cost_on(device, find_transform(recipe.name, recipe.version))
    if cost is None or (recipe.name, recipe.version) != (other.name, other.version):
        return False
    sized, machine = at_sizes(einsum, sizes), machine_of(device)
    costs = (cost(sized, spec.parameters, machine) for spec in (recipe, other))
    return next(costs) > OUTDONE * next(costs)


def _cost_on(device: Device, transform: Transform) -> Cost | None:
    """Return the cost of a family, if it applies to devices of this kind.

    On GPUs only families made for GPUs have one; the others count cycles of CPUs.
    """
    is_meant = device.kind in transform.devices and (
        device.kind == "cpu" or transform.devices == {device.kind}
    )
    return transform.cost if is_meant else None


def _likeness(candidate: Costed) -> tuple[str, str]:
    """Return a key that similar recipes share: family and rounded time."""
    return candidate.spec.name, f"{candidate.seconds:.3g}"


def sparse_predictions(
    einsum: BatchedEinsum, sizes: Mapping[str, int], device: Device
) -> list[Costed]:
    """Return nests with their estimated seconds, fastest first.

    Each is proposed with all cores, and with one for callers without room for copies of
    the result.

    Args:
        einsum: the canonical einsum, with a sparse operand.
        sizes: values of its size parameters, and the profile; usual ones where they are
            not known.
        device: the CPU to predict for.

    >>> from feinsum.ir import array, einsum as make, sparse_array
    >>> spmv = make("ij,j->i", sparse_array("A", ("M", "N")), array("x", "N"))
    >>> cpu = Device("host", "a CPU", "", "cpu", "x86_64", 2)
    >>> [one.spec.parameters["threads"] for one in sparse_predictions(spmv, {}, cpu)]
    ['chunks', 'none']
    """
    if SPARSE_NEST.offered(einsum) is None:
        return []
    network, typical_sizes = (
        network_of(einsum),
        sizes_at(einsum, usual_sizes(einsum, sizes)),
    )
    dtype, machine = einsum.output_dtypes[0], machine_of(device)
    cost = EstimatedTime(
        network,
        typical_sizes,
        MachineModel(vector_bytes=machine.vector_bytes),
        item_bytes=dtype.itemsize,
        n_threads=machine.n_cores,
    )
    candidates: dict[object, Costed] = {}
    for nest in nests_at(network, typical_sizes, dtype.itemsize):
        # the search over nests counts nanoseconds
        seconds = evaluate(cost, nest.path, nest.orders) * 1e-9
        lanes = machine.vector_bytes if dtype.kind == "f" else 0
        for n_threads in (machine.n_cores, 1):
            form = choose_form(
                nest,
                typical_sizes,
                item_bytes=dtype.itemsize,
                vector_bytes=lanes,
                n_threads=n_threads,
            )
            spec = SPARSE_NEST.spec(parameters_of(nest, form))
            candidates.setdefault(spec, Costed(seconds, spec))
    return sorted(candidates.values(), key=lambda candidate: candidate.seconds)


LANES = "lanes"
"""The parameter of all families with explicit vectors."""


def has_vectors(spec: TransformSpec, einsum: BatchedEinsum, device: Device) -> bool:
    """Tell whether no vector of a recipe is longer than the device's.

    True if the processor is unknown.

    Args:
        spec: the recipe.
        einsum: the recipe's einsum.
        device: the device to run on.

    >>> from feinsum.ir import array, einsum
    >>> device = Device(HOST_PLATFORM, "a CPU", "", "cpu", "x86_64", 2)
    >>> product = einsum("ij,jk->ik", array("A", (9, 9)), array("B", (9, 9)))
    >>> has_vectors(TransformSpec("turned", 1, {"lanes": 8}), product, device)
    True
    """
    if device.platform != HOST_PLATFORM or device.processor is None:
        return True
    itemsize = max(operand.dtype.itemsize for operand in einsum.operands)
    longest = max(_lanes(spec), default=1) * itemsize
    return longest <= machine_of(device).vector_bytes


def _lanes(spec: TransformSpec) -> Iterator[int]:
    """Return the vector lengths of a recipe, and of the recipes that it names."""
    for name, value in spec.parameters.items():
        if name == LANES and isinstance(value, int):
            yield value
        elif isinstance(value, tuple):
            for part in value:
                yield from _lanes_of(part)


def _lanes_of(part: ParameterValue) -> Iterator[int]:
    try:
        named = TransformSpec.parse(str(part))
    except FeinsumError:
        return
    yield from _lanes(named)
