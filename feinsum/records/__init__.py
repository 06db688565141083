"""Tuning records as plain data, their choice, and the protocol of their stores."""

from feinsum.records.document import content_id, from_json, to_json
from feinsum.records.environment import Device, DevicePeaks, Environment
from feinsum.records.kinds import KINDS, Document, DocumentKind, kind_of
from feinsum.records.look_up import Candidates, CandidateStore, LookUp, candidates
from feinsum.records.match import (
    WORST_ACCEPTED,
    Extents,
    Level,
    Match,
    Policy,
    best_match,
    distance,
    level_of,
    rank,
    resources_of,
    tied,
)
from feinsum.records.measurement import (
    Measurement,
    Verification,
    median_interval,
    quartiles,
)
from feinsum.records.record import TuningRecord, utc_now
from feinsum.records.roofline import roofline_s
from feinsum.records.spec import FramedSpec, ParameterValue, TransformSpec
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
    "WORST_ACCEPTED",
    "CandidateStore",
    "Candidates",
    "Device",
    "DevicePeaks",
    "Document",
    "DocumentKind",
    "DocumentStore",
    "Environment",
    "Extents",
    "FramedSpec",
    "InMemoryStore",
    "Level",
    "LookUp",
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
    "candidates",
    "content_id",
    "distance",
    "from_json",
    "kind_of",
    "level_of",
    "median_interval",
    "quartiles",
    "rank",
    "resources_of",
    "roofline_s",
    "tied",
    "to_json",
    "utc_now",
]
