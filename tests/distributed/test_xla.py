"""An oracle: XLA finds the reductions of a plan, if it gets the plan's placement.

Of two operands it finds them all by itself; of more, a sum over axes is requested.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import groupby

import numpy as np
import pytest

from benchmarks.papers.schedules import named_plan
from feinsum.distributed import Plan, plan
from tests.children import run_python
from tests.distributed.cases import einsum_of
from tests.docs.pages import ROOT
from tests.portions import spread

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")

MTTKRP = einsum_of("ijk,ja,ka->ia", i=48, j=40, k=32, a=16)
PRODUCT = einsum_of("ij,jk->ik", i=48, j=40, k=32)
PLANS = {
    "mttkrp": named_plan("ballard", MTTKRP, processes=8),
    "johnson": named_plan("johnson", PRODUCT, processes=8),
    "planned": plan(PRODUCT, processes=8),
    "rows": named_plan("rows", einsum_of("ijk,kl->ijl", i=48, j=8, k=6, l=4),
                       processes=8),
}  # fmt: skip


def asked(made: Plan) -> list[dict]:
    """The collectives of XLA, for what the leaves of the only group need."""
    (group,), (schedule,) = made.groups, made.schedules
    names = [f"m{k}" for k in range(schedule.machine.n_axes)]

    def cuts(access) -> list[list[str]]:
        return [[names[k] for k in schedule.cuts(i)] for i in access.indices]

    given = {
        "grid": schedule.machine.sizes,
        "axes": names,
        "subscripts": group.subscripts,
        "shapes": [made.shape(access.tensor) for access in group.inputs],
        "needs": [cuts(access) for access in group.inputs],
        "output": cuts(group.output),
        "summed": [names[k] for k in schedule.summed_axes(group)],
    }
    environment = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={made.processes}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    words = "-m", "tests.distributed.sharded", json.dumps(given)
    done = run_python(*words, **environment)
    return json.loads(done.stdout.splitlines()[-1])


def reduction(made: Plan) -> tuple[list[int], list[list[int]]]:
    """The block of partial sums, and the ranks that add theirs up."""
    (group,), (schedule,) = made.groups, made.schedules
    shape = made.shape(group.output.tensor)
    boxes = schedule.needs(group.output).boxes(shape, made.processes)
    ranks = sorted(
        range(made.processes), key=lambda rank: (boxes.first[rank].tolist(), rank)
    )
    groups = [list(of) for _, of in groupby(ranks, key=boxes.box)]
    return list(map(len, boxes.box(0))), groups


def members(text: str) -> list[list[int]]:
    """Groups as XLA writes them: lists, or a permuted grid of all devices."""
    if text.startswith("{{"):
        return json.loads(text.replace("{", "[").replace("}", "]"))
    shape, _, rest = text.partition("<=")
    dims, _, order = rest.partition("T")
    grid = np.arange(np.prod(json.loads(dims))).reshape(json.loads(dims))
    if order:
        grid = grid.transpose(json.loads(order.replace("(", "[").replace(")", "]")))
    return grid.reshape(json.loads(shape)).tolist()


@pytest.mark.parametrize("name", spread(PLANS, 1))
def test_xla_reduces_as_the_plan_does(name):
    """XLA reduces the block that the plan counts once, in the same groups of ranks."""
    made = PLANS[name]
    block, groups = reduction(made)
    found = asked(made)
    if len(groups) == made.processes:
        assert found == []
        return
    (one,) = found
    assert one["name"] == "all-reduce"
    assert [int(n) for n in one["shape"].split(",")] == block
    assert sorted(map(sorted, members(one["groups"]))) == sorted(groups)
    size = np.prod(block)
    assert made.counts.reduced == sum((len(g) - 1) * size for g in groups)
