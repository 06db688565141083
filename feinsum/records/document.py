"""Documents: frozen dataclasses that round-trip to JSON and know their content id.

The canonical text of a document is JSON with sorted names and no spaces, so equal
documents have equal texts on every machine, and the SHA-256 of the text names the
document everywhere::

    Retraction(document="0f..", reason="wrong clock", ...)
        | serialize
    {"document":"0f..","reason":"wrong clock",...}      (text)
        | SHA-256
    "7c1e..."                                            (content id)
"""

from __future__ import annotations

import hashlib
import json
from copy import copy
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from constantdict import constantdict
from pydantic import ConfigDict, TypeAdapter, ValidationError

from feinsum.errors import InvalidRecordError

T = TypeVar("T")

D = TypeVar("D", bound="Document")

_UNTRUSTED = "_is_untrusted"

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Settings of validation: no unknown fields, no silent conversions."""

MAX_ERRORS = 5
"""Maximum invalid fields in an error message."""


class Part:
    """Base of the dataclasses in documents: validated strictly, constant, hashable."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    sequences: ClassVar[tuple[str, ...]] = ()
    """The fields that are sequences, which become tuples."""
    mappings: ClassVar[tuple[str, ...]] = ()
    """The fields that are mappings, which become constant."""

    def __post_init__(self) -> None:
        for name in self.sequences:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in self.mappings:
            object.__setattr__(self, name, constantdict(getattr(self, name)))


class Document(Part):
    """Base of all stored and sent documents."""

    @cached_property
    def id(self) -> str:
        """Content id; two documents are one fact exactly if their ids are equal."""
        return compute_content_id(self)

    @property
    def is_trusted(self) -> bool:
        """Whether its source trusts the sender; no part of the document."""
        return _UNTRUSTED not in vars(self)


class Serialized(NamedTuple):
    """A document as JSON, serialized once and passed on.

    Attributes:
        data: dicts, lists and values.
        text: the canonical text of the data.
    """

    data: Any
    text: str

    @property
    def id(self) -> str:
        """The content id of the document."""
        return digest_of(self.text)


def mark_untrusted(document: D) -> D:
    """Return a copy that is marked as coming from an untrusted sender."""
    # The mark is an attribute beside the fields: equality and content id ignore it.
    marked = copy(document)
    vars(marked)[_UNTRUSTED] = True
    return marked


# Building a validator takes much longer than using it.
@cache
def _make_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def serialize(document: object) -> Serialized:
    """Serialize a document.

    Raises:
        InvalidRecordError: for a value that JSON cannot hold, such as NaN.
    """
    kind: Any = type(document)
    try:
        data = _make_adapter(kind).dump_python(document, mode="json")
        return Serialized(data, format_canonical(data))
    except ValueError as error:
        raise InvalidRecordError(f"not a valid {kind.__name__}: {error}") from None


def to_json(document: object) -> str:
    """Return the canonical JSON text of a document; see :func:`serialize`."""
    return serialize(document).text


def format_canonical(data: Any) -> str:
    """Return the canonical text of JSON data: sorted names, no spaces.

    Raises:
        ValueError: for a value that JSON cannot hold, such as NaN.

    >>> format_canonical({"b": 1, "a": [2.5]})
    '{"a":[2.5],"b":1}'
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(kind: type[T], text: str | bytes, name: str | None = None) -> T:
    """Parse and validate a document; inverse of :func:`to_json`.

    Args:
        kind: type of the document.
        text: the document as JSON.
        name: its name in errors; by default the name of the type.

    Raises:
        InvalidRecordError: saying which field is wrong and what was expected.
    """
    # strict: a number as text, or an unknown field, is refused and not converted
    hashable_kind: Any = kind
    try:
        return cast(T, _make_adapter(hashable_kind).validate_json(text))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}"
            for e in error.errors(include_url=False)[:MAX_ERRORS]
        )
        raise InvalidRecordError(
            f"not a valid {name or kind.__name__}: {problems}"
        ) from None


def compute_content_id(document: object) -> str:
    """Return the SHA-256 of the canonical text, as hexadecimal digits."""
    return digest_of(to_json(document))


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, as hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def get_utc_now() -> str:
    """Return the current UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def parse_instant(text: str) -> datetime:
    """Parse an ISO 8601 time; one without an offset is in UTC.

    Raises:
        InvalidRecordError: if the text is not one.
    """
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRecordError(
            f"the time {text[:50]!r} was given, expected ISO 8601 in UTC, such as "
            "'2025-01-31T12:00:00+00:00' (feinsum.records.get_utc_now)"
        ) from None


def parse_json(text: str | bytes) -> Any:
    """Parse foreign JSON; refuse ambiguous text.

    Raises:
        InvalidRecordError: if it is no JSON, or an object has a name twice.

    >>> parse_json('{"a": {"b": 1, "b": 2}}')
    Traceback (most recent call last):
        ...
    feinsum.errors.InvalidRecordError: the name 'b' is repeated in a JSON object; ...
    """
    try:
        # Parsers differ in which of two equal names counts, and so would content ids.
        return json.loads(text, object_pairs_hook=_without_repeats)
    except InvalidRecordError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(f"not JSON: {str(error)[:200]}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRecordError(
            f"the name {twice[:50]!r} is repeated in a JSON object; expected every "
            "name once"
        )
    return unique
