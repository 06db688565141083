"""Trials as a machine would make them on which costs are wrong in a known way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from feinsum import array, einsum
from feinsum.canonical import CanonicalForm, canonicalize
from feinsum.predict import predictions
from feinsum.predict.correction import (
    ANALYTIC,
    MODEL_VERSION,
    Correction,
    Feature,
)
from feinsum.predict.correction.features import CONTEXT_FEATURES, RECIPE_FEATURES
from feinsum.records import OK, Device, Environment, TransformSpec, Trial
from feinsum.transforms.ranking import Costed

CPU = Device("host", "a CPU", "", "cpu", "x86_64", 2)
ENVIRONMENT = Environment(CPU, "1", "1", {}, {})


def form_of(subscripts: str, n: int) -> CanonicalForm:
    """An einsum all of whose extents are ``n``."""
    terms = subscripts.partition("->")[0].split(",")
    arrays = [array(f"A{k}", (n,) * len(term)) for k, term in enumerate(terms)]
    return canonicalize(einsum(subscripts, *arrays))


FORMS = [
    form_of("ij,jk->ik", 100),
    form_of("ij,jk->ik", 300),
    form_of("bij,bjk->bik", 40),
    form_of("ij,j->i", 200),
    form_of("ijk,kl->ijl", 40),
    form_of("ij,kj->ik", 120),
]


def trial_of(form: CanonicalForm, spec: TransformSpec, seconds: float) -> Trial:
    return Trial(
        form.key,
        form.text,
        {},
        ENVIRONMENT,
        spec,
        OK,
        median_s=seconds,
        ratio=seconds / 0.1,
    )


def made_trials(
    wrong: Callable[[TransformSpec], float],
    forms: Sequence[CanonicalForm] = FORMS,
    n: int = 40,
) -> list[Trial]:
    """Of recipes of all ranks; their times are their costs times ``wrong``."""
    return [
        trial_of(form, one.spec, one.seconds * wrong(one.spec))
        for form in forms
        for one in spread(form, n)
    ]


def spread(form: CanonicalForm, n: int) -> list[Costed]:
    """About ``n`` recipes, evenly over their ranks."""
    ranked = predictions(form.einsum, {}, CPU, correction=ANALYTIC)
    return ranked[:: max(1, len(ranked) // n)]


def correction_with(**coefficients: float) -> Correction:
    """One by which some features of recipes count, everywhere the same."""
    width = len(CONTEXT_FEATURES)
    return Correction(
        MODEL_VERSION,
        tuple(Feature(name, 0.0, 1.0) for name in RECIPE_FEATURES),
        tuple(Feature(name, 0.0, 1.0) for name in CONTEXT_FEATURES),
        tuple(
            (coefficients.get(name, 0.0), *[0.0] * (width - 1))
            for name in RECIPE_FEATURES
        ),
    )
