"""Compare calls of random einsums with numpy and torch.

``python -m benchmarks.random_calls --seed 1`` draws subscripts, extents and orders of
axes, of one to three operands, and times each call on one core: feinsum, both variants
of numpy and, if it is installed, torch, in turns. Then it prints the number of calls,
the geometric mean of the ratios to the fastest rival, the share of calls that are
slower than it by a fifth, and the worst calls.

Rivals may return a result in any order of its axes; feinsum's is in C order.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Iterator, Sequence
from math import prod
from statistics import geometric_mean
from time import perf_counter
from typing import Any, NamedTuple

if __name__ == "__main__":  # before numpy and torch count their threads
    LIBRARIES = "FEINSUM", "OPENBLAS", "OMP", "MKL"
    os.environ |= {f"{name}_NUM_THREADS": "1" for name in LIBRARIES}

import numpy as np

import feinsum
from benchmarks.timing import time_call

EXTENTS = (2, 3, 4, 6, 8, 10, 16, 20, 32, 48, 64, 100, 128, 200, 256, 400, 512, 1000,
           3000)  # fmt: skip
MAX_ENTRIES, MIN_POINTS, MAX_POINTS = 6e6, 1e4, 6e8
"""Limits of the entries of an array, and of the index tuples of an einsum."""
MAX_LOOP_POINTS = 3e7
"""Index tuples above which numpy without a path takes too long."""
ROUNDS = 5
SLOWER = 0.8


class Drawn(NamedTuple):
    """An einsum, with the extents of its indices."""

    subscripts: str
    extents: dict[str, int]

    @property
    def n_points(self) -> int:
        return prod(self.extents.values())


class Compared(NamedTuple):
    """The ratio of the fastest rival's seconds to ours, and the seconds."""

    ratio: float
    drawn: Drawn
    seconds: dict[str, float]

    def __str__(self) -> str:
        times = ", ".join(f"{k} {s * 1e6:.0f}" for k, s in self.seconds.items())
        subscripts, extents = self.drawn
        return f"{self.ratio:5.2f} {subscripts:26} {times} us {extents}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the drawn einsums")
    parser.add_argument("--seconds", type=float, default=60, help="time to spend")
    parser.add_argument("--worst", type=int, default=20, help="calls to print")
    options = parser.parse_args(arguments)
    end = perf_counter() + options.seconds
    compared: list[Compared] = []
    for drawn in draw_einsums(random.Random(options.seed)):
        compared.append(compare(drawn))
        if perf_counter() > end:
            break
    ratios = [x.ratio for x in compared]
    n_slower = sum(ratio < SLOWER for ratio in ratios)
    print(
        f"{len(ratios)} calls, mean ratio {geometric_mean(ratios):.2f}, "
        f"{n_slower / len(ratios):.0%} below {SLOWER}"
    )
    for x in sorted(compared)[: options.worst]:
        print(x)


def draw_einsums(rng: random.Random) -> Iterator[Drawn]:
    """Yield random einsums within the limits, without end."""
    while True:
        names = "abcdef"[: rng.randint(2, 6)]
        n_operands = rng.choice([1, 2, 2, 2, 2, 3])
        extents = {index: rng.choice(EXTENTS) for index in names}
        terms: list[list[str]] = [[] for _ in range(n_operands)]
        for index in names:
            carriers = [term for term in terms if rng.random() < 0.6]
            for term in carriers or [rng.choice(terms)]:
                term.append(index)
        terms.append([index for index in names if rng.random() < 0.6])
        sizes = [prod(extents[index] for index in term) for term in terms]
        is_usual = MIN_POINTS <= prod(extents.values()) <= MAX_POINTS
        if not all(terms[:-1]) or max(sizes) > MAX_ENTRIES or not is_usual:
            continue
        for term in terms:
            rng.shuffle(term)
        *inputs, output = map("".join, terms)
        yield Drawn(f"{','.join(inputs)}->{output}", extents)


def compare(drawn: Drawn) -> Compared:
    """Time all variants in turns, after a first call of each."""
    rng = np.random.default_rng(0)
    terms = drawn.subscripts.partition("->")[0].split(",")
    operands = [rng.random([drawn.extents[i] for i in term]) for term in terms]
    calls = list_calls(drawn, operands)
    for call in calls.values():
        call()
    seconds = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            seconds[name] = min(seconds[name], time_call(call))
    fastest_s = min(s for name, s in seconds.items() if name != "feinsum")
    return Compared(fastest_s / seconds["feinsum"], drawn, seconds)


def list_calls(drawn: Drawn, operands: list[Any]) -> dict[str, Callable[[], object]]:
    """Return our call and those of the rivals."""
    text = drawn.subscripts
    calls: dict[str, Callable[[], object]] = {
        "feinsum": lambda: feinsum.einsum(text, *operands),
        "numpy": lambda: np.einsum(text, *operands, optimize=True),
    }
    if len(operands) < 3 and drawn.n_points < MAX_LOOP_POINTS:
        calls["loops"] = lambda: np.einsum(text, *operands)
    try:
        import torch
    except ImportError:
        return calls
    tensors = [torch.from_numpy(operand) for operand in operands]
    return calls | {"torch": lambda: torch.einsum(text, *tensors)}


if __name__ == "__main__":
    main()
