"""Examples for the description of the routes: one matrix-vector product, everywhere."""

from __future__ import annotations

import json
from typing import Any

from feinsum.canonical import canonicalize
from feinsum.ir import from_text
from feinsum.records import (
    BlockCheck,
    Device,
    DevicePeaks,
    Environment,
    Fleet,
    Host,
    Links,
    Measurement,
    PlanRecord,
    Processor,
    Retraction,
    TransformSpec,
    TuningRecord,
    Verification,
    to_json,
)

FORM = canonicalize(from_text("i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x"))

DEVICE = Device(
    platform="Portable Computing Language",
    name="cpu-znver4",
    vendor="AuthenticAMD",
    kind="cpu",
    architecture="x86_64",
    compute_units=16,
    processor=Processor(
        vendor="AuthenticAMD",
        family=25,
        model=17,
        stepping=1,
        microarchitecture="zen4",
        features=("avx", "avx2", "avx512f", "fma"),
        n_cores=8,
        cache_bytes={"L1d": 32 * 2**10, "L2": 2**20, "L3": 32 * 2**20},
    ),
)

RECORD = TuningRecord(
    workload=FORM.key,
    workload_text=FORM.text,
    environment=Environment(
        device=DEVICE,
        driver_version="6.0",
        platform_version="OpenCL 3.0 PoCL 6.0",
        software={"loopy": "2025.2"},
        policy={"rounds": 3, "timer": "opencl-profiling"},
    ),
    spec=TransformSpec("rowwise", 1, {"index": "a", "lanes": 8}),
    measurement=Measurement(
        samples_s=(1.0e-3, 1.1e-3, 1.2e-3),
        baseline_s=(4.0e-3, 4.1e-3, 4.2e-3),
        timer="opencl-profiling",
        n_warmup=1,
        sizes={"N0": 1000000},
        operations={"float64": 8000000},
        footprint_bytes=40000032,
        verification=Verification("numpy", 1e-12, 2e-16, ({"N0": 17},)),
    ),
    provenance={"host": "node17"},
    recorded_at="2026-01-31T12:00:00+00:00",
)

PEAKS = DevicePeaks(
    device=DEVICE,
    bandwidth_bytes_per_s=1.6e11,
    operations_per_s={"float64": 9.0e11},
    measured_at="2026-01-31T12:00:00+00:00",
)


# as text: planning would need the planner in every worker
PLANNED = (
    '{"einsum":"i j, j -> i | A[64,4]:<f8 x[4]:<f8 | A x","format":1,"leaves":['
    '{"key":"fe2-nauty2.8-cfdc92779da83f83a50b864de67c174b3500bd60","text":"i j'
    ', j -> i | b0[32,4]:<f8 b1[4]:<f8 | b0 b1"}],"name":"planned","path":[[0,1'
    ']],"processes":2,"schedules":[{"axes":["i"],"loop":null,"machine":{"sizes"'
    ':[2]},"result":{"cuts":[[0]],"fixed":[],"machine":{"sizes":[2]}}}],"sizes"'
    ':{},"starts":{"A":{"cuts":[[0],[]],"fixed":[],"machine":{"sizes":[2]}},"x"'
    ':{"cuts":[[0]],"fixed":[],"machine":{"sizes":[2]}}},"statements":null}'
)  # fmt: skip

PLAN = PlanRecord(
    workload="fe2-nauty2.8-e8a164d913238e7141b21c4e826ddcae3c3b2928",
    plan=PLANNED,
    fleet=Fleet(
        engine="mpi",
        hosts=(Host(ranks=2, cores=16),),
        threads=1,
        device=DEVICE,
        software={"feinsum": "0.1", "mpi": "MPICH 5.0.2"},
        links=Links(message_s=1.2e-6, element_s=2.0e-9),
    ),
    predicted={
        "moved": 4,
        "received": 4,
        "reduced": 0,
        "most_received": 2,
        "messages": 2,
        "most_messages": 1,
        "most_requests": 1,
        "peak": 166,
        "points": 256,
        "most_points": 128,
        "busy": 2,
    },
    counted=4,
    verification=BlockCheck(
        n_blocks=2, n_entries=64, tolerance=1e-9, largest_error=2e-16
    ),
    samples_s=(4.0e-5, 4.1e-5, 4.2e-5),
    recorded_at="2026-01-31T12:00:00+00:00",
)


RETRACTION = Retraction(
    document=RECORD.id,
    reason="sent with a leaked key",
    retracted_by="ann",
    retracted_at="2026-02-01T09:00:00+00:00",
)


def document(value: object) -> Any:
    """A document as plain data."""
    return json.loads(to_json(value))
