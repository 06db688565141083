"""Predictions in retrievals: after all that was measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import loopy as lp
import numpy as np
import pytest

import feinsum
from feinsum import array, canonicalize, einsum
from feinsum.db import open_store
from feinsum.errors import FeinsumError, RecordNotFoundError
from feinsum.predict import EFFORT_VARIABLE, get_effort, has_vectors, is_outdone
from feinsum.records import InMemoryStore, MatchLevel, TransformSpec
from feinsum.retrieval import look_up
from feinsum.retrieval.matching import N_PREDICTED
from feinsum.targets.host import HostCTarget
from feinsum.transforms import find_transform, list_configurations
from tests.loopy_kernels import build_kernel
from tests.portions import spread
from tests.retrieval.facts import fact, here
from tests.retrieval.recipes import first_recipe
from tests.retrieval.support import given, predicted
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

MATMUL = einsum("ik,kj->ij", array("A", ("N", 40)), array("B", (40, "M")))


@pytest.fixture
def kernel():
    return feinsum.generate_loopy(MATMUL)


def test_a_kernel_of_which_nothing_is_recorded_gets_a_predicted_recipe(kernel):
    """It computes what the kernel computes; the explanation says where it is from."""
    found = predicted(kernel)
    (nest,) = found.nests
    assert nest.match.level == MatchLevel.PREDICTED
    assert found.applied == nest.match.recipes[:1]
    assert "match: predicted" in str(found)
    rng = np.random.default_rng(0)
    A, B = rng.random((37, 40)), rng.random((40, 53))
    _, (out,) = found.t_unit.executor()(A=A, B=B)
    np.testing.assert_allclose(out, A @ B, rtol=1e-12)


@pytest.mark.parametrize(
    "options", [{"effort": "recorded"}, {"policy": "strict", "effort": "estimate"}]
)
def test_without_predictions_it_stays_as_it_is(kernel, options):
    """By the effort, and by a policy that wants facts of this machine."""
    options = {"database": InMemoryStore(), "device": "host", **options}
    assert feinsum.retrieve(kernel, on_miss="return", **options) is kernel
    with pytest.raises(RecordNotFoundError):
        feinsum.retrieve(kernel, on_miss="raise", **options)


def test_what_is_recorded_goes_before_what_is_predicted(kernel):
    """Whatever costs expect of it."""
    recipe = first_recipe(canonicalize(MATMUL).einsum)
    found = predicted(kernel, database=given(fact(MATMUL, recipe)))
    assert found.nests[0].match.level < MatchLevel.PREDICTED
    assert found.applied == (recipe,)


def another_processor(is_foreign):
    """This machine with a processor of another model, or microarchitecture."""
    device = here().device
    name = "made up" if is_foreign else device.processor.microarchitecture
    there = replace(device.processor, microarchitecture=name, model=-7)
    return replace(here(), device=replace(device, processor=there))


@pytest.mark.parametrize("is_foreign", [True, False])
def test_a_slow_recipe_of_another_microarchitecture_comes_second(kernel, is_foreign):
    """If the prediction is of its family; what such a processor measured is known."""
    empty = predicted(kernel)
    (first,) = empty.applied
    family = find_transform(first.name, first.version)
    form, device = canonicalize(MATMUL), here().device
    slow = next(
        spec
        for spec in list_configurations(family, form.einsum)
        if is_outdone(form.einsum, {}, device, spec, first)
        and has_vectors(spec, form.einsum, device)
    )
    store = given(fact(MATMUL, slow, environment=another_processor(is_foreign)))
    found = predicted(kernel, database=store)
    specs = [one.recipe.spec for one in found.nests[0].candidates]
    assert specs[:2] == ([first, slow] if is_foreign else [slow, first])


REMOVED = (
    "generic@2(block=8, parallel='a', step=8, vector='b', vectors='usual', width=256)",
    "unroll_and_jam@1(block=16, index='a', inner='c', parallel='a', rows=8)",
    "library_path@1(path='0,1', steps='best')",
    "contraction_path@3(fused='', lanes=4, path='0,1', steps='best')",
    "contraction_path@4(lanes=4, path='0,1', steps=('generic@2(block=8)',))",
)


@pytest.mark.parametrize(
    ("is_foreign", "text"), spread(product([True, False], REMOVED), 5)
)
def test_a_fact_of_a_family_that_was_removed_is_skipped(kernel, text, is_foreign):
    """Whoever recorded it; the next recipe is used, and one reason is given."""
    removed, environment = TransformSpec.parse(text), another_processor(is_foreign)
    usable = first_recipe(canonicalize(MATMUL).einsum)
    facts = [
        fact(MATMUL, spec, environment=environment, speedup=speedup)
        for spec, speedup in ((removed, 9.0), (usable, 5.0))
    ]
    found = predicted(kernel, database=given(*facts))
    assert found.applied == (usable,)
    assert [spec for spec, _ in found.nests[0].failures] == [removed]
    assert str(found).count(f"skipped {removed}") == 1


def test_several_predictions_are_candidates(kernel):
    """One after the other, each recipe once, the better levels first."""
    found = predicted(kernel, policy="loose")
    levels = [one.match.level for one in found.nests[0].candidates]
    assert levels == sorted(levels)
    assert levels.count(MatchLevel.PREDICTED) == N_PREDICTED
    specs = [one.recipe.spec for one in found.nests[0].candidates]
    assert len(set(specs)) == len(specs)


def test_the_effort_is_that_of_the_argument_then_of_the_variable(kernel, monkeypatch):
    """Anything else is refused, and says what is expected."""
    monkeypatch.setenv(EFFORT_VARIABLE, "estimate")
    assert get_effort(None) == "estimate"
    assert get_effort("recorded") == "recorded"
    monkeypatch.setenv(EFFORT_VARIABLE, "")
    assert get_effort(None) == "estimate"
    monkeypatch.setenv(EFFORT_VARIABLE, "much")
    with pytest.raises(FeinsumError, match="recorded, estimate"):
        get_effort(None)
    with pytest.raises(ValueError, match="effort is 'much'"):
        feinsum.retrieve(kernel, effort="much")


@pytest.mark.usefixtures("trials_here")
@pytest.mark.usefixtures("two_trials")
def test_an_effort_that_measures_records_what_it_finds():
    """The first retrieval measures at the extents of the kernel, the next one knows."""
    store = InMemoryStore()
    product = einsum("ik,kj->ij", array("A", (30, 40)), array("B", (40, 50)))
    kernel = feinsum.generate_loopy(product)
    options = {"database": store, "effort": "measure", "device": "host"}
    found = look_up(kernel, **options)
    assert found.nests[0].match.level == MatchLevel.EXACT
    n_facts = len(store)
    assert n_facts
    again = look_up(kernel, **options)
    assert again.applied == found.applied
    assert len(store) == n_facts


def test_what_cannot_be_measured_is_predicted(kernel, tmp_path, caplog):
    """A database that cannot be written breaks no build; the log says why."""
    path = tmp_path / "facts.sqlite"
    open_store(path).close()
    database = f"sqlite:///file:{path}?mode=ro&uri=true"
    found = look_up(kernel, database=database, effort="measure", device="host")
    assert found.nests[0].match.level == MatchLevel.PREDICTED
    assert "nothing is measured for" in caplog.text


def test_a_kernel_of_functions_gets_a_prediction_too():
    """Operands that are functions are none of the model's business."""
    t_unit = build_kernel(
        "{[i,j]: 0<=i<N and 0<=j<40}",
        "y[i] = alpha*sum(j, (A[i,j] + C[i,j])*x[j])",
        {"A,C": "N,40", "x": "40", "y": "N"},
        lp.ValueArg("alpha", np.float64),
        target=HostCTarget(),
    )
    found = predicted(t_unit).t_unit
    assert found is not t_unit
    rng = np.random.default_rng(0)
    A, C, x = rng.random((90, 40)), rng.random((90, 40)), rng.random(40)
    _, (y,) = found.executor()(A=A, C=C, x=x, alpha=2.0)
    np.testing.assert_allclose(y, 2 * (A + C) @ x, rtol=1e-12)
