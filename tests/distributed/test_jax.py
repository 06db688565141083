"""Plans as functions of JAX: XLA moves what the plan counts."""

from __future__ import annotations

import json
from functools import partial
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
    "product": partial(plan, PRODUCT, processes=8),
    "mttkrp": partial(plan, MTTKRP, processes=8),
    "chain": partial(plan, CHAIN, processes=4),
    "vector": partial(plan, VECTOR, processes=8),
    "replicated": partial(plan, VECTOR, processes=8, result="replicated"),
    "stays": lambda: plan(VECTOR, processes=8, result=start_of_vector()),
    "four devices of eight": partial(plan, PRODUCT, processes=4),
}
OTHERS = {
    "ballard": partial(make_named_plan, "ballard", MTTKRP, processes=8),
    "johnson": partial(make_named_plan, "johnson", PRODUCT, processes=8),
    "rows": partial(
        make_named_plan,
        "rows",
        einsum_of("ijk,kl->ijl", i=48, j=8, k=6, l=4),
        processes=8,
    ),
    "total": partial(plan, einsum_of("ij,ij->", every=16), processes=8),
    "one process": partial(plan, PRODUCT, processes=1),
}
REFUSED = {
    "ragged": partial(plan, einsum_of("ij,jk->ik", every=9), processes=2),
    "cyclic": lambda: with_cyclic(plan(PRODUCT, processes=8), ["i"]),
    "too many": partial(plan, PRODUCT, processes=16),
}
REASONS = {
    "ragged": "9 values of",
    "cyclic": "is distributed cyclically",
    "too many": "needs 16 devices; JAX has 8",
}


def start_of_vector():
    """The blocks of the vector before the product."""
    return plan(VECTOR, processes=8).starts["B"]


@pytest.fixture(scope="module")
def plans():
    """All plans by name, made when the tests run."""
    makers = COUNTED | OTHERS | REFUSED
    return {name: make() for name, make in makers.items()}


@pytest.fixture(scope="module")
def outcomes(plans, tmp_path_factory):
    """The outcomes of all plans, by one process with eight devices."""
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
def test_xla_moves_what_the_plan_counts(plans, outcomes, name):
    """XLA gathers what the plan fetches, and adds what it reduces."""
    counts = plans[name].counts
    moved = outcomes[name]["moved"]
    assert moved.get("reduce-scatter", 0) == counts.reduced
    kinds = ("all-gather", "all-to-all", "collective-permute")
    assert sum(moved.get(kind, 0) for kind in kinds) == counts.received
    assert "all-reduce" not in moved


@pytest.mark.parametrize("name", REASONS)
def test_what_jax_cannot_express_is_refused(outcomes, name):
    assert REASONS[name] in outcomes[name]["error"]


def test_sparse_operands_are_refused():
    with pytest.raises(PlanError, match="T is sparse, and such a plan cannot be"):
        plan(SPARSE, processes=4, nonzeros=9).to_jax()
