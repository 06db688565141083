"""Measurement: devices, timing, counts, rooflines, verification.

On any target: see :mod:`feinsum.targets`.
"""

from feinsum.measure.arguments import random_arguments
from feinsum.measure.counts import kernel_operations
from feinsum.measure.giga_op_rate import measure_giga_op_rate
from feinsum.measure.kernel import (
    BoundKernel,
    CompiledKernel,
    compile_kernel,
)
from feinsum.measure.ladder import Rung, measure_ladder
from feinsum.measure.peaks import measure_peaks
from feinsum.measure.reference import (
    Reference,
    einsum_operations,
    footprint_bytes,
    n_terms,
    reference_of,
)
from feinsum.measure.roofline import Work, fraction_of_roofline, roofline_s
from feinsum.measure.timing import bind_at, common_timer, interleave, timeit
from feinsum.measure.verification import (
    check_outputs,
    check_result,
    largest_error,
    tolerance_for,
    verify,
)
from feinsum.targets.devices import device_states, list_devices, open_device
from feinsum.targets.protocol import OpenDevice, Timer

__all__ = [
    "BoundKernel",
    "CompiledKernel",
    "OpenDevice",
    "Reference",
    "Rung",
    "Timer",
    "Work",
    "bind_at",
    "check_outputs",
    "check_result",
    "common_timer",
    "compile_kernel",
    "device_states",
    "einsum_operations",
    "footprint_bytes",
    "fraction_of_roofline",
    "interleave",
    "kernel_operations",
    "largest_error",
    "list_devices",
    "measure_giga_op_rate",
    "measure_ladder",
    "measure_peaks",
    "n_terms",
    "open_device",
    "random_arguments",
    "reference_of",
    "roofline_s",
    "timeit",
    "tolerance_for",
    "verify",
]
