"""Retractions: documents that permanently remove others from every look-up."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from feinsum.errors import InvalidRequestError
from feinsum.records.document import Document
from feinsum.records.record import utc_now

MAX_IDS, MAX_PREFIXES = 10_000, 100
"""Maximum ids of a query, and of abbreviated ones among them.

A prefix costs a scan of all ids.
"""

MAX_REASON = 500
"""Maximum characters of a reason, and of a name."""

MIN_DIGITS, DIGITS = 12, 64
"""Digits of an abbreviated id, and of a full one."""

HEXADECIMAL = frozenset("0123456789abcdef")

ContentId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Words = Annotated[str, Field(max_length=MAX_REASON, pattern=r"^[^\x00]*$")]


@dataclass(frozen=True)
class Retraction(Document):
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
    retracted_at: str = field(default_factory=utc_now)

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
        _check_ids(self.ids)
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
        name, at, version = self.transform.rpartition("@")
        if not at:
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
        if self.since is None:
            return None
        try:
            time = datetime.fromisoformat(self.since)
            # without this, Python takes a time without an offset as local
            time = time if time.tzinfo else time.replace(tzinfo=UTC)
            return time.astimezone(UTC)
        except (ValueError, OverflowError):
            raise InvalidRequestError(
                f"the time {self.since[:50]!r} was given; expected ISO 8601, such as "
                "2025-01-31 or 2025-01-31T12:00:00Z"
            ) from None


def _check_ids(ids: Collection[str]) -> None:
    for digits in ids:
        if not (MIN_DIGITS <= len(digits) <= DIGITS and set(digits) <= HEXADECIMAL):
            raise InvalidRequestError(
                f"{digits[:80]!r} is not the id of a fact; expected its first "
                f"{MIN_DIGITS} to {DIGITS} hexadecimal digits"
            )
    n_prefixes = sum(len(digits) < DIGITS for digits in ids)
    if len(ids) > MAX_IDS or n_prefixes > MAX_PREFIXES:
        raise InvalidRequestError(
            f"{len(ids)} ids were given, {n_prefixes} of them prefixes; expected "
            f"at most {MAX_IDS}, with {MAX_PREFIXES} prefixes"
        )
