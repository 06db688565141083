"""Tuning records as plain data, their choice, and the protocol of their stores."""

from feinsum.records.demand import Demand, Miss, is_text_of
from feinsum.records.document import (
    Serialized,
    content_id,
    from_json,
    serialize,
    to_json,
    untrusted,
)
from feinsum.records.environment import Device, DevicePeaks, Environment
from feinsum.records.fleet import EngineName, Fleet, Host, Links
from feinsum.records.kinds import (
    FACT_KINDS,
    KINDS,
    Document,
    DocumentKind,
    Kind,
    kind_of,
)
from feinsum.records.match import (
    WORST_ACCEPTED,
    Extents,
    Match,
    MatchLevel,
    Policy,
    Remoteness,
    best_match,
    distance,
    level_of,
    rank,
    remoteness,
    resources_of,
    tied,
)
from feinsum.records.measurement import (
    Measurement,
    Verification,
    is_noisy,
    median_interval,
    quartiles,
)
from feinsum.records.plan_record import BlockCheck, PlanRecord
from feinsum.records.plausibility import (
    APART,
    CODES,
    Finding,
    check_plausible,
    check_unique_names,
    judge,
    latest_peaks,
    refusals,
    unchecked,
)
from feinsum.records.processor import Processor
from feinsum.records.record import TuningRecord, utc_now
from feinsum.records.retraction import Retraction, RetractionQuery
from feinsum.records.roofline import operations_s, roofline_s
from feinsum.records.spec import FramedSpec, ParameterValue, TransformSpec
from feinsum.records.store import (
    Candidates,
    InMemoryStore,
    LookUp,
    Store,
)
from feinsum.records.trial import MESSAGE_LENGTH, OK, Trial

__all__ = [
    "APART",
    "CODES",
    "FACT_KINDS",
    "KINDS",
    "MESSAGE_LENGTH",
    "OK",
    "WORST_ACCEPTED",
    "BlockCheck",
    "Candidates",
    "Demand",
    "Device",
    "DevicePeaks",
    "Document",
    "DocumentKind",
    "EngineName",
    "Environment",
    "Extents",
    "Finding",
    "Fleet",
    "FramedSpec",
    "Host",
    "InMemoryStore",
    "Kind",
    "Links",
    "LookUp",
    "Match",
    "MatchLevel",
    "Measurement",
    "Miss",
    "ParameterValue",
    "PlanRecord",
    "Policy",
    "Processor",
    "Remoteness",
    "Retraction",
    "RetractionQuery",
    "Serialized",
    "Store",
    "TransformSpec",
    "Trial",
    "TuningRecord",
    "Verification",
    "best_match",
    "check_plausible",
    "check_unique_names",
    "content_id",
    "distance",
    "from_json",
    "is_noisy",
    "is_text_of",
    "judge",
    "kind_of",
    "latest_peaks",
    "level_of",
    "median_interval",
    "operations_s",
    "quartiles",
    "rank",
    "refusals",
    "remoteness",
    "resources_of",
    "roofline_s",
    "serialize",
    "tied",
    "to_json",
    "unchecked",
    "untrusted",
    "utc_now",
]
