"""Compare programs on one machine with numpy, torch and JAX, in one process.

Contenders take turns, each after a pause in which all threads are idle, and all results
are compared with the reference. Arrays are converted before timing, and results are not
converted. Times are minima over rounds. Peaks of memory are those of fresh processes,
beyond their memory before a run: as the system reports them, without memory that
allocators reuse.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import geometric_mean
from typing import Any

import numpy as np
import opt_einsum
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

import feinsum
from benchmarks.experiments.machine import describe_processor
from benchmarks.processes import read_memory_bytes, reset_peak_memory, run_command
from benchmarks.timing import time_call, wait_until_idle
from feinsum.programs import (
    Program,
    attention,
    ccsd_doubles,
    evaluate_program,
    feed_forward_step,
    run_program,
)

STDERR = Console(stderr=True)
PAUSE_S = 0.2
WARMUP = 40
"""Runs in which ours builds kernels, and selects the fastest."""
Arrays = Mapping[str, Any]
Contender = Callable[[Arrays], Any]


@dataclass(frozen=True)
class Task:
    """A program, and the same written by hand.

    Attributes:
        by_arrays: takes a module like numpy, its einsum and the inputs; also for JAX.
        by_torch: takes the inputs as tensors.
    """

    program: Program
    by_arrays: Callable[[Any, Any, Arrays], Any]
    by_torch: Contender


def make_attention_task(scale: float, dtype: str) -> Task:
    """Make attention of four examples with eight heads: 512 tokens, 64 features a
    head.
    """
    tokens = max(4, round(512 * scale))
    p = feinsum.program()
    Q, K, V = (p.input(name, (tokens, 32, 64), dtype) for name in "QKV")
    attention(p, Q, K, V)

    def by_arrays(xp: Any, einsum: Any, a: Arrays) -> Any:
        scores = einsum("shd,thd->hst", a["Q"], a["K"]) / 8
        powers = xp.exp(scores - scores.max(axis=2, keepdims=True))
        powers = powers / powers.sum(axis=2, keepdims=True)
        return einsum("hst,thd->shd", powers, a["V"])

    def by_torch(a: Arrays) -> Any:
        import torch

        Q, K, V = (a[name].transpose(0, 1) for name in "QKV")
        result = torch.nn.functional.scaled_dot_product_attention(Q, K, V)
        return result.transpose(0, 1)

    return Task(p.build(), by_arrays, by_torch)


def make_training_task(scale: float, dtype: str) -> Task:
    """Make a training step of two layers: 1024 examples, 512 features, 1024 hidden."""
    n, features, inner = (max(4, round(x * scale)) for x in (1024, 512, 1024))
    p = feinsum.program()
    X, Y = p.input("X", (n, features), dtype), p.input("Y", (n, features), dtype)
    V = p.input("V", (features, inner), dtype)
    W = p.input("W", (inner, features), dtype)
    for weights in feed_forward_step(p, X, Y, [V, W], rate=1e-3):
        p.output(weights)

    def take_step(a: Arrays, positive: Callable[[Any], Any]) -> Any:
        hidden = a["X"] @ a["V"]
        Z = positive(hidden)
        error = Z @ a["W"] - a["Y"]
        back = (error @ a["W"].T) * (hidden > 0)
        return a["V"] - 1e-3 * (a["X"].T @ back), a["W"] - 1e-3 * (Z.T @ error)

    def by_torch(a: Arrays) -> Any:
        import torch

        return take_step(a, torch.relu)

    return Task(
        p.build(), lambda xp, _, a: take_step(a, lambda x: xp.maximum(x, 0)), by_torch
    )


def make_ccsd_task(scale: float, dtype: str) -> Task:
    """Make terms of the doubles: 20 occupied orbitals, 60 virtual ones."""
    o, v = (max(2, round(x * scale)) for x in (20, 60))
    p = feinsum.program()
    ccsd_doubles(p, o, v, dtype)
    ladder, holes, ring = "ijef,efab->ijab", "mnij,mnab->ijab", "imae,mbej->ijab"

    def compute_terms(einsum: Callable[..., Any], a: Arrays) -> Any:
        both = einsum(ladder, a["t"], a["vvvv"]) + einsum(holes, a["oooo"], a["t"])
        r = einsum(ring, a["t"], a["ovvo"])
        turned = r.swapaxes(2, 3)
        antisymmetric = r - r.swapaxes(0, 1) - turned + turned.swapaxes(0, 1)
        return a["oovv"] + 0.5 * both + antisymmetric

    def by_torch(a: Arrays) -> Any:
        import torch

        return compute_terms(torch.einsum, a)

    return Task(p.build(), lambda _, einsum, a: compute_terms(einsum, a), by_torch)


def make_dg_task(scale: float, dtype: str) -> Task:
    """Make the right-hand side of advection, three fields on tetrahedra of order three.

    It is the derivative in the elements, less half the jumps at their faces, lifted.
    """
    n = max(4, round(20000 * scale))
    p = feinsum.program()
    D, J = p.input("D", (3, 20, 20), dtype), p.input("J", (3, n), dtype)
    L, F = p.input("L", (4, 20, 10), dtype), p.input("F", (4, n), dtype)
    for field in "abc":
        u = p.input(f"u{field}", (n, 20), dtype)
        inside, outside = (p.input(x + field, (4, n, 10), dtype) for x in "io")
        jump = p.map("0.5*(x0 - x1)", inside, outside)
        lifted = p.einsum("fij,fe,fej->ei", L, F, jump)
        volume = p.einsum("re,rij,ej->ei", J, D, u)
        p.output(p.map("x0 - x1", volume, lifted))

    def compute_rates(einsum: Callable[..., Any], a: Arrays) -> Any:
        return tuple(
            einsum("re,rij,ej->ei", a["J"], a["D"], a[f"u{x}"])
            - einsum("fij,fe,fej->ei", a["L"], a["F"], 0.5 * (a[f"i{x}"] - a[f"o{x}"]))
            for x in "abc"
        )

    def by_torch(a: Arrays) -> Any:
        import torch

        return compute_rates(torch.einsum, a)

    return Task(p.build(), lambda _, einsum, a: compute_rates(einsum, a), by_torch)


TASKS = {
    "attention": make_attention_task,
    "training": make_training_task,
    "ccsd": make_ccsd_task,
    "dg": make_dg_task,
}


@dataclass(frozen=True)
class Ready:
    """A contender that is bound to its arrays."""

    run: Contender
    arrays: Arrays

    def __call__(self) -> Any:
        return self.run(self.arrays)


def bind_contender(name: str, task: Task, arrays: Arrays) -> Ready:
    """Bind a contender to arrays."""
    if name == "feinsum":
        return Ready(lambda a: run_program(task.program, a), arrays)
    if name == "numpy":
        return Ready(lambda a: task.by_arrays(np, opt_einsum.contract, a), arrays)
    if name == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        numpy = jax.numpy
        by_jax = jax.jit(lambda a: task.by_arrays(numpy, numpy.einsum, a))
        arguments = {name: numpy.asarray(array) for name, array in arrays.items()}
        return Ready(lambda a: jax.block_until_ready(by_jax(a)), arguments)
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    is_compiled = name == "compiled"
    return Ready(
        torch.compile(task.by_torch) if is_compiled else task.by_torch, tensors
    )


NEEDS = {"feinsum": "numpy", "numpy": "numpy", "jax": "jax", "torch": "torch",
         "compiled": "torch"}  # fmt: skip
"""Modules that contenders require; ``compiled`` is torch.compile."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--dtype", nargs="*", default=["float64", "float32"])
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor of all extents"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--without", nargs="*", default=[], choices=list(NEEDS))
    parser.add_argument("--peak", choices=list(NEEDS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.peak:
        (name,), (dtype,) = options.only, options.dtype
        print(run_for_peak(options.peak, TASKS[name](options.scale, dtype)))
        return
    installed = [n for n in NEEDS if find_spec(NEEDS[n]) and n not in options.without]
    jobs = [(name, dtype) for name in options.only for dtype in options.dtype]
    rows = [
        {"program": name, "dtype": dtype}
        | measure(TASKS[name](options.scale, dtype), installed, options.rounds)
        | {f"{n}_bytes": measure_peak(n, name, dtype, options.scale) for n in installed}
        for name, dtype in track(jobs, "programs", console=STDERR)
    ]
    if options.json:
        print(json.dumps({"processor": describe_processor(), "rows": rows}, indent=1))
        return
    console = Console(width=150)
    console.print(describe_processor(), highlight=False)
    console.print(make_table(rows, installed))
    ratios = [row["ratio"] for row in rows]
    print(f"geometric mean {geometric_mean(ratios):.2f}")


def draw_inputs(task: Task) -> Arrays:
    source = np.random.default_rng(0)
    return {
        x.name: source.uniform(-1, 1, x.shape).astype(x.dtype) / 8
        for x in task.program.inputs
    }


def measure(task: Task, names: list[str], rounds: int) -> dict[str, Any]:
    """Return the least seconds of all contenders, and the ratio to the best rival."""
    arrays = draw_inputs(task)
    contenders = {name: bind_contender(name, task, arrays) for name in names}
    expected = [*evaluate_program(task.program, arrays).values()]
    for name, contestant in contenders.items():
        for _ in range(WARMUP if name == "feinsum" else 3):
            check(name, contestant(), expected)
    seconds: dict[str, float] = {}
    for _ in range(rounds):
        for name, contestant in contenders.items():
            wait_until_idle(PAUSE_S)
            contestant()
            elapsed_s = time_call(contestant)
            seconds[name] = min(seconds.get(name, elapsed_s), elapsed_s)
    best = min((s for name, s in seconds.items() if name != "feinsum"), default=0.0)
    return {**seconds, "ratio": best / seconds["feinsum"]}


def measure_peak(name: str, task: str, dtype: str, scale: float) -> int:
    """Return the peak memory of a run in a fresh process, beyond that before the run.

    In that process, freed memory is returned to the system.
    """
    variables = {"FEINSUM_IDLE_BYTES": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--peak", name, "--only", task]
    command += ["--dtype", dtype, "--scale", str(scale)]
    return int(run_command(command, os.environ | variables).split()[-1])


def run_for_peak(name: str, task: Task) -> int:
    contestant = bind_contender(name, task, draw_inputs(task))
    for _ in range(WARMUP):
        contestant()
    gc.collect()
    reset_peak_memory()
    before = read_memory_bytes("VmRSS")
    contestant()
    return read_memory_bytes("VmHWM") - before


def check(name: str, value: Any, expected: list[Any]) -> None:
    results = [*value.values()] if isinstance(value, Mapping) else value
    results = results if isinstance(results, list | tuple) else [results]
    for result, right in zip(results, expected, strict=True):
        scale = np.abs(right).max()
        tolerance = 1e-3 if right.dtype.itemsize == 4 else 1e-10
        result = np.asarray(result)
        if not np.allclose(result / scale, right / scale, 0, tolerance):
            raise SystemExit(f"{name} computes something else")


def make_table(rows: list[dict[str, Any]], names: list[str]) -> Table:
    heads = [f"{name} ms" for name in names] + ["best rival / ours"]
    heads += [f"{name} MB" for name in names]
    table = Table("program", "dtype", *heads, box=box.MARKDOWN)
    for row in rows:
        times = [f"{row[name] * 1e3:.1f}" for name in names]
        peaks = [f"{row[f'{n}_bytes'] / 1e6:.0f}" for n in names]
        table.add_row(
            row["program"], row["dtype"], *times, f"{row['ratio']:.2f}", *peaks
        )
    return table


if __name__ == "__main__":
    main()
