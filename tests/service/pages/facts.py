"""Facts of real einsums, for pages to show."""

from __future__ import annotations

from dataclasses import replace

from feinsum.canonical import WorkloadKey, canonicalize
from feinsum.ir import array, einsum, generalize
from feinsum.records import (
    Device,
    DevicePeaks,
    Environment,
    Measurement,
    Processor,
    TransformSpec,
    TuningRecord,
    Verification,
)
from tests.db.factories import make_environment, make_measurement

__all__ = [
    "HOSTILE",
    "MARKUP",
    "MATMUL",
    "MATVEC",
    "form_of",
    "make_fact",
    "make_limits",
]

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`&amp;{{ 7*7 }}"
"""What must arrive as text, wherever it stands."""

MATVEC = ("ij,j->i", {"i": "N", "j": 4})
MATMUL = ("ij,jk->ik", {"i": "N", "j": 8, "k": 8})


def form_of(subscripts: str, extents: dict[str, int | str], dtype: str = "float64"):
    """The canonical form of subscripts with these extents."""
    terms = subscripts.partition("->")[0].split(",")
    operands = [
        array(f"A{k}", tuple(extents[i] for i in term), dtype)
        for k, term in enumerate(terms)
    ]
    return canonicalize(generalize(einsum(subscripts, *operands))[0])


def make_fact(
    median_s: float = 1e-3,
    *,
    workload=MATVEC,
    block: int = 64,
    name: str = "rowwise",
    environment: Environment | None = None,
    day: int = 1,
) -> TuningRecord:
    """A fact of a workload; its untransformed kernel takes 10 ms."""
    form = form_of(*workload)
    timing = replace(
        make_measurement(median_s),
        baseline_s=(1e-2,),
        sizes={param.name: 1000 for param in form.einsum.size_params},
        operations={"<f8": 8_000_000},
    )
    return TuningRecord(
        workload=form.key,
        workload_text=form.text,
        environment=environment or make_environment(),
        spec=TransformSpec(name, 1, {"block": block, "index": "a"}),
        measurement=replace(timing, footprint_bytes=4_000_000),
        recorded_at=f"2025-01-{day:02}T12:00:00+00:00",
    )


def make_limits(device: Device) -> DevicePeaks:
    """Limits under which the work of a fact takes 0.5 ms."""
    peaks = {"<f8": 1.6e10, "<f4": 3.2e10}
    return DevicePeaks(device, 8e10, peaks, "2025-01-01T00:00:00+00:00")


HOSTILE_PROCESSOR = Processor(
    MARKUP, -(2**70), 2**70, 0, MARKUP, (MARKUP,) * 99, -(2**70), {MARKUP: -(2**70)}
)

HOSTILE = TuningRecord(
    workload=WorkloadKey("hostile-1"),
    workload_text=f"a b -> a | {MARKUP} | x",
    environment=Environment(
        device=Device(
            MARKUP, MARKUP, MARKUP, "cpu", MARKUP, -(2**31), HOSTILE_PROCESSOR
        ),
        driver_version=MARKUP,
        platform_version=MARKUP,
        software={MARKUP: MARKUP},
        policy={MARKUP: MARKUP, "big": 1e300},
    ),
    spec=TransformSpec(MARKUP, 1, {MARKUP: MARKUP, "n": 10**400, "t": (MARKUP, 1)}),
    measurement=Measurement(
        samples_s=(1e-300, 1e300),
        baseline_s=(1e308,),
        timer=MARKUP,
        n_warmup=0,
        sizes={MARKUP: -(2**63)},
        operations={MARKUP: 2**63 - 1},
        footprint_bytes=0,
        verification=Verification(MARKUP, 1e300, -1e300, ()),
    ),
    provenance={MARKUP: MARKUP},
    recorded_at="2025-01-31T12:00:00+00:00",
)
"""A fact whose every text is markup, and whose numbers are absurd."""
