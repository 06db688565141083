"""What plans of programs move, counted, beside what XLA and dask.array would move.

Nothing is timed. Plans are counted by their steps. For XLA the program is compiled for
as many devices, its inputs placed as the plan places them, and the collectives in its
HLO are counted; an array that the plan has at one place only is everywhere for XLA. For
dask.array it is run, with inputs in as many chunks of rows, and the bytes that workers
send are counted, at a smaller size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import feinsum
from benchmarks.experiments.collectives import moved_in
from feinsum.distributed import ProgramPlan
from feinsum.programs import (
    ProgramBuilder,
    chain,
    feed_forward_step,
    multi_head_attention,
)

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """A program of some size, and the same in the words of numpy."""

    build: Callable[[int], ProgramBuilder]
    by_numpy: Callable[[Any, Arrays], Any]
    size: int
    small: int


def _attention(tokens: int) -> ProgramBuilder:
    p = feinsum.program()
    features = max(64, tokens)
    X = p.input("X", (tokens, features))
    multi_head_attention(p, X, heads=features // 16, entries=16)
    return p


def _attention_by_numpy(xp: Any, a: Arrays) -> Any:
    Q, K, V = (xp.einsum("sa,ahd->shd", a["X"], a[f"W{n}"]) for n in "QKV")
    scores = xp.einsum("shd,thd->hst", Q, K) / 4.0
    powers = xp.exp(scores - scores.max(axis=2, keepdims=True))
    shares = powers / powers.sum(axis=2, keepdims=True)
    return xp.einsum("shd,ahd->sa", xp.einsum("hst,thd->shd", shares, V), a["WO"])


def _step(n: int) -> ProgramBuilder:
    p = feinsum.program()
    X, Y = p.input("X", (2 * n, n)), p.input("Y", (2 * n, n))
    V, W = p.input("V", (n, 2 * n)), p.input("W", (2 * n, n))
    for weights in feed_forward_step(p, X, Y, [V, W], rate=1e-3):
        p.output(weights)
    return p


def _step_by_numpy(xp: Any, a: Arrays) -> Any:
    hidden = a["X"] @ a["V"]
    Z = xp.maximum(hidden, 0)
    error = Z @ a["W"] - a["Y"]
    back = (error @ a["W"].T) * (hidden > 0)
    return a["V"] - 1e-3 * (a["X"].T @ back), a["W"] - 1e-3 * (Z.T @ error)


def _chain(n: int) -> ProgramBuilder:
    p = feinsum.program()
    chain(p, *(p.input(name, (n, n)) for name in "ABCD"))
    return p


def _chain_by_numpy(xp: Any, a: Arrays) -> Any:
    return a["A"] @ a["B"] @ a["C"] @ a["D"]


TASKS = {
    "attention": Task(_attention, _attention_by_numpy, 1024, 256),
    "training": Task(_step, _step_by_numpy, 1024, 256),
    "chain": Task(_chain, _chain_by_numpy, 2048, 512),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes")
    parser.add_argument("--xla", metavar="TASK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.xla:
        print(by_xla(options.xla, options.processes, options.scale))
        return
    print("| program | planned | XLA | planned, small | dask.array, small |")
    print("|---|---|---|---|---|")
    for name in options.only:
        large, small = planned(name, options), planned(name, options, is_small=True)
        cells = [
            large.counts.moved,
            in_child(name, options.processes, options.scale),
            small.counts.moved,
            by_dask(TASKS[name], small, options.processes),
        ]
        print(f"| {name} | " + " | ".join(f"{n:,}" for n in cells) + " |", flush=True)


def planned(name: str, options: Any, *, is_small: bool = False) -> ProgramPlan:
    task = TASKS[name]
    size = round((task.small if is_small else task.size) * options.scale)
    return task.build(size).plan(options.processes)


def in_child(name: str, processes: int, scale: float) -> int:
    """XLA reads the number of devices when it starts."""
    flags = f"--xla_force_host_platform_device_count={processes}"
    arguments = ["--xla", name, "--processes", str(processes), "--scale", str(scale)]
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks.programs_moved", *arguments],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(json.loads(completed.stdout.splitlines()[-1]))


def by_xla(name: str, processes: int, scale: float) -> int:
    """Elements in the collectives that XLA makes."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_enable_x64", True)
    task = TASKS[name]
    program_plan = task.build(round(task.size * scale)).plan(processes)
    arrays = {}
    for operand in program_plan.program.inputs:
        start = program_plan.plan.starts[operand.name]
        axes = [f"m{k}" for k in range(len(start.machine.sizes))]
        devices = np.array(jax.devices()[: start.machine.n_processes])
        mesh = Mesh(devices.reshape(start.machine.sizes), axes)
        cuts = [tuple(axes[k] for k in cut) or None for cut in start.cuts]
        sharding = NamedSharding(mesh, PartitionSpec(*cuts))
        arrays[operand.name] = jax.ShapeDtypeStruct(
            operand.shape, "float64", sharding=sharding
        )
    work = jax.jit(lambda given: task.by_numpy(jax.numpy, given))
    return moved_in(work.lower(arrays).compile().as_text(), processes)


def by_dask(task: Task, program_plan: ProgramPlan, processes: int) -> int:
    """Elements that the workers of Dask send each other."""
    import dask.array as da
    import numpy as np
    from distributed import Client, LocalCluster, wait

    source = np.random.default_rng(0)
    with (
        LocalCluster(
            n_workers=processes,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        arrays = {}
        for x in program_plan.program.inputs:
            chunks = (-(-x.shape[0] // processes), *x.shape[1:])
            arrays[x.name] = da.from_array(source.random(x.shape), chunks).persist()
        wait(list(arrays.values()))
        before = sum(client.run(_sent).values())
        found = task.by_numpy(da, arrays)
        results = found if isinstance(found, tuple) else (found,)
        wait(list(client.persist(list(results))))
        return (sum(client.run(_sent).values()) - before) // 8


def _sent(dask_worker: Any) -> int:
    return int(dask_worker.transfer_outgoing_bytes_total)


if __name__ == "__main__":
    main()
