"""Checks of texts that callers send: storable ones, and ones with secrets."""

from __future__ import annotations

from feinsum.db.address import SECRET


def has_secret(text: str) -> bool:
    """Return whether anything in a text looks like a key.

    >>> has_secret("feinsum_0123abcd_" + "x" * 43), has_secret("feinsum_0123abcd_x")
    (True, False)
    """
    return SECRET.search(text) is not None


def without_secrets(text: str) -> str:
    """Replace everything in a text that looks like a key."""
    return SECRET.sub("feinsum_...", text)


def is_storable(text: str) -> bool:
    """Return whether a database can keep a text: no NUL, no lone surrogates.

    >>> is_storable("é"), is_storable(chr(0)), is_storable(chr(0xD800))
    (True, False, False)
    """
    # PostgreSQL stores no NUL; UTF-8 has no lone surrogates
    return "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)
