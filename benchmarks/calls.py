"""What a call costs beside its kernel: `feinsum.call_einsum` on small and long arrays.

Prints a table. *first* is the first call of its kind, with an empty database; *call*
and *kernel* are medians over rounds; *beside* is what is left, that is Python, Loopy's
launcher, and for arrays of the host their copies to the device and back.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyopencl.array as cl_array

import feinsum
from feinsum.calling import clear_call_cache, prepare_call
from feinsum.measure import open_device
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
    call_s: float
    kernel_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    queue = open_device().queue
    print("einsum            operands   first ms    call us  kernel us  beside us")
    for subscripts, shapes in KINDS:
        arrays = [np.random.default_rng(0).random(shape) for shape in shapes]
        on_device = [cl_array.to_device(queue, array) for array in arrays]
        for place, operands in (("host", arrays), ("device", on_device)):
            times = measure(subscripts, operands, rounds)
            print(row(subscripts, place, times))


def measure(subscripts: str, operands: Sequence[Any], rounds: int) -> Times:
    """One call after the other, each until its result is there."""

    def call() -> None:
        result = feinsum.call_einsum(subscripts, *operands, database=NO_FACTS)
        if isinstance(result, cl_array.Array):
            result.queue.finish()

    clear_call_cache()
    first_s = seconds(call)
    call_s = median(seconds(call) for _ in range(rounds))
    prepared = prepare_call(subscripts, *operands, database=NO_FACTS)
    t_unit = prepared.kernel.t_unit
    arguments = {
        feed.name: host(operands[feed.position]) for feed in prepared.reading.feeds
    }
    sizes = prepared.reading.sizes
    kernel_s = median(feinsum.timeit(t_unit, {**arguments, **sizes}, rounds=rounds))
    return Times(first_s, call_s, kernel_s)


def host(array: Any) -> Any:
    return array.get() if isinstance(array, cl_array.Array) else array


def seconds(call: Callable[[], None]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def row(subscripts: str, place: str, times: Times) -> str:
    beside_us = (times.call_s - times.kernel_s) * 1e6
    return (
        f"{subscripts:<17} {place:<8} {times.first_s * 1e3:10.0f} "
        f"{times.call_s * 1e6:10.0f} {times.kernel_s * 1e6:10.0f} {beside_us:10.0f}"
    )


if __name__ == "__main__":
    main()
