"""What a call costs beside its kernel: `feinsum.call_einsum` on small and long arrays.

Prints a table. *first* is the first call of its kind, with an empty database, *second*
the next one, which builds a kernel if numpy answered the first; *call*, *prepared* and
*kernel* are medians over rounds, *kernel* into memory that is there;
*beside* is what a prepared call adds to that. Arrays of the host are computed on the
host; those of a device, where one of OpenCL works, on that device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import feinsum
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
    """In seconds."""

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
    queue = opencl_queue()
    print(HEAD)
    for subscripts, shapes in KINDS:
        arrays = [np.random.default_rng(0).random(shape) for shape in shapes]
        locations = {"host": arrays}
        if queue is not None:
            locations["device"] = [on_device(queue, array) for array in arrays]
        for location, operands in locations.items():
            print(
                row(subscripts, location, measure(subscripts, operands, arrays, rounds))
            )


HEAD = (
    "einsum            operands first ms second  call us  prepared  kernel  beside"
    "  numpy"
)


def opencl_queue() -> Any:
    """Of the first device of OpenCL that works; None if there is none."""
    for state in device_states():
        if state.target == "opencl" and state.device and not state.trouble:
            return open_device(state.device.id).queue
    return None


def on_device(queue: Any, array: Any) -> Any:
    import pyopencl.array as cl_array

    return cl_array.to_device(queue, array)


def measure(
    subscripts: str, operands: Sequence[Any], arrays: Sequence[Any], rounds: int
) -> Times:
    """One call after the other, each until its result is there."""

    def finished(result: Any) -> None:
        if hasattr(result, "queue"):
            result.queue.finish()

    def call() -> None:
        finished(feinsum.call_einsum(subscripts, *operands, database=NO_FACTS))

    clear_call_cache()
    first_s, second_s = seconds(call), seconds(call)
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
        median(seconds(call) for _ in range(rounds)),
        median(
            seconds(lambda: finished(prepared.run(operands))) for _ in range(rounds)
        ),
        median(
            seconds(lambda: finished(prepared.caller(*arguments)))
            for _ in range(rounds)
        ),
        median(seconds(lambda: np.einsum(subscripts, *arrays)) for _ in range(rounds)),
    )


def seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def row(subscripts: str, location: str, times: Times) -> str:
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
