"""Tuning records as plain data, their choice, and the protocol of their stores."""

from feinsum.records.document import content_id, from_json, to_json
from feinsum.records.environment import Device, DevicePeaks, Environment
from feinsum.records.kinds import KINDS, Document, DocumentKind, kind_of
from feinsum.records.match import Level, Match, Policy, best_match, level_of, rank
from feinsum.records.measurement import (
    Measurement,
    Verification,
    median_interval,
    quartiles,
)
from feinsum.records.record import TuningRecord, utc_now
from feinsum.records.spec import ParameterValue, TransformSpec
from feinsum.records.store import (
    DocumentStore,
    InMemoryStore,
    RecordStore,
    TrialStore,
)
from feinsum.records.trial import MESSAGE_LENGTH, OK, Trial

__all__ = [
    "KINDS",
    "MESSAGE_LENGTH",
    "OK",
    "Device",
    "DevicePeaks",
    "Document",
    "DocumentKind",
    "DocumentStore",
    "Environment",
    "InMemoryStore",
    "Level",
    "Match",
    "Measurement",
    "ParameterValue",
    "Policy",
    "RecordStore",
    "TransformSpec",
    "Trial",
    "TrialStore",
    "TuningRecord",
    "Verification",
    "best_match",
    "content_id",
    "from_json",
    "kind_of",
    "level_of",
    "median_interval",
    "quartiles",
    "rank",
    "to_json",
    "utc_now",
]
