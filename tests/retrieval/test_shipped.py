"""A new installation retrieves what comes with the package, and it is right."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum import evaluate, generate_loopy
from feinsum.db import shipped_facts
from feinsum.ir import from_text
from feinsum.measure import (
    compile_kernel,
    n_terms,
    open_device,
    random_arguments,
    tolerance_for,
    verify,
)
from feinsum.records import Level, TuningRecord
from feinsum.retrieval import look_up
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

SIZE = 53
"""Elements; no tile divides them."""
FACTS = sorted(shipped_facts().records(), key=lambda fact: fact.workload_text)
SAMPLE = FACTS[:: max(1, len(FACTS) // 3)]


@pytest.fixture(autouse=True)
def _new_user(monkeypatch, tmp_path):
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "facts.sqlite"))


def assert_served(fact: TuningRecord) -> None:
    """What the fact is of gets a shipped recipe, and computes what numpy computes."""
    einsum = from_text(fact.workload_text)
    kernel = generate_loopy(einsum)
    found = look_up(kernel)
    assert found.nests[0].match.level <= Level.SAME_ARCHITECTURE
    assert found.nests[0].match.record in FACTS
    assert found.applied
    sizes = {x.name: SIZE for x in einsum.size_params}
    arguments = random_arguments(kernel, sizes, np.random.default_rng(0))
    arrays = {op.name: arguments[op.name] for op in einsum.operands}
    outputs = [insn.assignee_name for insn in kernel.default_entrypoint.instructions]
    expected = dict(zip(outputs, evaluate(einsum, arrays), strict=True))
    tolerance = tolerance_for(einsum.operands[0].dtype, n_terms(einsum, sizes))
    bound = compile_kernel(found.t_unit, open_device()).bind(arguments)
    verify(bound, expected, tolerance=tolerance)


@pytest.mark.parametrize("fact", SAMPLE, ids=lambda fact: fact.id[:12])
def test_a_new_user_gets_shipped_recipes(fact):
    """Without a fact of one's own; a few in every run."""
    assert_served(fact)


@pytest.mark.long
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.id[:12])
def test_every_shipped_fact_is_right(fact):
    """All of them."""
    assert_served(fact)
