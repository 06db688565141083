"""Programs on one machine against what else people run, in one process.

Contenders take turns, each after a pause in which no thread of the process works, and
all results are compared with the reference. Seconds are the least of the rounds. Peaks
of memory are those that Python's allocator sees; torch's own is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import opt_einsum
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import feinsum  # noqa: E402
from benchmarks.experiments.contest import settle  # noqa: E402
from benchmarks.experiments.machine import processor  # noqa: E402
from feinsum.programs import (  # noqa: E402
    Program,
    attention,
    ccsd_doubles,
    evaluate_program,
    feed_forward_step,
    run_program,
)

STDERR = Console(stderr=True)
PAUSE_S = 0.2
Arrays = Mapping[str, Any]
Contender = Callable[[Arrays], Any]


@dataclass(frozen=True)
class Task:
    """A program, and the same by hand for each rival."""

    program: Program
    by_numpy: Contender
    by_torch: Contender


def attention_task(scale: float, dtype: str) -> Task:
    """Four examples of eight heads: 512 tokens, 64 entries a head."""
    tokens = max(4, round(512 * scale))
    p = feinsum.program()
    Q, K, V = (p.input(name, (tokens, 32, 64), dtype) for name in "QKV")
    attention(p, Q, K, V)

    def by_numpy(a: Arrays) -> Any:
        scores = opt_einsum.contract("shd,thd->hst", a["Q"], a["K"]) / 8
        powers = np.exp(scores - scores.max(axis=2, keepdims=True))
        powers /= powers.sum(axis=2, keepdims=True)
        return opt_einsum.contract("hst,thd->shd", powers, a["V"])

    def by_torch(a: Arrays) -> Any:
        import torch

        Q, K, V = (torch.from_numpy(a[name]).transpose(0, 1) for name in "QKV")
        found = torch.nn.functional.scaled_dot_product_attention(Q, K, V)
        return found.transpose(0, 1).numpy()

    return Task(p.build(), by_numpy, by_torch)


def training_task(scale: float, dtype: str) -> Task:
    """A step of two layers: 1024 examples, 512 features, 1024 in between."""
    n, features, inner = (max(4, round(x * scale)) for x in (1024, 512, 1024))
    p = feinsum.program()
    X, Y = p.input("X", (n, features), dtype), p.input("Y", (n, features), dtype)
    V = p.input("V", (features, inner), dtype)
    W = p.input("W", (inner, features), dtype)
    for weights in feed_forward_step(p, X, Y, [V, W], rate=1e-3):
        p.output(weights)

    def by_numpy(a: Arrays) -> Any:
        hidden = a["X"] @ a["V"]
        Z = np.maximum(hidden, 0)
        error = Z @ a["W"] - a["Y"]
        back = (error @ a["W"].T) * (hidden > 0)
        return a["V"] - 1e-3 * (a["X"].T @ back), a["W"] - 1e-3 * (Z.T @ error)

    def by_torch(a: Arrays) -> Any:
        import torch

        X, Y, V, W = (torch.from_numpy(a[name]) for name in "XYVW")
        hidden = X @ V
        Z = torch.relu(hidden)
        error = Z @ W - Y
        back = (error @ W.T) * (hidden > 0)
        return (V - 1e-3 * (X.T @ back)).numpy(), (W - 1e-3 * (Z.T @ error)).numpy()

    return Task(p.build(), by_numpy, by_torch)


def ccsd_task(scale: float, dtype: str) -> Task:
    """Terms of the doubles: 20 occupied orbitals, 60 virtual ones."""
    o, v = (max(2, round(x * scale)) for x in (20, 60))
    p = feinsum.program()
    ccsd_doubles(p, o, v)
    ladder, holes, ring = "ijef,efab->ijab", "mnij,mnab->ijab", "imae,mbej->ijab"

    def terms(contract: Callable[..., Any], a: Arrays) -> Any:
        both = contract(ladder, a["t"], a["vvvv"]) + contract(holes, a["oooo"], a["t"])
        r = contract(ring, a["t"], a["ovvo"])
        turned = r.swapaxes(2, 3)
        antisymmetric = r - r.swapaxes(0, 1) - turned + turned.swapaxes(0, 1)
        return a["oovv"] + 0.5 * both + antisymmetric

    def by_torch(a: Arrays) -> Any:
        import torch

        arrays = {name: torch.from_numpy(array) for name, array in a.items()}
        return terms(torch.einsum, arrays).numpy()

    return Task(p.build(), lambda a: terms(opt_einsum.contract, a), by_torch)


TASKS = {"attention": attention_task, "training": training_task, "ccsd": ccsd_task}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--dtype", nargs="*", default=["float64", "float32"])
    parser.add_argument("--scale", type=float, default=1.0, help="of all extents")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    jobs = [(name, dtype) for name in options.only for dtype in options.dtype]
    rows = [
        {"program": name, "dtype": dtype}
        | measured(TASKS[name](options.scale, dtype), options.rounds)
        for name, dtype in track(jobs, "programs", console=STDERR)
    ]
    if options.json:
        print(json.dumps({"processor": processor(), "rows": rows}, indent=1))
        return
    console = Console(width=100)
    console.print(processor(), highlight=False)
    console.print(table_of(rows))
    ratios = [row["ratio"] for row in rows]
    print(f"geometric mean {exp(sum(map(log, ratios)) / len(ratios)):.2f}")


def measured(task: Task, rounds: int) -> dict[str, Any]:
    """Least seconds and peaks of all contenders, and the ratio to the best rival."""
    source = np.random.default_rng(0)
    arrays = {
        x.name: source.uniform(-1, 1, x.shape).astype(x.dtype) / 8
        for x in task.program.inputs
    }
    contenders: dict[str, Contender] = {
        "feinsum": lambda a: run_program(task.program, a),
        "numpy": task.by_numpy,
        "torch": task.by_torch,
    }
    expected = [*evaluate_program(task.program, arrays).values()]
    known = {n: c for n, c in contenders.items() if _is_there(n)}
    for name, contender in known.items():
        for _ in range(3):  # the second call of an einsum builds its kernel
            check(name, contender(arrays), expected)
    seconds: dict[str, float] = {}
    for _ in range(rounds):
        for name, contender in known.items():
            settle(PAUSE_S)
            contender(arrays)
            begun_s = perf_counter()
            contender(arrays)
            took_s = perf_counter() - begun_s
            seconds[name] = min(seconds.get(name, took_s), took_s)
    best = min(s for name, s in seconds.items() if name != "feinsum")
    peaks = {f"{n}_bytes": peak(known[n], arrays) for n in ("feinsum", "numpy")}
    return {**seconds, **peaks, "ratio": best / seconds["feinsum"]}


def _is_there(name: str) -> bool:
    from importlib.util import find_spec

    return name in ("feinsum", "numpy") or find_spec(name) is not None


def check(name: str, found: Any, expected: list[Any]) -> None:
    results = [*found.values()] if isinstance(found, Mapping) else found
    results = results if isinstance(results, list | tuple) else [results]
    for result, right in zip(results, expected, strict=True):
        scale = np.abs(right).max()
        tolerance = 1e-3 if right.dtype.itemsize == 4 else 1e-10
        if not np.allclose(result / scale, right / scale, 0, tolerance):
            raise SystemExit(f"{name} computes something else")


def peak(contender: Contender, arrays: Arrays) -> int:
    tracemalloc.start()
    contender(arrays)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def table_of(rows: list[dict[str, Any]]) -> Table:
    names = [n for n in ("feinsum", "numpy", "torch") if n in rows[0]]
    heads = [
        *(f"{name} ms" for name in names),
        "best rival / ours",
        "ours MB",
        "numpy MB",
    ]
    table = Table("program", "dtype", *heads, box=box.MARKDOWN)
    for row in rows:
        times = [f"{row[name] * 1e3:.1f}" for name in names]
        peaks = [f"{row[f'{n}_bytes'] / 1e6:.0f}" for n in ("feinsum", "numpy")]
        table.add_row(
            row["program"], row["dtype"], *times, f"{row['ratio']:.2f}", *peaks
        )
    return table


if __name__ == "__main__":
    main()
