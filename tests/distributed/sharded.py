"""Plans as functions of JAX on devices that XLA simulates, and what moves, as JSON.

A program of its own, for the number of devices is set before JAX is imported. Its
argument is a file of plans, one a line.
"""

from __future__ import annotations

import json
import re
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from feinsum.distributed import Plan
from feinsum.errors import PlanError
from tests.distributed.cases import by_numpy, operands_of

KIND = re.compile(
    r"= (.*?) (all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)"
    r"(?:-start)?\("
)


def read_groups(line: str) -> tuple[int, int]:
    """Return the number of devices of a collective, and of each of its groups."""
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        n_groups, n_ranks = map(int, found.groups())
        return n_groups * n_ranks, n_ranks
    if found := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", line):
        sizes = dict(axis.split("=") for axis in found[1].split(","))
        axes = [int(sizes[axis]) for axis in found[2].split(",")]
        return prod(map(int, sizes.values())), prod(axes)
    listed = re.search(r"replica_groups=\{(.*?)\}\}", line)[1]
    n_ranks = listed.partition("}")[0].count(",") + 1
    return listed.count("{") * n_ranks, n_ranks


def count_elements(text: str) -> dict[str, int]:
    """Count by kind what all devices receive in the collectives of a program."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        if (kind := KIND.search(line)) is None:
            continue
        # XLA combines several arrays in one collective
        shapes = re.findall(r"f64\[([\d,]*)\]", kind[1])
        size = sum(prod(int(n) for n in shape.split(",") if n) for shape in shapes)
        if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", line):
            moves = re.findall(r"(\d+),(\d+)", pairs[1])
            n_moves = sum(source != target for source, target in moves)
            counts[kind[2]] = counts.get(kind[2], 0) + size * n_moves
            continue
        n_devices, n_ranks = read_groups(line)
        # a device has its part of what is gathered
        share = (n_ranks - 1) / (n_ranks if kind[2] == "all-gather" else 1)
        counts[kind[2]] = counts.get(kind[2], 0) + round(n_devices * size * share)
    return counts


def try_plan(plan: Plan) -> dict[str, Any]:
    """Return what moves, whether results and gradients are numpy's, and where."""
    import jax  # tests that collect this file may have none

    try:
        function = plan.to_jax()
    except PlanError as error:
        return {"error": str(error)}
    operands = operands_of(plan.batched_einsum)
    arrays = {
        name: jax.device_put(array, function.starts[name])
        for name, array in operands.items()
    }
    compiled = jax.jit(function).lower(arrays).compile()
    result, sharding = compiled(arrays)["out"], function.results["out"]
    total = jax.grad(lambda values: function(values)["out"].sum())(arrays)
    # the total is linear in each operand
    gradients = [float((total[name] * operands[name]).sum()) for name in operands]
    expected = by_numpy(plan.batched_einsum, operands)
    return {
        "moved": count_elements(compiled.as_text()),
        "is_right": bool((np.asarray(result) == expected).all())
        and gradients == [float(expected.sum())] * len(operands),
        "is_placed": result.sharding.is_equivalent_to(sharding, result.ndim),
    }


if __name__ == "__main__":
    import jax

    jax.config.update("jax_enable_x64", True)
    for line in Path(sys.argv[1]).read_text().splitlines():
        print(json.dumps(try_plan(Plan.from_json(line))), flush=True)
