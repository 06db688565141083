"""Transforms that misbehave, each in its own way, and one that is right.

Named in ``FEINSUM_TRANSFORMS``, this module registers them in the process of a
trial. They fit nothing but the small einsum of :func:`odd_einsum`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import DeviceLostError
from feinsum.free_memory import get_free_memory_bytes
from feinsum.ir import BatchedEinsum, SizeParam, Workload, array, einsum
from feinsum.raising import LoopNest
from feinsum.records import TransformSpec
from feinsum.transforms import Parameters, Space, Transform, register
from feinsum.transforms.plugins import VARIABLE

ODD_EXTENT = 13
TUNED_SIZE = 64
COUNTER = "ODD_TRANSFORMS_COUNTER"
"""Environment variable with the file in which some of them write what they did."""


def odd_einsum(size: int | str = "N") -> BatchedEinsum:
    """The only einsum that the odd transforms fit: a matrix-vector product."""
    return einsum("ij,j->i", array("A", (size, ODD_EXTENT)), array("x", ODD_EXTENT))


def _space(workload: Workload) -> Space | None:
    einsum = workload.einsum
    summed = {einsum.extents[i] for i in einsum.summation_indices}
    if einsum.n_operands != 2 or len(einsum.output) != 1 or summed != {ODD_EXTENT}:
        return None
    return {"size": (4, 8)}


def _right(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Only cuts the loop; what it prints must not reach the tuner."""
    print('{"outcomes": []}', flush=True)
    os.write(1, b"noise\n")
    return lp.split_iname(t_unit, _row_iname(nest), parameters["size"], outer_tag="g.0")


def _double(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    return _with_value(t_unit, nest, lambda value: p.Product((2, value)))


def _crooked(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Right up to the size at which it is tuned, wrong beyond it."""
    is_known = p.Comparison(var(_row_iname(nest)), "<", TUNED_SIZE)
    return _with_value(t_unit, nest, lambda value: p.If(is_known, value, 0.0))


def _drop_last(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Forgets the last row, as a recipe without a remainder would."""
    extent = nest.extent(nest.einsum.output[0])
    end = var(extent.name) if isinstance(extent, SizeParam) else extent
    is_kept = p.Comparison(var(_row_iname(nest)), "<", end - 1)
    return _with_value(t_unit, nest, lambda value: p.If(is_kept, value, 0.0))


def _unbuildable(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    return _with_value(t_unit, nest, lambda value: var("no_such_function")(value))


def _slow(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Right, and many times slower: a sine of a sine and so on, times zero."""

    def change(value: Any) -> Any:
        useless = value
        for _ in range(60):
            useless = var("sin")(useless)
        return value + 0.0 * useless

    return _with_value(t_unit, nest, change)


def _greedy(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Wants all free memory, which a process without a limit could reserve."""
    bytearray(max(1 << 31, get_free_memory_bytes()))
    return t_unit


def _raises(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    raise ValueError("this recipe is broken")


def _fixed(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Breaks where the extent is known at run time only."""
    assert isinstance(nest.extent(nest.einsum.output[0]), int), "unknown extent"
    return t_unit


def _exits(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    os.write(2, b"first words\nfamous last words\n")
    os._exit(3)


def _vanishes(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Ends the process, after all others have passed."""
    os._exit(4)


def _segfaults(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    ctypes.string_at(0)


def _loses_device(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """From now on the device gives nothing to this process."""
    from feinsum.tuning import bench

    bench.verify = _refuse
    return t_unit


def _refuse(*_: Any, **__: Any) -> Any:
    raise DeviceLostError("the device is lost")


def _returns_nothing(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    return None


def _sleeps(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Hangs, together with a process of its own."""
    subprocess.run(["sleep", "3600"], check=True)


def _tires(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Passes its trial (two applications), and fails for ever after."""
    with Path(os.environ[COUNTER]).open("a+b") as counter:
        counter.write(b".")
        counter.flush()
        if counter.tell() > 2:
            raise RuntimeError("tired")
    return t_unit


PARTNER_S = 40.0


def _watched(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """From now on timings of this process are longer, and written down.

    It waits for a second process that does this, so that there are two which time.
    """
    from feinsum.tuning import bench

    here = Path(os.environ[COUNTER]).parent / "watched"
    here.mkdir(exist_ok=True)
    (here / str(os.getpid())).touch()
    end_s = time.monotonic() + PARTNER_S
    while len([*here.iterdir()]) < 2 and time.monotonic() < end_s:
        time.sleep(0.05)

    if bench.interleave.__name__ != "written_down":
        bench.interleave = _written_down(bench.interleave)
    return t_unit


def _written_down(interleave: Any) -> Any:
    def written_down(*args: Any, **policy: Any) -> Any:
        began_s = time.monotonic()
        samples = interleave(*args, **policy)
        time.sleep(0.5)
        with Path(os.environ[COUNTER]).open("a") as file:
            print(os.getpid(), began_s, time.monotonic(), file=file)
        return samples

    return written_down


def _widows(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Kills the worker of a cluster that tries it; of size 4 only the first one."""
    file = Path(os.environ[COUNTER])
    if parameters["size"] == 8 or not file.exists():
        with file.open("a") as killed:
            print(os.getppid(), file=killed)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    return t_unit


def _waits_once(t_unit: Any, nest: LoopNest, parameters: Parameters) -> Any:
    """Never ends the first time that it is tried; is right ever after."""
    file = Path(os.environ[COUNTER])
    if not file.exists():
        file.touch()
        time.sleep(3600)
    return t_unit


def _row_iname(nest: LoopNest) -> str:
    return nest.inames[nest.einsum.output[0]]


def _with_value(t_unit: Any, nest: LoopNest, change: Any) -> Any:
    kernel = t_unit[nest.kernel_name]
    instructions = [
        insn.copy(expression=change(insn.expression))
        if insn.id in nest.instructions
        else insn
        for insn in kernel.instructions
    ]
    return t_unit.with_kernel(kernel.copy(instructions=instructions))


ODD = {
    f"odd{apply.__name__}": Transform(
        f"odd{apply.__name__}", 1, "a test transform", _space, apply
    )
    for apply in (
        _right,
        _double,
        _crooked,
        _drop_last,
        _unbuildable,
        _slow,
        _greedy,
        _raises,
        _returns_nothing,
        _fixed,
        _exits,
        _vanishes,
        _segfaults,
        _loses_device,
        _sleeps,
        _tires,
        _watched,
        _widows,
        _waits_once,
    )
}


def odd_spec(name: str, size: int = 4) -> TransformSpec:
    return ODD[name].spec({"size": size})


if __name__ in os.environ.get(VARIABLE, ""):  # not when pytest looks for doctests
    for _transform in ODD.values():
        register(_transform)
