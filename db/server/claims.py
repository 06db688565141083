"""Claims of facts of each kind: which are comparable, and their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement

from feinsum.db.sql.retracting import FactRow
from feinsum.db.sql.tables import PlanRow, RecordRow
from feinsum.records import DocumentKind, PlanRecord, TuningRecord

__all__ = ["CLAIMS", "Claims", "Fact", "claims_of"]

Fact: TypeAlias = TuningRecord | PlanRecord


@dataclass(frozen=True)
class Claims:
    """How facts of a kind are compared.

    Attributes:
        kind: of the documents.
        row: their table.
        alike: the rows that may make the same claim as a fact.
        subject: equal exactly for facts that make the same claim.
        amount: what a fact claims, and the ends of an interval of it; more is better.
            None if it claims nothing that cannot be checked.
    """

    kind: DocumentKind
    row: FactRow
    alike: Callable[[Any], tuple[ColumnElement[bool], ...]]
    subject: Callable[[Any], tuple[object, ...]]
    amount: Callable[[Any], tuple[float, float, float] | None]


def _rows_like_record(record: TuningRecord) -> tuple[ColumnElement[bool], ...]:
    return (
        RecordRow.workload_key == record.workload,
        RecordRow.device_id == record.environment.device.id,
        RecordRow.transform_name == record.spec.name,
        RecordRow.transform_version == record.spec.version,
    )


def _subject_of_record(record: TuningRecord) -> tuple[object, ...]:
    there = record.environment
    return (
        record.recipe,
        record.measurement.sizes,
        there.driver_version,
        there.platform_version,
    )


def _speedup(record: TuningRecord) -> tuple[float, float, float]:
    measured = record.measurement
    return measured.speedup, *measured.speedup_interval


def _rows_like_plan(record: PlanRecord) -> tuple[ColumnElement[bool], ...]:
    return (
        PlanRow.workload_key == record.workload,
        PlanRow.plan_id == record.plan_id,
        PlanRow.device_id == record.fleet.device.id,
        PlanRow.engine == record.fleet.engine,
    )


def _subject_of_plan(record: PlanRecord) -> tuple[object, ...]:
    return record.plan_id, record.fleet.hosts, record.fleet.threads


def _runs_per_second(record: PlanRecord) -> tuple[float, float, float] | None:
    """Counts are counted again wherever a fact arrives; only seconds are a claim."""
    if record.median_s is None:
        return None
    slowest, fastest = max(record.samples_s), min(record.samples_s)
    return 1 / record.median_s, 1 / slowest, 1 / fastest


CLAIMS = {
    TuningRecord: Claims(
        "record", RecordRow, _rows_like_record, _subject_of_record, _speedup
    ),
    PlanRecord: Claims(
        "plan", PlanRow, _rows_like_plan, _subject_of_plan, _runs_per_second
    ),
}
"""By the class of facts."""


def claims_of(fact: Fact) -> Claims:
    """How facts of this kind are compared."""
    return CLAIMS[type(fact)]
