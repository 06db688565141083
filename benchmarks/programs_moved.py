"""Count the elements that plans of programs move, and those that XLA and dask.array
move.

Nothing is timed. Plans are counted by their steps. For XLA the program is compiled for
as many devices, with inputs placed as the plan places them, and the collectives in its
HLO are counted; an array that the plan has at one place is replicated for XLA.
dask.array runs the program, with inputs in chunks of rows, and the bytes that workers
send are counted, at a smaller size.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import feinsum
from benchmarks.processes import run_command
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
    """A program of some size, and the same in numpy."""

    build: Callable[[int], ProgramBuilder]
    by_numpy: Callable[[Any, Arrays], Any]
    size: int
    small: int


def _build_attention(tokens: int) -> ProgramBuilder:
    p = feinsum.program()
    features = max(64, tokens)
    X = p.input("X", (tokens, features))
    multi_head_attention(p, X, heads=features // 16, entries=16)
    return p


def _compute_attention(xp: Any, a: Arrays) -> Any:
    Q, K, V = (xp.einsum("sa,ahd->shd", a["X"], a[f"W{n}"]) for n in "QKV")
    scores = xp.einsum("shd,thd->hst", Q, K) / 4.0
    powers = xp.exp(scores - scores.max(axis=2, keepdims=True))
    shares = powers / powers.sum(axis=2, keepdims=True)
    return xp.einsum("shd,ahd->sa", xp.einsum("hst,thd->shd", shares, V), a["WO"])


def _build_step(n: int) -> ProgramBuilder:
    p = feinsum.program()
    X, Y = p.input("X", (2 * n, n)), p.input("Y", (2 * n, n))
    V, W = p.input("V", (n, 2 * n)), p.input("W", (2 * n, n))
    for weights in feed_forward_step(p, X, Y, [V, W], rate=1e-3):
        p.output(weights)
    return p


def _compute_step(xp: Any, a: Arrays) -> Any:
    hidden = a["X"] @ a["V"]
    Z = xp.maximum(hidden, 0)
    error = Z @ a["W"] - a["Y"]
    back = (error @ a["W"].T) * (hidden > 0)
    return a["V"] - 1e-3 * (a["X"].T @ back), a["W"] - 1e-3 * (Z.T @ error)


def _build_chain(n: int) -> ProgramBuilder:
    p = feinsum.program()
    chain(p, *(p.input(name, (n, n)) for name in "ABCD"))
    return p


def _compute_chain(xp: Any, a: Arrays) -> Any:
    return a["A"] @ a["B"] @ a["C"] @ a["D"]


TASKS = {
    "attention": Task(_build_attention, _compute_attention, 1024, 256),
    "training": Task(_build_step, _compute_step, 1024, 256),
    "chain": Task(_build_chain, _compute_chain, 2048, 512),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all sizes")
    parser.add_argument("--xla", metavar="TASK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.xla:
        print(count_xla(options.xla, options.processes, options.scale))
        return
    print("| program | planned | XLA | planned, small | dask.array, small |")
    print("|---|---|---|---|---|")
    for name in options.only:
        large, small = make_plan(name, options), make_plan(name, options, is_small=True)
        cells = [
            large.counts.moved,
            count_xla_in_child(name, options.processes, options.scale),
            small.counts.moved,
            count_dask(TASKS[name], small, options.processes),
        ]
        print(f"| {name} | " + " | ".join(f"{n:,}" for n in cells) + " |", flush=True)


def make_plan(name: str, options: Any, *, is_small: bool = False) -> ProgramPlan:
    task = TASKS[name]
    size = round((task.small if is_small else task.size) * options.scale)
    return task.build(size).plan(options.processes)


def count_xla_in_child(name: str, processes: int, scale: float) -> int:
    """Count XLA's elements in a child: XLA reads the number of devices at its start."""
    flags = f"--xla_force_host_platform_device_count={processes}"
    command = [sys.executable, "-m", "benchmarks.programs_moved", "--xla", name]
    command += ["--processes", str(processes), "--scale", str(scale)]
    variables = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return int(run_command(command, os.environ | variables).splitlines()[-1])


def count_xla(name: str, processes: int, scale: float) -> int:
    """Count the elements that the collectives of XLA's program move."""
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
    work = jax.jit(lambda inputs: task.by_numpy(jax.numpy, inputs))
    return count_moved(work.lower(arrays).compile().as_text(), processes)


def count_dask(task: Task, program_plan: ProgramPlan, processes: int) -> int:
    """Count the elements that the workers of Dask send each other."""
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
        before = sum(client.run(_get_sent_bytes).values())
        value = task.by_numpy(da, arrays)
        results = value if isinstance(value, tuple) else (value,)
        wait(list(client.persist(list(results))))
        return (sum(client.run(_get_sent_bytes).values()) - before) // 8


def _get_sent_bytes(dask_worker: Any) -> int:
    return int(dask_worker.transfer_outgoing_bytes_total)


if __name__ == "__main__":
    main()


COLLECTIVE = re.compile(
    r"= (?P<shapes>\(?\w+\[.*?) (?P<name>all-reduce|reduce-scatter|all-gather|"
    r"all-to-all|collective-permute)(?:-start)?\((?P<rest>.*)"
)
SHAPE = re.compile(r"[a-z]+\d*\[([\d,]*)\]")
LISTED = re.compile(r"replica_groups=\{\{(.*?)\}\}")
IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
PAIRS = re.compile(r"source_target_pairs=\{\{(.*?)\}\}")


def count_moved(text: str, n_devices: int) -> int:
    """Count the elements that all devices receive.

    An all-reduce is counted as a reduce-scatter and an all-gather.

    >>> count_moved("%a = f64[8,4]{1,0} all-gather(%p), replica_groups=[2,4]<=[8]", 8)
    192
    >>> count_moved("%a = f64[6]{0} all-reduce(%p), replica_groups={{0,1},{2,3}}", 4)
    24
    """
    return sum(
        _count_collective(*match.groups(), n_devices)
        for match in _find_collectives(text)
    )


def _find_collectives(text: str) -> list[re.Match[str]]:
    return [match for line in text.splitlines() if (match := COLLECTIVE.search(line))]


def _count_collective(shapes: str, name: str, rest: str, n_devices: int) -> int:
    n = sum(prod(map(int, filter(None, s.split(",")))) for s in SHAPE.findall(shapes))
    if name == "collective-permute":
        pairs = PAIRS.search(rest)
        listed = pairs.group(1).split("},{") if pairs else []
        return n * sum(len(set(pair.split(","))) == 2 for pair in listed)
    n_groups, size = _parse_groups(rest, n_devices)
    per_group = {
        "all-reduce": 2 * (size - 1) * n,
        "reduce-scatter": size * (size - 1) * n,
        "all-gather": (size - 1) * n,
        "all-to-all": (size - 1) * n,
    }
    return n_groups * per_group[name]


def _parse_groups(rest: str, n_devices: int) -> tuple[int, int]:
    """Return the number of groups, and of devices in each."""
    if iota := IOTA.search(rest):
        return int(iota.group(1)), int(iota.group(2))
    if listed := LISTED.search(rest):
        groups = listed.group(1).split("},{")
        return len(groups), len(groups[0].split(","))
    return 1, n_devices
