"""Facts for tests: plain factories, and a strategy for hypothesis."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from feinsum.canonical import CANONICALIZER, FORM_VERSION, WorkloadKey, compute_digest
from feinsum.records import (
    BlockCheck,
    Device,
    DevicePeaks,
    Environment,
    Fleet,
    Host,
    Measurement,
    PlanRecord,
    Processor,
    TransformSpec,
    Trial,
    TuningRecord,
    Verification,
)

if TYPE_CHECKING:  # a process that only writes facts does without the planner
    from feinsum.distributed import Plan
    from feinsum.distributed.facts import AnyPlan

TEXTS: dict[WorkloadKey, str] = {}
"""The canonical texts of the workloads that were made here."""


def make_workload(number: int = 0) -> WorkloadKey:
    """The key of a product of a matrix with a vector of ``4 + number`` entries."""
    n = 4 + number
    text = f"a b, b -> a | A0[n,{n}]:<f8 A1[{n}]:<f8 | A0 A1"
    key = WorkloadKey(f"{FORM_VERSION}-{CANONICALIZER}-{compute_digest(text)}")
    TEXTS[key] = text
    return key


WORKLOAD = make_workload()


def text_of(workload: WorkloadKey) -> str:
    """The text of a workload; of one that is none, something."""
    return TEXTS.get(workload, f"text of {workload}")


def make_processor(microarchitecture: str = "zen5") -> Processor:
    """A processor of that microarchitecture."""
    return Processor(
        vendor="AuthenticAMD",
        family=26,
        model=2,
        stepping=-1,
        microarchitecture=microarchitecture,
        features=("avx2", "avx512f"),
        n_cores=2,
        cache_bytes={"L1d": 48 * 2**10, "L2": 2**20},
    )


def make_device(number: int = 0, processor: Processor | None = None) -> Device:
    """The device of that number; different numbers are different devices."""
    return Device(
        platform="Portable Computing Language",
        name=f"cpu-{number}",
        vendor="GenuineIntel",
        kind="cpu",
        architecture="x86_64",
        compute_units=4 + number,
        processor=processor,
    )


def make_environment(device: Device | None = None, driver: str = "6.0") -> Environment:
    """An environment on a device."""
    return Environment(
        device=device or make_device(),
        driver_version=driver,
        platform_version="OpenCL 3.0",
        software={"loopy": "2025.2"},
        policy={"rounds": 3, "timer": "wall"},
    )


def make_measurement(median_s: float = 1e-3) -> Measurement:
    """A measurement with that median, ten times as fast as the baseline."""
    return Measurement(
        samples_s=(median_s, median_s * 0.9, median_s * 1.1),
        baseline_s=(median_s * 10,),
        timer="wall",
        n_warmup=1,
        sizes={"n": 1000},
        operations={"float64": 2000},
        footprint_bytes=8000,
        verification=Verification("reference", 1e-9, 1e-15, ({"n": 17},)),
    )


def make_record(
    number: int = 0,
    *,
    workload: WorkloadKey = WORKLOAD,
    workload_text: str = "",
    environment: Environment | None = None,
    note: str = "",
) -> TuningRecord:
    """A record; different numbers are different facts of a workload."""
    return TuningRecord(
        workload=workload,
        workload_text=workload_text or text_of(workload),
        environment=environment or make_environment(),
        spec=TransformSpec(
            "rowwise", 1, {"lanes": 8, "order": ("i", "j"), "n": number}
        ),
        measurement=make_measurement((number + 1) * 1e-3),
        provenance={"note": note} if note else {},
        recorded_at="2025-01-31T12:00:00+00:00",
    )


def make_trial(
    number: int = 0,
    *,
    workload: WorkloadKey = WORKLOAD,
    environment: Environment | None = None,
    status: str = "ok",
    message: str = "",
    second: int = 0,
) -> Trial:
    """A trial; different numbers are trials of different recipes."""
    is_ok = status == "ok"
    return Trial(
        workload=workload,
        workload_text=text_of(workload),
        sizes={"n": 1000},
        environment=environment or make_environment(),
        spec=make_record(number).spec,
        status=status,
        message=message,
        median_s=1e-3 * (number + 1) if is_ok else None,
        ratio=0.1 * (number + 1) if is_ok else None,
        recorded_at=f"2025-01-31T12:00:{second:02}.000000+00:00",
    )


@cache
def make_plan(n_columns: int = 4, processes: int = 2) -> Plan:
    """A plan of a product of a matrix with a vector."""
    import feinsum

    A, x = feinsum.array("A", (64, n_columns)), feinsum.array("x", n_columns)
    return feinsum.plan(feinsum.einsum("ij,j->i", A, x), processes=processes)


def make_fleet(processes: int = 2, engine: str = "mpi") -> Fleet:
    """Ranks of one thread on a host with as many cores."""
    device = make_device(processor=make_processor())
    return Fleet(engine, (Host(processes, processes),), 1, device, {"feinsum": "0"})


def make_plan_record(
    number: int = 0, *, plan: AnyPlan | None = None, fleet: Fleet | None = None
) -> PlanRecord:
    """What a plan moved and took; different numbers are different facts of it."""
    from feinsum.distributed.facts import build_fact

    made, where = plan or make_plan(), fleet or make_fleet()
    samples = tuple((number + 1) * 1e-3 * share for share in (1.0, 0.9, 1.1))
    checked = BlockCheck(2, 64, 1e-9, 1e-15)
    found = build_fact(made, where, made.counts.moved, checked, samples)
    return replace(found, recorded_at="2025-01-31T12:00:00+00:00")


def make_peaks(
    device: Device | None = None, measured_at: str = "2025-01-01T00:00:00"
) -> DevicePeaks:
    """Measured limits of a device at some time."""
    return DevicePeaks(
        device=device or make_device(),
        bandwidth_bytes_per_s=2e10,
        operations_per_s={"float32": 2e11, "float64": 1e11},
        measured_at=measured_at,
    )


def tuning_records() -> st.SearchStrategy[TuningRecord]:
    """Records of few workloads and devices, so that sets of them overlap."""
    return st.builds(
        make_record,
        st.integers(0, 5),
        workload=st.integers(0, 2).map(make_workload),
        environment=st.builds(
            make_environment,
            st.sampled_from([make_device(), make_device(processor=make_processor())]),
            st.sampled_from(["6.0", "7.0"]),
        ),
        note=st.sampled_from(["", "é, 'quoted'", "\x01 and \n", "中文 🎈"]),
    )
