"""Measure the overhead of `feinsum.call_einsum` over its kernel.

The columns are the *first* call of its kind, with an empty database; the *second* one,
which builds a kernel if numpy computed the first; and medians over rounds of whole
calls (*call*), of *prepared* ones, and of the *kernel* alone, into allocated memory.
*beside* is the difference of the last two. Arrays of the host are computed on the host;
those of an OpenCL device, if there is one, on that device.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

import feinsum
from benchmarks.timing import time_call
from feinsum.calling import clear_call_cache, prepare_call
from feinsum.measure import device_states, open_device
from feinsum.records import InMemoryStore

NO_FACTS = InMemoryStore()
KINDS = (
    ("ij,j->i", ((4, 4), (4,))),
    ("xre,rij,ej->xei", ((3, 3, 1000), (3, 10, 10), (1000, 10))),
    ("ej,ij->ei", ((100_000, 20), (20, 20))),
)


@dataclass(frozen=True)
class Times:
    """The times of a kind of call."""

    first_s: float
    second_s: float
    call_s: float
    prepared_s: float
    kernel_s: float
    numpy_s: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args(arguments).rounds
    queue = open_queue()
    print(HEAD)
    for subscripts, shapes in KINDS:
        arrays = [np.random.default_rng(0).random(shape) for shape in shapes]
        locations = {"host": arrays}
        if queue is not None:
            locations["device"] = [copy_to_device(queue, array) for array in arrays]
        for location, operands in locations.items():
            print(
                format_row(
                    subscripts, location, measure(subscripts, operands, arrays, rounds)
                )
            )


HEAD = (
    "einsum            operands first ms second  call us  prepared  kernel  beside"
    "  numpy"
)


def open_queue() -> Any:
    """Return the queue of the first working OpenCL device, or None."""
    for state in device_states():
        if state.target == "opencl" and state.device and not state.trouble:
            return open_device(state.device.id).queue
    return None


def copy_to_device(queue: Any, array: Any) -> Any:
    import pyopencl.array as cl_array

    return cl_array.to_device(queue, array)


def measure(
    subscripts: str, operands: Sequence[Any], arrays: Sequence[Any], rounds: int
) -> Times:
    """Time calls one after the other, each until its result is complete."""

    def finish(result: Any) -> None:
        if hasattr(result, "queue"):
            result.queue.finish()

    def call() -> None:
        finish(feinsum.call_einsum(subscripts, *operands, database=NO_FACTS))

    clear_call_cache()
    first_s, second_s = time_call(call), time_call(call)
    prepared = prepare_call(subscripts, *operands, database=NO_FACTS)
    inputs = [
        operands[position] if take is None else take(operands[position])
        for position, take in prepared.inputs
    ]
    out = np.empty(prepared.parsed.shape, prepared.parsed.dtype)
    arguments = (inputs,) if hasattr(operands[0], "queue") else (inputs, out)
    return Times(
        first_s,
        second_s,
        median(time_call(call) for _ in range(rounds)),
        median(
            time_call(lambda: finish(prepared.run(operands))) for _ in range(rounds)
        ),
        median(
            time_call(lambda: finish(prepared.caller(*arguments)))
            for _ in range(rounds)
        ),
        median(
            time_call(lambda: np.einsum(subscripts, *arrays)) for _ in range(rounds)
        ),
    )


def format_row(subscripts: str, location: str, times: Times) -> str:
    numbers = (times.call_s, times.prepared_s, times.kernel_s,
               times.prepared_s - times.kernel_s, times.numpy_s)  # fmt: skip
    call, prepared, kernel, overhead, by_numpy = (f"{x * 1e6:.1f}" for x in numbers)
    return (
        f"{subscripts:<17} {location:<8} {times.first_s * 1e3:8.1f} "
        f"{times.second_s * 1e3:6.0f} {call:>8} {prepared:>9} {kernel:>7} "
        f"{overhead:>7} {by_numpy:>6}"
    )


if __name__ == "__main__":
    main()
