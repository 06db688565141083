"""Record which facts this installation measured itself, on this machine.

A fact cannot prove this, because its sender writes all of it. So when the tuner records
a fact, it leaves a mark in the user's cache, whose entries are signed.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from feinsum.cache import get_default_cache
from feinsum.memory import get_remembered

_MACHINE_ID = Path("/etc/machine-id")


class _Marks(set[str]):
    """Marks of this process, which may have no cache."""


def mark_as_own(record_id: str) -> None:
    """Remember that a fact was measured here.

    >>> from feinsum.memory import use_fresh_memory
    >>> with use_fresh_memory():
    ...     mark_as_own("a" * 64)
    ...     is_own("a" * 64), is_own("b" * 64)
    (True, False)
    """
    mark = _mark(record_id)
    # In memory as well: there may be no cache, or one that cannot be written.
    get_remembered(_Marks).add(mark)
    if cache := get_default_cache():
        cache.write(mark, record_id.encode())


def is_own(record_id: str) -> bool:
    """Return whether a fact was measured here, if the cache still has the mark."""
    mark = _mark(record_id)
    if mark in get_remembered(_Marks):
        return True
    cache = get_default_cache()
    content = None if cache is None else cache.read(mark)
    return content is not None and content == record_id.encode()


@cache
def get_machine_id() -> str:
    """Return an id of this machine among those that share its folders; maybe empty.

    Containers of one image are one machine.
    """
    try:
        return _MACHINE_ID.read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeDecodeError):
        return ""


def _mark(record_id: str) -> str:
    marked = "\0".join(("measured here", get_machine_id(), record_id))
    return hashlib.sha256(marked.encode()).hexdigest()
