"""Which nests over a sparse operand are expected to be fast, and in which form."""

from __future__ import annotations

from collections.abc import Mapping

from feinsum.ir import BatchedEinsum
from feinsum.nests import EstimatedTime, Machine, choose_form, network_of, sizes_at
from feinsum.nests.cost import evaluate
from feinsum.predict.machine import machine_of
from feinsum.records import Device
from feinsum.transforms.nests import (
    SPARSE_NEST,
    nests_at,
    parameters_of,
    usual_sizes,
)
from feinsum.transforms.ranking import Costed

__all__ = ["sparse_predictions"]


def sparse_predictions(
    einsum: BatchedEinsum, sizes: Mapping[str, int], device: Device
) -> list[Costed]:
    """Nests with their estimated seconds, the fastest first.

    Each is proposed with all cores, and with one for callers without room for copies of
    the result.

    Args:
        einsum: canonical, with a sparse operand.
        sizes: values of its size parameters, and the profile; usual ones where they are
            not known.

    >>> from feinsum.ir import array, sparse_array
    >>> from feinsum.ir import einsum as make
    >>> spmv = make("ij,j->i", sparse_array("A", ("M", "N")), array("x", "N"))
    >>> cpu = Device("host", "a CPU", "", "cpu", "x86_64", 2)
    >>> [one.spec.parameters["threads"] for one in sparse_predictions(spmv, {}, cpu)]
    ['chunks', 'none']
    """
    if SPARSE_NEST.offered(einsum) is None:
        return []
    network, known = network_of(einsum), sizes_at(einsum, usual_sizes(einsum, sizes))
    dtype, machine = einsum.output_dtypes[0], machine_of(device)
    cost = EstimatedTime(
        network,
        known,
        Machine(vector_bytes=machine.vector_bytes),
        item_bytes=dtype.itemsize,
        n_threads=machine.n_cores,
    )
    found: dict[object, Costed] = {}
    for nest in nests_at(network, known, dtype.itemsize):
        seconds = evaluate(cost, nest.path, nest.orders) * 1e-9
        lanes = machine.vector_bytes if dtype.kind == "f" else 0
        for n_threads in (machine.n_cores, 1):
            form = choose_form(
                nest,
                known,
                item_bytes=dtype.itemsize,
                vector_bytes=lanes,
                n_threads=n_threads,
            )
            spec = SPARSE_NEST.spec(parameters_of(nest, form))
            found.setdefault(spec, Costed(seconds, spec))
    return sorted(found.values(), key=lambda one: one.seconds)
