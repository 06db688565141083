"""A correction: it can change the order of recipes, within bounds, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import inf, log2

import numpy as np
import pytest
from constantdict import constantdict
from hypothesis import given
from hypothesis import strategies as st

from feinsum import array, einsum
from feinsum.bounds import least_bytes
from feinsum.canonical import canonicalize
from feinsum.errors import ModelError
from feinsum.predict import machine_of, predictions
from feinsum.predict.correction import ANALYTIC, LIMIT, Correction, corrected
from feinsum.predict.correction.features import (
    CONTEXT_FEATURES,
    FAMILIES,
    RECIPE_FEATURES,
    context_features,
    recipe_features,
)
from feinsum.records import TransformSpec, from_json, to_json
from feinsum.transforms import REGISTRY
from feinsum.transforms.ranking import Costed, at_sizes, ranked
from tests.predict.made import CPU, FORMS, correction_with
from tests.strategies import einsums

PRODUCT = FORMS[1].einsum
MACHINE = machine_of(CPU)

coefficients = st.sampled_from([0.0, 0.3, -0.3, 1e3, -1e3])
corrections = st.lists(
    coefficients,
    min_size=len(RECIPE_FEATURES) * len(CONTEXT_FEATURES),
    max_size=len(RECIPE_FEATURES) * len(CONTEXT_FEATURES),
).map(
    lambda values: replace(
        correction_with(),
        coefficients=tuple(
            map(tuple, np.reshape(values, (len(RECIPE_FEATURES), -1)).tolist())
        ),
    )
)


def proposals_of(einsum, sizes):
    newest = [REGISTRY[version] for version in dict(sorted(REGISTRY)).items()]
    suited = [transform for transform in newest if "cpu" in transform.devices]
    return ranked(einsum, sizes, suited, MACHINE)


def test_a_correction_can_change_the_order():
    """A family that is said to be slower than its costs say comes later."""
    plain = predictions(PRODUCT, {}, CPU, correction=ANALYTIC)
    assert plain[0].spec.name == "packed_contraction"
    slower = correction_with(packed_contraction=9.0, cost=0.0)
    first = predictions(PRODUCT, {}, CPU, correction=slower)[0]
    assert first.spec != plain[0].spec


@given(einsums(), st.sampled_from([1, 300]), corrections)
def test_no_correction_brings_in_a_recipe_or_leaves_the_bounds(e, size, correction):
    """Every recipe was proposed, its cost within a factor of what its family said."""
    einsum = canonicalize(e).einsum
    sizes = {x.name: size for x in einsum.size_params}
    costs = {one.spec: one.seconds for one in proposals_of(einsum, sizes)}
    found = predictions(einsum, sizes, CPU, correction=correction)
    assert found
    seconds = [one.seconds for one in found]
    assert seconds == sorted(seconds)
    for one in found:
        assert 0.99 / LIMIT <= one.seconds / costs[one.spec] <= 1.01 * LIMIT
    plain = predictions(einsum, sizes, CPU, correction=ANALYTIC)
    assert len(found) == len(plain)


def test_a_correction_of_zeros_changes_nothing():
    """Nor does the one that is analytic."""
    plain = predictions(PRODUCT, {}, CPU, correction=ANALYTIC)
    assert predictions(PRODUCT, {}, CPU, correction=correction_with()) == plain


def test_what_recipes_have_in_common_does_not_count():
    """The factor of a recipe depends on how it differs from the others."""
    one, *_ = proposals_of(PRODUCT, {})
    correction = correction_with(packed_contraction=1.0, cost=1.0)
    assert corrected(correction, PRODUCT, [one, one], MACHINE) == [one.seconds] * 2


@pytest.mark.parametrize("seconds", [0.0, 1e-300, 1e300, inf])
def test_features_are_finite_whatever_a_family_says(seconds):
    """Families may be those of users, and extents may be absurd."""
    spec = TransformSpec("mine", 1, {"vector": "none", "lanes": 0})
    long = at_sizes(FORMS[3].einsum, {})
    rows = recipe_features(long, [Costed(seconds, spec)])
    assert rows.shape == (1, len(RECIPE_FEATURES))
    assert np.isfinite(rows).all()
    assert np.isfinite(context_features(long, MACHINE)).all()


def test_every_family_of_ours_that_has_a_cost_is_looked_at():
    """By its name, and by parameters that it has; but for those for GPUs."""
    newest = [REGISTRY[version] for version in dict(sorted(REGISTRY)).items()]
    ours = [
        t for t in newest
        if t.cost and "cpu" in t.devices and t.apply.__module__.startswith("feinsum.")
    ]  # fmt: skip
    assert {transform.name for transform in ours} == set(FAMILIES)
    for transform in ours:
        looked = FAMILIES[transform.name]
        names = {*looked.numbers, *dict(looked.words), *looked.indices}
        spaces = [s for f in FORMS if (s := transform.offered(f.einsum))]
        for space in spaces:
            assert names <= set(space)


def test_a_model_round_trips():
    """Written as JSON and read back it is the same."""
    model = correction_with(cost=0.25)
    assert from_json(Correction, to_json(model)) == model


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": 0},
        {"recipe": ()},
        {"recipe": correction_with().recipe[1:]},
        {"context": correction_with().context[::-1]},
        {"coefficients": ()},
        {"coefficients": correction_with().coefficients[1:]},
        {"coefficients": ((0.0,),) * len(RECIPE_FEATURES)},
    ],
    ids=str,
)
def test_a_model_of_another_version_or_shape_is_refused(change):
    """It says what to do."""
    with pytest.raises(ModelError, match=r"fit it again|expected"):
        replace(correction_with(), **change)


def test_a_prediction_needs_no_scikit_learn():
    """Only a fit does; whoever predicts does not pay for it."""
    code = (
        "import sys\n"
        "from tests.predict.made import FORMS, CPU, correction_with\n"
        "from feinsum.predict import predictions\n"
        "assert predictions(FORMS[0].einsum, {}, CPU, correction=correction_with())\n"
        "assert not {'sklearn', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_caches_must_let_pass_is_a_feature():
    """Logarithms of the bound over all arrays: more for a product, none for a copy."""
    large = einsum("ij,jk->ik", array("A", (6000, 6000)), array("B", (6000, 6000)))
    copied = einsum("ij->ji", array("A", (6000, 6000)))
    caches = constantdict({"L2": 1 << 18, "L3": 1 << 20})
    small = replace(MACHINE, cache_bytes=caches, n_cores=1)

    def beyond(e):
        found = dict(zip(CONTEXT_FEATURES, context_features(e, small), strict=True))
        return found["least bytes beyond L2"], found["least bytes beyond L3"]

    every = 3 * 8 * 6000**2
    expected = log2(least_bytes(large, {}, 1 << 18) / every)
    near, far = beyond(large)
    assert near == pytest.approx(expected)
    assert near > far > 1
    assert beyond(copied) == (0, 0)


def test_of_many_operands_no_bound_is_looked_for():
    """A prediction takes no longer for it."""
    names = [array(f"A{k}", (50, 50)) for k in range(5)]
    chain = einsum("ab,bc,cd,de,ef->af", *names)
    assert list(context_features(chain, MACHINE)[-2:]) == [0, 0]
