"""Measured limits of a device: bandwidth of a triad, rate of multiply-adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feinsum.errors import MeasurementError, WrongResultError
from feinsum.measure.device import OpenCLDevice
from feinsum.measure.launch import launch_s
from feinsum.measure.opencl import opencl_errors, pyopencl, quiet_builds
from feinsum.records import DevicePeaks, utc_now

__all__ = ["measure_peaks", "triad_array_bytes"]

_MIB = 1 << 20
_WIDTHS = (1, 2, 4, 8, 16)
_CHAINS = 8
_PERIOD = 64
"""So many work-items start at different numbers."""
_CTYPES = {"<f8": "double", "<f4": "float"}
_A, _B = 0.999, 0.001

_TRIAD = """
__kernel void triad(__global {T} *restrict a, __global const {T} *restrict b,
                    __global const {T} *restrict c, float s) {{
    size_t i = get_global_id(0);
    a[i] = b[i] + s * c[i];
}}
"""

# Written as x*a + b and contracted by the compiler: the built-in fma() is a call of
# a slow function on some devices (a tenth of the rate with PoCL 3.0). Work-items start
# at numbers of their own, or a compiler computes once what is the same for all of them.
_FMA = """
#pragma OPENCL FP_CONTRACT ON
__kernel void chains(__global {T} *out, {S} a, {S} b, uint n) {{
    {T} va = a, vb = b, start = ({S}) (get_global_id(0) % {period});
    {declare}
    for (uint k = 0; k < n; ++k) {{ {step} }}
    out[get_global_id(0)] = {total};
}}
"""


def measure_peaks(
    opencl: OpenCLDevice,
    dtypes: Sequence[str] = ("<f8", "<f4"),
    *,
    array_bytes: int | None = None,
    min_run_s: float = 0.02,
    repeats: int = 5,
) -> DevicePeaks:
    """Bandwidth and arithmetic rates that kernels on this device can reach.

    The bandwidth counts the three arrays of ``a = b + s*c`` once each; the rate
    counts a multiply-add, from registers to registers in eight independent chains,
    as two operations. Vector widths 1 to 16 are tried, the best time of
    all is taken, and every result is checked.

    Args:
        dtypes: of ``<f8`` and ``<f4``; one that the device lacks is left out.
        array_bytes: of each array of the triad; :func:`triad_array_bytes` by
            default.
        min_run_s: least time of a run of multiply-adds, in seconds.
        repeats: runs of each kernel.

    Raises:
        MeasurementError: for another dtype, or if the device fails.
        WrongResultError: if a result is wrong.
    """
    if unknown := sorted(set(dtypes) - set(_CTYPES)):
        raise MeasurementError(f"dtypes {unknown}: expected some of {sorted(_CTYPES)}")
    has_double = bool(opencl.handle.double_fp_config)
    n_bytes = array_bytes or triad_array_bytes(opencl)
    with quiet_builds(), opencl_errors("cannot measure peaks"):
        return DevicePeaks(
            device=opencl.device,
            bandwidth_bytes_per_s=_bandwidth(opencl, n_bytes, repeats),
            operations_per_s={
                dtype: max(
                    _fma_rate(opencl, dtype, width, min_run_s, repeats)
                    for width in _WIDTHS
                )
                for dtype in dtypes
                if dtype != "<f8" or has_double
            },
            measured_at=utc_now(),
        )


def triad_array_bytes(opencl: OpenCLDevice) -> int:
    """Bytes of one array of the triad: far more than the caches hold.

    256 MiB, or the size of the last cache if that is larger, so that three
    arrays are three times the cache; within the largest allocation, and all
    three within half of the device's memory. A multiple of 1 MiB.
    """
    handle = opencl.handle
    wanted = max(256 * _MIB, handle.global_mem_cache_size)
    limit = min(handle.max_mem_alloc_size, handle.global_mem_size // 6)
    return max(1, int(min(wanted, limit)) // _MIB) * _MIB


def _bandwidth(opencl: OpenCLDevice, array_bytes: int, repeats: int) -> float:
    """Bytes per second of the best triad over all widths."""
    cl = pyopencl()
    n_bytes = -(-array_bytes // 4096) * 4096
    flags = cl.mem_flags.READ_WRITE
    a, b, c = (cl.Buffer(opencl.context, flags, n_bytes) for _ in range(3))
    for buffer, value in ((a, np.nan), (b, 1.0), (c, 2.0)):
        cl.enqueue_fill_buffer(opencl.queue, buffer, np.float32(value), 0, n_bytes)
    best_s = np.inf
    for width in _WIDTHS:
        source = _TRIAD.format(T=_vector("float", width))
        triad = cl.Program(opencl.context, source).build().triad
        triad.set_args(a, b, c, np.float32(3.0))
        n_items = n_bytes // (4 * width)
        seconds = [launch_s(opencl, triad, n_items) for _ in range(repeats + 1)]
        best_s = min(best_s, *seconds)
    _check_triad(opencl, a, n_bytes)
    return 3 * n_bytes / best_s


def _check_triad(opencl: OpenCLDevice, a: Any, n_bytes: int) -> None:
    """Compare the first, a middle and the last page with 1 + 3*2."""
    page = np.empty(1024, np.float32)
    for offset in (0, n_bytes // 8192 * 4096, n_bytes - page.nbytes):
        pyopencl().enqueue_copy(opencl.queue, page, a, src_offset=offset)
        if not np.all(page == 7.0):
            raise WrongResultError(f"the triad is wrong near byte {offset}: {page}")


def _fma_rate(
    opencl: OpenCLDevice, dtype: str, width: int, min_run_s: float, repeats: int
) -> float:
    """Operations per second of fused multiply-adds in vectors of one width."""
    cl = pyopencl()
    chains = cl.Program(opencl.context, _fma_source(dtype, width)).build().chains
    scalar = np.dtype(dtype).type
    n_items = 1024 * opencl.device.compute_units
    result = np.empty((n_items, width), dtype)
    out = cl.Buffer(opencl.context, cl.mem_flags.WRITE_ONLY, result.nbytes)

    def run_s(n_steps: int) -> float:
        chains.set_args(out, scalar(_A), scalar(_B), np.uint32(n_steps))
        return launch_s(opencl, chains, n_items)

    n_steps = _long_enough(run_s, min_run_s)
    best_s = min(run_s(n_steps) for _ in range(repeats))
    cl.enqueue_copy(opencl.queue, result, out)
    _check_chains(result, n_steps)
    return 2.0 * n_items * width * _CHAINS * n_steps / best_s


def _long_enough(run_s: Callable[[int], float], min_run_s: float) -> int:
    """A number of steps, doubled from 64 until a run is long enough."""
    n_steps = 64
    run_s(n_steps)  # compiles
    while run_s(n_steps) < min_run_s and n_steps < 1 << 24:
        n_steps *= 2
    return n_steps


def _check_chains(result: np.ndarray[Any, np.dtype[Any]], n_steps: int) -> None:
    """Compare with the closed form of x -> a*x + b from x = start + 1 ... start + 8."""
    fixed = _B / (1 - _A)
    decay = _A**n_steps
    start = np.arange(len(result))[:, np.newaxis] % _PERIOD
    firsts = _CHAINS * start + sum(range(1, _CHAINS + 1))
    expected = decay * firsts + (1 - decay) * _CHAINS * fixed
    if not np.allclose(result, expected, rtol=1e-2, atol=0):
        raise WrongResultError(
            f"multiply-adds of {result.dtype} give {result.min()} to {result.max()}, "
            f"expected {expected.min()} to {expected.max()}"
        )


def _fma_source(dtype: str, width: int) -> str:
    scalar = _CTYPES[dtype]
    names = [f"x{k}" for k in range(_CHAINS)]
    vector = _vector(scalar, width)
    return _FMA.format(
        T=vector,
        S=scalar,
        period=_PERIOD,
        declare=" ".join(
            f"{vector} {x} = start + {k + 1};" for k, x in enumerate(names)
        ),
        step=" ".join(f"{x} = {x} * va + vb;" for x in names),
        total=" + ".join(names),
    )


def _vector(scalar: str, width: int) -> str:
    return scalar if width == 1 else f"{scalar}{width}"
