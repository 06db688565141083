"""Documents: frozen dataclasses that round-trip to JSON and know their content id."""

from __future__ import annotations

import hashlib
import json
from copy import copy
from functools import cache, cached_property
from typing import Any, ClassVar, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from feinsum.errors import InvalidRecordError

T = TypeVar("T")

D = TypeVar("D", bound="Document")

_UNTRUSTED = "_is_untrusted"

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""How every document is validated: no unknown fields, no silent conversions."""


class Document:
    """Base of all stored and sent documents, which are dataclasses."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @cached_property
    def id(self) -> str:
        """Content id; two documents are one fact exactly if their ids are equal."""
        return content_id(self)

    @property
    def is_trusted(self) -> bool:
        """Whether its source trusts who sent it; no part of the document."""
        return _UNTRUSTED not in vars(self)


def untrusted(document: D) -> D:
    """The same document, marked: its source does not trust who sent it."""
    marked = copy(document)
    vars(marked)[_UNTRUSTED] = True
    return marked


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(document: object) -> str:
    """The document as JSON: sorted keys, no spaces, the same text everywhere.

    Raises:
        InvalidRecordError: for a value that JSON cannot hold, such as NaN.
    """
    try:
        data = to_data(document)
        return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        name = type(document).__name__
        raise InvalidRecordError(f"not a valid {name}: {error}") from None


def to_data(document: object) -> Any:
    """The document as the dicts, lists and values of its JSON text."""
    kind: Any = type(document)
    return _adapter(kind).dump_python(document, mode="json")


def from_json(kind: type[T], text: str | bytes, name: str | None = None) -> T:
    """Inverse of :func:`to_json`.

    Args:
        name: its name in errors; by default the name of the type.

    Raises:
        InvalidRecordError: saying which field is wrong and what was expected.
    """
    hashable_kind: Any = kind
    try:
        return cast(T, _adapter(hashable_kind).validate_json(text))
    except ValidationError as error:
        what = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}"
            for e in error.errors(include_url=False)[:5]
        )
        raise InvalidRecordError(
            f"not a valid {name or kind.__name__}: {what}"
        ) from None


def content_id(document: object) -> str:
    """SHA-256 of the JSON text, as hexadecimal digits."""
    return hashlib.sha256(to_json(document).encode()).hexdigest()
