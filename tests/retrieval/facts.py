"""Facts about the examples, made up or measured."""

from __future__ import annotations

from dataclasses import replace

from feinsum.canonical import CanonicalForm, canonicalize
from feinsum.ir import BatchedEinsum, SizeParam
from feinsum.measure import open_device
from feinsum.records import Environment, TransformSpec, TuningRecord
from tests.db.factories import make_measurement, make_record
from tests.retrieval.kernels import Example

SURELY_SLOW_S = 20.0
"""More than any example takes, on a busy machine, too; less than is implausible."""


def here() -> Environment:
    """This machine, as a tuning describes it."""
    return open_device().environment({"rounds": 3})


def form_of(example: Example) -> CanonicalForm:
    return canonicalize(example.einsum)


def recipe(example: Example) -> TransformSpec:
    """The recipe of an example, about its canonical einsum."""
    einsum = form_of(example).einsum
    free = einsum.output
    (long,) = (i for i in free if isinstance(einsum.extents[i], SizeParam))
    short = next((i for i in free if i != long), "")
    return TransformSpec.parse(example.spec.format(long=long, short=short))


def fact(
    einsum: BatchedEinsum,
    spec: TransformSpec,
    *,
    speedup: float = 10.0,
    environment: Environment | None = None,
) -> TuningRecord:
    """A made-up fact about a recipe, by default on this machine."""
    form = canonicalize(einsum)
    measured = make_measurement(1e-3)
    return replace(
        make_record(workload=form.key, environment=environment or here()),
        workload_text=form.text,
        spec=spec,
        measurement=replace(measured, baseline_s=(speedup * 1e-3,)),
    )


def fact_of(example: Example, **options: object) -> TuningRecord:
    return fact(example.einsum, recipe(example), **options)


def surely_faster(record: TuningRecord) -> TuningRecord:
    """The fact with a slower baseline, so that no noise can make it useless."""
    slow = tuple(SURELY_SLOW_S + s for s in record.measurement.baseline_s)
    return replace(record, measurement=replace(record.measurement, baseline_s=slow))
