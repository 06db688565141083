"""Fitting: a model learns what costs are wrong by, and hostile trials do no harm."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from feinsum.errors import FeinsumError, ModelError
from feinsum.predict import predictions
from feinsum.predict.correction import (
    ANALYTIC,
    LIMIT,
    check_enough,
    fit,
    held_out,
    samples_of,
)
from feinsum.records import Device, TransformSpec, from_json, to_json
from feinsum.transforms import check_spec, configurations, find_transform
from tests.predict.made import CPU, ENVIRONMENT, FORMS, made_trials, trial_of

GPU = replace(ENVIRONMENT, device=Device("OpenCL", "a GPU", "", "gpu", "", 9))


def wrong(spec):
    """Tiles of many rows are slower than their costs say, `generic` is faster."""
    is_packed = spec.name == "packed_contraction"
    rows = spec.parameters["rows"] if is_packed else 1
    return {"generic": 0.5}.get(spec.name, 1.0) * 1.2 ** np.log2(rows) ** 1.5


TRIALS = made_trials(wrong)


@pytest.fixture(scope="module")
def fitted():
    """The model of these trials."""
    return fit(samples_of(TRIALS).groups, "2026-01-01T00:00:00+00:00")


def test_a_model_ranks_workloads_that_it_was_not_fitted_to():
    """Where costs are wrong in the same way everywhere, it learns by what."""
    plain, corrected = held_out(samples_of(TRIALS).groups)
    assert len(plain.first) == len(corrected.first) == len(FORMS)
    assert corrected.mean(corrected.first) < 0.7 * plain.mean(plain.first) + 0.3
    assert corrected.mean(corrected.best) <= plain.mean(plain.best)
    assert min(corrected.first) >= 1


def test_costs_that_are_right_are_left_as_they_are():
    """All factors are near one, whatever the unit of the times is."""
    samples = samples_of(made_trials(lambda spec: 7.0))
    correction = fit(samples.groups)
    for group in samples.groups:
        factors = correction.factors(group.recipe, group.context)
        assert factors == pytest.approx(1.0, abs=0.01)


def test_a_fit_says_what_it_was_made_of(fitted):
    """Trials, workloads and devices; it can be written and read back."""
    assert fitted.n_trials == len(TRIALS)
    assert (fitted.n_workloads, fitted.n_devices) == (len(FORMS), 1)
    assert from_json(type(fitted), to_json(fitted)) == fitted


def test_the_order_of_workloads_does_not_matter(fitted):
    """One database gives one model."""
    other = [*TRIALS[len(TRIALS) // 2 :], *TRIALS[: len(TRIALS) // 2]]
    assert fit(samples_of(other).groups, fitted.fitted_at) == fitted


def test_the_latest_trial_of_a_recipe_counts():
    """As in a tuning."""
    again = replace(TRIALS[0], ratio=5.0, median_s=5.0)
    samples = samples_of([*TRIALS, again])
    assert samples.left_out == {"tried again": 1}
    assert samples.n_trials == len(TRIALS)
    assert 5.0 in {time for group in samples.groups for time in group.measured}


ONE = TRIALS[0]
WITHOUT_COST = next(configurations(find_transform("generic", 1), FORMS[3].einsum))
HOSTILE = {
    "failed": replace(ONE, status="build-failed", ratio=None, median_s=None),
    "a time that is none": replace(ONE, ratio=nan),
    "not on a CPU": replace(ONE, environment=GPU),
    "no einsum that can be read": replace(ONE, workload_text="drop table"),
    "sizes that do not fit": replace(ONE, sizes={"N9": 4}),
    "a transform that is not here": replace(ONE, spec=TransformSpec("rm", 1, {})),
    "parameters outside their space": replace(
        ONE, spec=TransformSpec("packed_contraction", 2, {"lanes": 10**30})
    ),
    "a transform without a cost": trial_of(FORMS[3], WITHOUT_COST, 1.0),
    "nothing to compare with": replace(
        ONE, environment=replace(ENVIRONMENT, driver_version="other")
    ),
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_what_cannot_be_learnt_from_is_counted(reason):
    """By its reason; nothing raises, and all others are learnt from."""
    samples = samples_of([*TRIALS, HOSTILE[reason]])
    assert samples.left_out == {reason: 1}
    assert samples.n_trials == len(TRIALS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " | | ",
        "a -> a | A[" + "9" * 999 + "]:<f8 | A",
        "a -> a | A[3]:O | A",
        "a -> a | A[3]:<M8[s] | A",
        "a" * 10**6,
        "i j, j -> i | A0[2,0]:<f8 A1[0]:<f8 | A0 A1",
    ],
    ids=lambda text: text[:20],
)
def test_no_text_of_a_workload_raises(text):
    """Nor does any size."""
    for sizes in ({}, {"N": 10**400}, {"N": -1}):
        samples_of([replace(ONE, workload_text=text, sizes=sizes)])


def test_a_model_of_hostile_trials_is_bounded_finite_and_harmless():
    """It may be bad. Recipes stay those that were proposed, within the factor."""
    rng = np.random.default_rng(0)
    absurd = [1e-300, 2e-12, 1e300, 9e11, 1.0, 1e-9]
    trials = [
        replace(trial, ratio=float(rng.choice(absurd)), median_s=1e-300)
        for trial in TRIALS
    ]
    trials += [replace(trial, ratio=inf) for trial in TRIALS[:5]]
    samples = samples_of([*trials, *HOSTILE.values()])
    correction = fit(samples.groups)
    held_out(samples.groups)
    for form in FORMS:
        plain = predictions(form.einsum, {}, CPU, correction=ANALYTIC)
        found = predictions(form.einsum, {}, CPU, correction=correction)
        assert len(found) == len(plain)
        ratio = found[0].seconds / plain[0].seconds
        assert 1 / (1.01 * LIMIT) <= ratio <= 1.01 * LIMIT
        for one in found:
            check_spec(one.spec, form.einsum)


def test_a_single_absurd_time_decides_little():
    """What is far off counts as ten times."""
    first, *others = TRIALS
    absurd = samples_of([replace(first, ratio=1e-200), *others])
    factors = [
        fit(samples.groups).factors(group.recipe, group.context)
        for samples in (samples_of(TRIALS), absurd)
        for group in samples_of(TRIALS).groups[1:2]
    ]
    assert np.abs(np.log(factors[0] / factors[1])).max() < np.log(2)


@pytest.mark.parametrize("trials", [[], TRIALS[:20], made_trials(wrong, FORMS[:2])])
def test_too_few_trials_are_refused(trials):
    """Saying how many there are, and how many are wanted."""
    with pytest.raises(ModelError, match="expected at least"):
        check_enough(samples_of(trials))


def test_without_scikit_learn_a_fit_says_what_to_install(monkeypatch):
    """Predictions do not need it."""
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(FeinsumError, match=r"feinsum\[model\]"):
        fit(samples_of(TRIALS).groups)


def test_the_bound_is_the_documented_one():
    """A third to three times."""
    extreme = made_trials(lambda spec: 1e3 ** (spec.parameters.get("rows", 1) % 3))
    correction = fit(samples_of(extreme).groups)
    groups = samples_of(TRIALS).groups
    factors = [correction.factors(g.recipe, g.context) for g in groups]
    assert max(f.max() for f in factors) <= 3.0001
    assert min(f.min() for f in factors) >= 0.3333
