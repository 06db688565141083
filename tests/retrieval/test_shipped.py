"""A new installation retrieves what comes with the package, and it is right."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from feinsum import canonicalize, evaluate, generate_loopy
from feinsum.db import get_shipped_facts
from feinsum.ir import BatchedEinsum, SizeParam, from_text, with_extents
from feinsum.measure import (
    compile_kernel,
    compute_tolerance,
    count_terms,
    draw_arguments,
    open_device,
    verify,
)
from feinsum.measure.gpu_figures import get_recipe_figures
from feinsum.raising import identify_as_einsum
from feinsum.records import MatchLevel, TransformSpec, TuningRecord
from feinsum.retrieval import look_up
from feinsum.suites import read_suite
from feinsum.transforms import (
    check_spec,
    find_applicable_transforms,
    find_transform,
    list_configurations,
)
from tests.portions import spread
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

SIZE = 53
"""Elements; no tile divides them."""
ALL = sorted(get_shipped_facts().records(), key=lambda fact: fact.workload_text)
FACTS = [fact for fact in ALL if fact.environment.device.kind != "gpu"]
OF_GPUS = [fact for fact in ALL if fact.environment.device.kind == "gpu"]
SAMPLE = FACTS[:: max(1, len(FACTS) // 3)]


NEVER_LONG = 1 << 62
SHORT = (5, 3, 2)
"""Extents of a small instance, in the order of its free indices; then 2."""
MOST_TERMS = 7
"""The longest sum of a small instance over one index, if it must be shrunk."""


@pytest.fixture(autouse=True)
def _new_user(monkeypatch, tmp_path):
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "facts.sqlite"))


def assert_served(fact: TuningRecord) -> None:
    """What the fact is of gets a shipped recipe, and computes what numpy computes."""
    einsum = from_text(fact.workload_text)
    kernel = generate_loopy(einsum)
    found = look_up(kernel)
    assert found.nests[0].match.level <= MatchLevel.SAME_ARCHITECTURE
    assert found.nests[0].match.record in FACTS
    assert found.applied
    sizes = {x.name: SIZE for x in einsum.size_params}
    arguments = draw_arguments(kernel, sizes, np.random.default_rng(0))
    arrays = {op.name: arguments[op.name] for op in einsum.operands}
    outputs = [insn.assignee_name for insn in kernel.default_entrypoint.instructions]
    results = evaluate(einsum, arrays, optimize=True)
    expected = dict(zip(outputs, results, strict=True))
    tolerance = compute_tolerance(einsum.operands[0].dtype, count_terms(einsum, sizes))
    bound = compile_kernel(found.t_unit, open_device()).bind(arguments)
    verify(bound, expected, tolerance=tolerance)


def small_instance(einsum: BatchedEinsum) -> tuple[BatchedEinsum, dict[str, int]]:
    """An einsum with a few elements; one of literal extents with all of them small.

    The free indices of the latter get parameters, as a tuning verifies it, so that a
    recipe meets extents that none of its tiles divides.
    """
    if einsum.size_params:
        return einsum, {x.name: SIZE for x in einsum.size_params}
    free = {i: SizeParam(f"N{k}") for k, i in enumerate(einsum.free_indices)}
    summed = {i: min(MOST_TERMS, int(einsum.extents[i])) for i in
              einsum.summation_indices}  # fmt: skip
    short = (*SHORT, *[2] * len(free))
    sizes = {param.name: n for param, n in zip(free.values(), short, strict=False)}
    return with_extents(einsum, {**free, **summed}), sizes


def assert_right(spec: TransformSpec, workload: BatchedEinsum) -> None:
    """A recipe, applied to a small instance, computes what numpy does."""
    einsum, sizes = small_instance(workload)
    kernel, nest = identify_as_einsum(
        generate_loopy(einsum), einsum, long_extent=NEVER_LONG
    )
    apply = find_transform(spec.name, spec.version).apply
    transformed = apply(kernel, nest, spec.parameters)
    arguments = draw_arguments(kernel, sizes, np.random.default_rng(0))
    arrays = {op.name: arguments[op.name] for op in einsum.operands}
    results = evaluate(einsum, arrays, optimize=True)
    dtype = min(einsum.output_dtypes, key=lambda kind: kind.itemsize)
    bound = compile_kernel(transformed, open_device()).bind(arguments)
    verify(
        bound,
        dict(zip(nest.outputs, results, strict=True)),
        tolerance=compute_tolerance(dtype, count_terms(einsum, sizes)),
    )


def test_shipped_recipes_are_valid():
    """They are registered, with parameters of the spaces of their workloads."""
    for fact in FACTS:
        check_spec(fact.spec, from_text(fact.workload_text))


@pytest.mark.parametrize("fact", spread(FACTS, 5), ids=lambda fact: fact.id[:12])
def test_a_shipped_recipe_is_right_on_a_small_instance(fact):
    """Every recipe, applied where no tile divides an extent.

    So many facts in every run, evenly spread over the workloads, and the others in
    the long runs.
    """
    assert_right(fact.spec, from_text(fact.workload_text))


@pytest.mark.parametrize("name", ["abc-bda-dc", "abcdef-dega-gfbc"])
def test_a_recipe_of_literal_extents_is_right_on_a_small_instance(name):
    """A contraction of TCCG shrinks to some thousand points, and recipes still fit."""
    (entry,) = [entry for entry in read_suite("tccg") if entry.name == name]
    workload = canonicalize(entry.einsum()).einsum
    small, sizes = small_instance(workload)
    extents = [sizes.get(str(n)) or n for n in small.extents.values()]
    assert prod(extents) < 10_000
    transform = find_applicable_transforms(workload)[0]
    assert_right(next(iter(list_configurations(transform, workload))), workload)


@pytest.mark.parametrize("fact", SAMPLE, ids=lambda fact: fact.id[:12])
def test_a_new_user_gets_shipped_recipes(fact):
    """Without a fact of one's own; a few in every run."""
    assert_served(fact)


@pytest.mark.long
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.id[:12])
def test_every_shipped_fact_is_right(fact):
    """All of them."""
    assert_served(fact)


@needs_nvrtc
@pytest.mark.parametrize("fact", spread(OF_GPUS, 3), ids=lambda fact: fact.id[:12])
def test_a_shipped_recipe_compiles_for_its_gpu(fact):
    """Without spills to speak of, in groups that a multiprocessor holds."""
    einsum, device = from_text(fact.workload_text), fact.environment.device
    for one in get_recipe_figures(fact.spec, einsum, device.architecture):
        assert one.figures.spill_bytes <= 512
        assert one.occupancy > 0
