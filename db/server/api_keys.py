"""Keys of the service: names, scopes and digests; never the secrets themselves.

A key is ``feinsum_0123abcd_SECRET``: 8 digits that name it, and 256 random bits. Only
the SHA-256 of all of it is stored. No slower digest is needed, since 256 random bits
cannot be guessed.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from sqlalchemy import Connection, insert, select, update

from feinsum.db.sql.tables import ApiKeyRow
from feinsum.errors import RecordNotFoundError

Scope: TypeAlias = Literal["read", "record", "admin"]
"""Permissions of a key; each includes the ones before it."""


@dataclass(frozen=True)
class ApiKey:
    """A key of the service.

    Attributes:
        id: the public part of the secret; identifies the key in lists and logs.
        name: recorder name of its facts; two keys may share it, so that a key can be
            replaced.
        digest: SHA-256 of the whole secret, in hexadecimal digits.
        is_trusted: whether facts sent with it rank first. Administrators are trusted in
            any case.
    """

    id: str
    name: str
    scope: Scope
    digest: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    is_trusted: bool = False

    def state(self, now: datetime) -> Literal["valid", "revoked", "expired"]:
        """Return whether it is valid at that time."""
        # Revoked comes first, since it best explains why a key fails.
        if self.revoked_at is not None and self.revoked_at <= now:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "valid"


def make_key(
    name: str,
    scope: Scope,
    expires_at: datetime | None = None,
    *,
    is_trusted: bool = False,
) -> tuple[str, ApiKey]:
    """Create a key; return its secret and the stored form."""
    key_id = secrets.token_hex(4)
    # a prefix that scanners of leaked secrets can find, and an id to revoke the key by
    secret = f"feinsum_{key_id}_{secrets.token_urlsafe(32)}"
    now = datetime.now(UTC)
    key = ApiKey(key_id, name, scope, digest_secret(secret), now, expires_at)
    return secret, replace(key, is_trusted=is_trusted)


def digest_secret(secret: str) -> str:
    """Return the SHA-256 of a secret, in hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


COLUMNS = tuple(getattr(ApiKeyRow, field.name) for field in fields(ApiKey))


def add_key(connection: Connection, key: ApiKey) -> None:
    """Store a new key."""
    connection.execute(insert(ApiKeyRow).values(asdict(key)))


def find_key(connection: Connection, key_id: str) -> ApiKey | None:
    """Return the key with an id."""
    row = connection.execute(select(*COLUMNS).where(ApiKeyRow.id == key_id)).first()
    return None if row is None else ApiKey(*row)


def list_api_keys(connection: Connection) -> tuple[ApiKey, ...]:
    """Return every key, oldest first."""
    rows = connection.execute(
        select(*COLUMNS).order_by(ApiKeyRow.created_at, ApiKeyRow.id)
    )
    return tuple(ApiKey(*row) for row in rows)


def revoke_key(connection: Connection, key_id: str) -> ApiKey:
    """Revoke a key permanently; an already revoked key keeps its time.

    Raises:
        RecordNotFoundError: if there is no such key.
    """
    is_valid = ApiKeyRow.revoked_at.is_(None)
    statement = update(ApiKeyRow).where(ApiKeyRow.id == key_id, is_valid)
    connection.execute(statement.values(revoked_at=datetime.now(UTC)))
    return _require_key(connection, key_id)


def trust_key(connection: Connection, key_id: str, *, is_trusted: bool) -> ApiKey:
    """Mark a key as trusted or not; facts sent before are unaffected.

    Raises:
        RecordNotFoundError: if there is no such key.
    """
    statement = update(ApiKeyRow).where(ApiKeyRow.id == key_id)
    connection.execute(statement.values(is_trusted=is_trusted))
    return _require_key(connection, key_id)


def _require_key(connection: Connection, key_id: str) -> ApiKey:
    key = find_key(connection, key_id)
    if key is None:
        raise RecordNotFoundError(
            f"no key has the id {key_id!r}; list ids with 'feinsum keys list'"
        )
    return key
