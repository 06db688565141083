"""The kinds of documents: facts, plans, limits of devices, trials, retractions.

A demand is not a document: it counts unanswered look-ups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from statistics import median
from typing import Annotated, Any, Literal, TypeAlias

from constantdict import constantdict
from pydantic import Field

from feinsum.canonical import WorkloadKey, compute_digest
from feinsum.errors import InvalidRecordError, InvalidRequestError
from feinsum.records.document import Document as StoredDocument
from feinsum.records.document import (
    Part,
    digest_of,
    format_canonical,
    from_json,
    get_utc_now,
    parse_instant,
)
from feinsum.records.environment import Device, DevicePeaks, Fleet
from feinsum.records.record import Trial, TuningRecord
from feinsum.words import format_brief, format_count


@dataclass(frozen=True)
class BlockCheck(Part):
    """Blocks of results that were compared with a reference.

    Attributes:
        n_blocks: number of samples, each of one rank's part of one result.
        n_entries: number of entries in all of them.
        tolerance: maximum error, relative to the largest entry.
        largest_error: the largest error found.
    """

    n_blocks: int
    n_entries: int
    tolerance: float
    largest_error: float


@dataclass(frozen=True)
class PlanRecord(StoredDocument):
    """A plan with its traffic and run times on a fleet.

    Attributes:
        workload: the key of the einsum or program.
        plan: its document, as text.
        fleet: the fleet that ran it.
        predicted: the counts of the plan's steps, by name; see
            :class:`feinsum.distributed.Counts`.
        counted: elements received by all ranks.
        verification: of blocks of the results.
        samples_s: seconds of runs, each of the slowest rank; none if ranks shared cores
            (:attr:`Fleet.is_timed`).
        provenance: who or what recorded it, as free text by topic.
        recorded_at: UTC, ISO 8601.
    """

    mappings = ("predicted", "provenance")

    workload: str
    plan: str  # as text: records of plans need no planner to be stored or compared
    fleet: Fleet
    predicted: Mapping[str, int]
    counted: int
    verification: BlockCheck
    samples_s: tuple[float, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=constantdict)
    recorded_at: str = field(default_factory=get_utc_now)

    @cached_property
    def plan_id(self) -> str:
        """The content id of the plan."""
        return hashlib.sha256(self.plan.encode()).hexdigest()

    @property
    def median_s(self) -> float | None:
        """Seconds of a run; None if none were taken."""
        return median(self.samples_s) if self.samples_s else None

    def __str__(self) -> str:
        seconds = "" if self.median_s is None else f", {self.median_s * 1e3:.4g} ms"
        moved = f"{format_count(self.counted, 'element', ',')} moved{seconds}"
        return f"plan {self.plan_id[:12]} on {self.fleet}: {moved}"

    def __repr__(self) -> str:
        return format_brief(self, str(self))


MAX_IDS = 10_000
"""Maximum ids of a query."""

MAX_REASON = 500
"""Maximum characters of a reason, and of a name."""

MIN_DIGITS, DIGITS = 12, 64
"""Digits of an abbreviated id, and of a full one."""

HEXADECIMAL = frozenset("0123456789abcdef")

ContentId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Words = Annotated[str, Field(max_length=MAX_REASON, pattern=r"^[^\x00]*$")]


@dataclass(frozen=True)
class Retraction(StoredDocument):
    """The retraction of a document.

    It may arrive before the document and hides it from then on, so retractions merge
    like facts. It is final; after a mistaken retraction, measure again, which makes
    another fact.

    Attributes:
        document: content id of a fact or of measured limits of a device.
        reason: why, in words.
        retracted_by: who; of the service, the name of a key.
        retracted_at: UTC, ISO 8601.

    >>> one = Retraction("0" * 64, "sent with a leaked key", "ann")
    >>> one.id == Retraction(one.document, one.reason, "bob", one.retracted_at).id
    False
    """

    document: ContentId
    reason: Words
    retracted_by: Words
    retracted_at: str = field(default_factory=get_utc_now)

    def __str__(self) -> str:
        return f"{self.retracted_by} at {self.retracted_at}: {self.reason}"


@dataclass(frozen=True)
class RetractionQuery:
    """The facts to retract: those that match all given criteria.

    Attributes:
        ids: content ids, or prefixes of at least 12 digits.
        workload: a key, of an einsum or a program.
        recorders: names of keys of a service. Only facts sent with these names alone
            match, not those that somebody else sent too.
        transform: a name, or a name and a version such as ``rowwise@1``.
        since: not before this time, ISO 8601, UTC by default: when the service received
            the fact or, if it was recorded directly in the database, when it was
            measured.

    Raises:
        InvalidRequestError: if there are no criteria, or invalid ones.

    >>> RetractionQuery(transform="rowwise@1").transform_parts
    ('rowwise', 1)
    """

    ids: tuple[str, ...] = ()
    workload: str | None = None
    recorders: tuple[str, ...] = ()
    transform: str | None = None
    since: str | None = None

    def __post_init__(self) -> None:
        # An empty query would match every fact.
        if not any(vars(self).values()):
            raise InvalidRequestError(
                "no fact was named for retraction; expected ids, a workload, "
                "recorders, a transform or a time"
            )
        for digits in self.ids:
            _check_id(digits)
        if len(self.ids) > MAX_IDS:
            raise InvalidRequestError(
                f"{len(self.ids)} ids were given; expected at most {MAX_IDS}"
            )
        named = (self.workload, self.transform, self.since, *self.recorders)
        for text in filter(None, named):
            if "\x00" in text or len(text) > MAX_REASON:
                raise InvalidRequestError(
                    f"{text[:50]!r} was given; expected at most {MAX_REASON} "
                    "characters, and no NUL"
                )
        # evaluated now, so that an invalid query is refused before it reaches a store
        _ = self.transform_parts, self.since_instant

    @property
    def transform_parts(self) -> tuple[str, int | None] | None:
        """The name of the transform, and its version if given."""
        if self.transform is None:
            return None
        name, separator, version = self.transform.rpartition("@")
        if not separator:
            return self.transform, None
        if not (name and version.isdecimal() and len(version) < 9):
            raise InvalidRequestError(
                f"the transform {self.transform[:80]!r} was given; expected a name, or "
                "a name and a version such as rowwise@1"
            )
        return name, int(version)

    @property
    def since_instant(self) -> datetime | None:
        """The time, in UTC."""
        try:
            return None if self.since is None else parse_instant(self.since)
        except InvalidRecordError:
            raise InvalidRequestError(
                f"the time {self.since!r:.52} was given; expected ISO 8601, such as "
                "2025-01-31 or 2025-01-31T12:00:00Z"
            ) from None


def _check_id(digits: str) -> None:
    if not (MIN_DIGITS <= len(digits) <= DIGITS and set(digits) <= HEXADECIMAL):
        raise InvalidRequestError(
            f"{digits[:80]!r} is not the id of a fact; expected its first "
            f"{MIN_DIGITS} to {DIGITS} hexadecimal digits"
        )


@dataclass(frozen=True)
class Miss:
    """A look-up without an answer; ``device`` is empty if none was named."""

    workload: WorkloadKey
    device: str

    @property
    def sort_key(self) -> tuple[str, str]:
        """The order in which misses are stored."""
        return self.workload, self.device


@dataclass(frozen=True)
class Demand:
    """How often a workload was requested, for a device, without an answer.

    Attributes:
        workload_text: the canonical einsum, if a request had it.
        device: as the requests named it; empty if they named none.
        n_callers: number of callers that requested it.
    """

    workload: WorkloadKey
    workload_text: str | None
    device: str
    count: int
    first_seen: datetime
    last_seen: datetime
    n_callers: int = 1

    @property
    def sort_key(self) -> tuple[int, int, str, str]:
        """The position in a list of demands, most wanted first."""
        return self.n_callers, self.count, self.workload, self.device


def is_text_of(text: str, workload: str) -> bool:
    """Return whether a text is the canonical text that a key digests.

    >>> from feinsum.canonical import canonicalize
    >>> from feinsum.ir import array, einsum
    >>> form = canonicalize(einsum("ij->j", array("A", (3, 4))))
    >>> is_text_of(form.text, form.key), is_text_of("another", form.key)
    (True, False)
    """
    return workload.endswith(f"-{compute_digest(text)}")


Document: TypeAlias = TuningRecord | DevicePeaks | Trial | Retraction | PlanRecord

DocumentKind: TypeAlias = Literal["record", "peaks", "trial", "retraction", "plan"]


@dataclass(frozen=True)
class Kind:
    """The common properties of all documents of a kind.

    Attributes:
        cls: their class.
        summary: description of such a document in the schema of lines.
        time: the attribute with the time, ISO 8601.
        device: the device of a document.
        has_recipe: whether it has the outcome of a recipe for a workload in an
            environment.
    """

    cls: type[Document]
    summary: str
    time: str
    device: Callable[[Any], Device | None]
    has_recipe: bool = False


KINDS: dict[DocumentKind, Kind] = {
    "record": Kind(
        TuningRecord,
        "A fact.",
        "recorded_at",
        lambda record: record.environment.device,
        has_recipe=True,
    ),
    "peaks": Kind(
        DevicePeaks,
        "Measured limits of a device.",
        "measured_at",
        lambda peaks: peaks.device,
    ),
    "trial": Kind(
        Trial,
        "A trial.",
        "recorded_at",
        lambda trial: trial.environment.device,
        has_recipe=True,
    ),
    "retraction": Kind(
        Retraction,
        "The retraction of a document.",
        "retracted_at",
        lambda _retraction: None,
    ),
    "plan": Kind(
        PlanRecord,
        "The traffic and run times of a plan on a fleet.",
        "recorded_at",
        lambda record: record.fleet.device,
    ),
}
"""All kinds. A new one is an entry here, and a table in :mod:`feinsum.db.sql`."""

FACT_KINDS: tuple[DocumentKind, ...] = ("record", "peaks", "plan")
"""Kinds that answer look-ups: they have senders, and can be retracted."""


def get_kind(document: Document) -> DocumentKind:
    """Return the kind of a document."""
    # in the order of KINDS: most documents are records
    return next(name for name, kind in KINDS.items() if isinstance(document, kind.cls))


def parse_document(kind: DocumentKind, document_id: str, text: str) -> Document:
    """Parse a document in its canonical text, which must have that id.

    Raises:
        InvalidRecordError: if it is not well formed, or does not match the id.
    """
    if not isinstance(text, str) or digest_of(text) != document_id:
        raise InvalidRecordError(
            f"{kind} {document_id}: the text has another content id; expected them to "
            "be equal: it was changed"
        )
    document = from_json(KINDS[kind].cls, text)
    vars(document)["id"] = document_id  # checked above; costly to compute again
    return document


def parse_foreign_document(kind: DocumentKind, document_id: Any, data: Any) -> Document:
    """Parse a document in foreign JSON data; see :func:`parse_document`."""
    if not is_content_id(document_id):
        raise InvalidRecordError(
            f"a {kind} has no content id; expected {DIGITS} hexadecimal digits"
        )
    try:
        text = format_canonical(data)
    # RecursionError: senders may nest JSON to any depth
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(
            f"{kind} {document_id} is not a valid document: {error}"
        ) from None
    return parse_document(kind, document_id, text)


def is_content_id(text: object) -> bool:
    """Return whether a text can be the id of a document."""
    is_long = isinstance(text, str) and len(text) == DIGITS
    return is_long and HEXADECIMAL.issuperset(str(text))
