"""Plans as functions of JAX: XLA moves what the plan counts."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from benchmarks.papers.schedules import make_named_plan
from feinsum.distributed import plan, with_cyclic
from feinsum.errors import PlanError
from tests.children import run_python
from tests.distributed.cases import einsum_of
from tests.distributed.test_sparse import MTTKRP as SPARSE
from tests.docs.pages import ROOT

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")

MTTKRP = einsum_of("ijk,ja,ka->ia", i=48, j=40, k=32, a=16)
PRODUCT = einsum_of("ij,jk->ik", i=48, j=40, k=32)
CHAIN = einsum_of("ij,jk,kl->il", every=16)
VECTOR = einsum_of("ij,j->i", i=64, j=64)

# plans whose operands and results are in blocks, as JAX has them
COUNTED = {
    "product": plan(PRODUCT, processes=8),
    "mttkrp": plan(MTTKRP, processes=8),
    "chain": plan(CHAIN, processes=4),
    "vector": plan(VECTOR, processes=8),
    "replicated": plan(VECTOR, processes=8, result="replicated"),
    "stays": plan(VECTOR, processes=8, result=plan(VECTOR, processes=8).starts["B"]),
    "four devices of eight": plan(PRODUCT, processes=4),
}
OTHERS = {
    "ballard": make_named_plan("ballard", MTTKRP, processes=8),
    "johnson": make_named_plan("johnson", PRODUCT, processes=8),
    "rows": make_named_plan(
        "rows", einsum_of("ijk,kl->ijl", i=48, j=8, k=6, l=4), processes=8
    ),
    "total": plan(einsum_of("ij,ij->", every=16), processes=8),
    "one process": plan(PRODUCT, processes=1),
}
REFUSED = {
    "ragged": (plan(einsum_of("ij,jk->ik", every=9), processes=2), "9 values of"),
    "cyclic": (with_cyclic(COUNTED["product"], ["i"]), "is distributed cyclically"),
    "too many": (plan(PRODUCT, processes=16), "needs 16 devices; JAX has 8"),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The outcomes of all plans, by one process with eight devices."""
    plans = COUNTED | OTHERS | {name: made for name, (made, _) in REFUSED.items()}
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    path = tmp_path_factory.mktemp("plans") / "plans.jsonl"
    path.write_text("".join(f"{made.to_json()}\n" for made in plans.values()))
    done = run_python("-m", "tests.distributed.sharded", path, **environment)
    return dict(zip(plans, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", [*COUNTED, *OTHERS])
def test_the_result_is_numpys_where_the_plan_has_it(outcomes, name):
    outcome = outcomes[name]
    assert outcome["is_right"]
    assert outcome["is_placed"]


@pytest.mark.parametrize("name", COUNTED)
def test_xla_moves_what_the_plan_counts(outcomes, name):
    """XLA gathers what the plan fetches, and adds what it reduces."""
    counts = COUNTED[name].counts
    moved = outcomes[name]["moved"]
    assert moved.get("reduce-scatter", 0) == counts.reduced
    kinds = ("all-gather", "all-to-all", "collective-permute")
    assert sum(moved.get(kind, 0) for kind in kinds) == counts.received
    assert "all-reduce" not in moved


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_cannot_express_is_refused(outcomes, name):
    assert REFUSED[name][1] in outcomes[name]["error"]


def test_sparse_operands_are_refused():
    with pytest.raises(PlanError, match="T is sparse, and such a plan cannot be"):
        plan(SPARSE, processes=4, nonzeros=9).to_jax()
