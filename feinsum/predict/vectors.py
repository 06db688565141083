"""Whether a processor has the vectors in which a recipe is written.

gcc spills vectors longer than the processor's to the stack: see
docs/explanation/prediction.md. LLVM, used by OpenCL on CPUs, splits them in two.
"""

from __future__ import annotations

from collections.abc import Iterator

from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum
from feinsum.predict.machine import machine_of
from feinsum.records import Device, ParameterValue, TransformSpec
from feinsum.records.environment import HOST_PLATFORM

__all__ = ["has_vectors"]

LANES = "lanes"
"""The parameter of all families with explicit vectors."""


def has_vectors(spec: TransformSpec, einsum: BatchedEinsum, device: Device) -> bool:
    """Whether no vector of a recipe is longer than the device's.

    True if the processor is unknown.

    Args:
        einsum: the recipe's einsum.

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
    """The vector lengths of a recipe, and of the recipes that it names."""
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
