"""Predict the fastest recipes for a workload on a device.

A recipe may have longer vectors than the processor. gcc spills these to the stack, see
docs/explanation/prediction.md, so recipes for the host C compiler with such vectors are
excluded. LLVM, which compiles OpenCL on CPUs, splits them in two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import inf

from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum
from feinsum.machine import MachineModel
from feinsum.measure.intermediates import get_intermediate_limit_bytes, has_room
from feinsum.nests import EstimatedTime, build_network, choose_form, get_sizes
from feinsum.nests.cost import evaluate_cost
from feinsum.predict.machine import model_machine
from feinsum.records import Device, DevicePeaks, TransformSpec
from feinsum.records.environment import HOST_PLATFORM
from feinsum.transforms import REGISTRY, Transform, find_transform
from feinsum.transforms.cost import Costed, rank_recipes, replace_sizes
from feinsum.transforms.nests import (
    SPARSE_NEST,
    assume_sizes,
    find_nests,
    get_parameters,
)
from feinsum.transforms.registry import CostFunction

HOPELESS = 30
"""Factor over the lowest predicted time: no cost model errs by as much."""


def predict_recipes(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    peaks: DevicePeaks | None = None,
    *,
    intermediate_bytes: int | None = None,
) -> list[Costed]:
    """Return recipes with their predicted seconds, fastest first.

    There are none if an extent is zero. For GPUs, only families made for GPUs are
    predicted. Recipes for a sparse operand come from :func:`predict_sparse_recipes`.

    Of several recipes of one family with equal predictions, only one is returned.

    Args:
        einsum: the canonical einsum.
        sizes: values of its size parameters, as far as known.
        device: the device to predict for.
        peaks: measured limits of the device, if there are any.
        intermediate_bytes: limit on the intermediates of a recipe; by default
            :func:`feinsum.measure.intermediates.get_intermediate_limit_bytes`.

    Raises:
        MeasurementError: if the variable for this limit is not a number.
    """
    is_empty = 0 in replace_sizes(einsum, sizes).extents.values()
    if device.kind not in ("cpu", "gpu") or is_empty:
        return []
    if einsum.sparse_position is not None:
        is_cpu = device.kind == "cpu"
        return predict_sparse_recipes(einsum, sizes, device) if is_cpu else []
    # sorted by version: the newest version of a name replaces the others
    newest = dict(sorted(REGISTRY))
    transforms = [REGISTRY[name] for name in newest.items()]
    suited = [t for t in transforms if _get_cost(device, t)]
    machine, limit = model_machine(device, peaks), intermediate_bytes
    if limit is None:
        limit = get_intermediate_limit_bytes(einsum, sizes)
    candidates = [
        candidate
        for candidate in rank_recipes(einsum, sizes, suited, machine)
        if has_vectors(candidate.spec, einsum, device)
        and has_room(candidate.spec, einsum, sizes, limit)
    ]
    # the cost of a recipe that a GPU does not support is infinite
    if machine.gpu is not None:
        candidates = [candidate for candidate in candidates if candidate.seconds < inf]
    # the cheapest of each set of similar recipes: those of a family and a rounded time
    first: dict[tuple[str, str], Costed] = {}
    for candidate in sorted(candidates, key=lambda candidate: candidate.seconds):
        key = candidate.spec.name, f"{candidate.seconds:.3g}"
        first.setdefault(key, candidate)
    return [*first.values()]


def make_pruning_test(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    least_s: float,
    peaks: DevicePeaks | None = None,
) -> Callable[[TransformSpec], bool]:
    """Return a predicate: whether a recipe should take far longer than ``least_s``.

    A single nest over many operands, for example, may take hours. The predicate is
    False for families without a cost.
    """
    sized, machine = replace_sizes(einsum, sizes), model_machine(device, peaks)

    def is_pruned(spec: TransformSpec) -> bool:
        cost = _get_cost(device, find_transform(spec.name, spec.version))
        return cost is not None and (
            cost(sized, spec.parameters, machine) > HOPELESS * least_s
        )

    return is_pruned


def is_outdone(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    recipe: TransformSpec,
    alternative: TransformSpec,
) -> bool:
    """Return whether an alternative recipe of the same family should be clearly faster.

    Costs of one family can be compared with a small margin; costs of different families
    err by more.
    """
    family = alternative.name, alternative.version
    # a recipe that was recorded may be of a family that is unknown here
    if (recipe.name, recipe.version) != family:
        return False
    cost = _get_cost(device, find_transform(*family))
    if cost is None:
        return False
    # typical limits suffice for a comparison
    sized, machine = replace_sizes(einsum, sizes), model_machine(device)
    costs = (cost(sized, spec.parameters, machine) for spec in (recipe, alternative))
    # the cost model of one family errs by less than this factor
    return next(costs) > 1.3 * next(costs)


def _get_cost(device: Device, transform: Transform) -> CostFunction | None:
    """Return the cost of a family if it is valid for the device.

    The cost of a family for all devices counts cycles of CPUs, so it is not valid for
    GPUs.
    """
    is_meant = device.kind in transform.devices and (
        device.kind == "cpu" or transform.devices == {device.kind}
    )
    return transform.cost if is_meant else None


def predict_sparse_recipes(
    einsum: BatchedEinsum, sizes: Mapping[str, int], device: Device
) -> list[Costed]:
    """Return nests with their estimated seconds, fastest first.

    Each nest is proposed for all cores, and for one core, in case a caller has no
    memory for copies of the result.

    Args:
        einsum: the canonical einsum, with a sparse operand.
        sizes: values of its size parameters, and the profile; typical ones replace
            unknown ones.
        device: the CPU to predict for.

    >>> from feinsum.ir import array, einsum as make, sparse_array
    >>> spmv = make("ij,j->i", sparse_array("A", ("M", "N")), array("x", "N"))
    >>> cpu = Device("host", "a CPU", "", "cpu", "x86_64", 2)
    >>> [one.spec.parameters["threads"] for one in predict_sparse_recipes(spmv, {},
    ...     cpu)]
    ['chunks', 'none']
    """
    if SPARSE_NEST.get_space(einsum) is None:
        return []
    network, typical_sizes = (
        build_network(einsum),
        get_sizes(einsum, assume_sizes(einsum, sizes)),
    )
    dtype, machine = einsum.output_dtypes[0], model_machine(device)
    cost = EstimatedTime(
        network,
        typical_sizes,
        MachineModel(vector_bytes=machine.vector_bytes),
        item_bytes=dtype.itemsize,
        n_threads=machine.n_cores,
    )
    candidates: dict[object, Costed] = {}
    for nest in find_nests(network, typical_sizes, dtype.itemsize):
        # the cost of nests is in nanoseconds
        seconds = evaluate_cost(cost, nest.path, nest.orders) * 1e-9
        # the family has vectors of real numbers only
        lanes = machine.vector_bytes if dtype.kind == "f" else 0
        for n_threads in (machine.n_cores, 1):
            form = choose_form(
                nest,
                typical_sizes,
                item_bytes=dtype.itemsize,
                vector_bytes=lanes,
                n_threads=n_threads,
            )
            spec = SPARSE_NEST.spec(get_parameters(nest, form))
            candidates.setdefault(spec, Costed(seconds, spec))
    return sorted(candidates.values(), key=lambda candidate: candidate.seconds)


def has_vectors(spec: TransformSpec, einsum: BatchedEinsum, device: Device) -> bool:
    """Return whether a device has vectors as long as a recipe's.

    It is True if the processor is unknown.

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
    longest = max(_list_lanes(spec), default=1) * itemsize
    return longest <= model_machine(device).vector_bytes


def _list_lanes(spec: TransformSpec) -> Iterator[int]:
    """Yield the vector lengths of a recipe, and of the recipes that it names."""
    for name, value in spec.parameters.items():
        # all families with explicit vectors have this parameter
        if name == "lanes" and isinstance(value, int):
            yield value
        for text in value if isinstance(value, tuple) else ():
            with suppress(FeinsumError):
                yield from _list_lanes(TransformSpec.parse(str(text)))
