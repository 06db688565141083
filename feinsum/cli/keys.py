"""``feinsum keys``: who may use the service over a database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_document, print_json, print_table

if TYPE_CHECKING:
    from feinsum.db.server.api_keys import ApiKey

app = typer.Typer(
    rich_markup_mode=None,
    help="Create, list, trust and revoke keys of the service.",
    epilog="\b\nExample:\n  feinsum keys create ci --scope record --expires 90d",
)

MAX_NAME = 100

KeyId: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="ID", help="Id of a key, as listed.", show_default=False),
]

DAYS = {"d": 1, "w": 7, "y": 365}


def _parse_days(text: str | None) -> int | None:
    """Convert ``90d``, ``4w`` or ``1y`` to days."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,3})([dwy])", text)
    if match is None:
        raise typer.BadParameter(f"{text!r}: expected days, weeks or years, as in 90d")
    return int(match[1]) * DAYS[match[2]]


@app.command(
    "create",
    epilog="\b\nExamples:\n"
    "  feinsum keys create ci --scope record --expires 90d\n"
    "  feinsum keys create ann --scope admin --database team.sqlite",
)
def create_key(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Recorder name for facts sent with the key.",
            show_default=False,
        ),
    ],
    scope: Annotated[
        Literal["read", "record", "admin"],
        typer.Option(help="What it permits; each includes the previous ones."),
    ] = "read",
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Lifetime in days, weeks or years: 90d, 4w, 1y."
        ),
    ] = None,
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted",
            help="Answers have facts sent with it before those of others.",
        ),
    ] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it once; only its hash is stored.

    A missing database is created by 'feinsum db init'.
    """
    from feinsum.db.server.api_keys import make_key
    from feinsum.db.server.serving import open_serving_store

    n_days = _parse_days(expires)
    if not (name.isprintable() and 0 < len(name.strip()) <= MAX_NAME):
        raise typer.BadParameter(
            f"{name!r}: expected 1 to {MAX_NAME} printable characters",
            param_hint="NAME",
        )
    until = datetime.now(UTC) + timedelta(days=n_days) if n_days else None
    secret, key = make_key(name.strip(), scope, until, is_trusted=trusted)
    # A key in a new database, at a misspelt path, would open nothing.
    with open_serving_store(database, may_create=False) as store:
        store.add_key(key)
    if as_json:
        print_json(_make_document(key) | {"key": secret})
        return
    typer.echo(secret)
    # on stderr: a script takes the key from stdout
    typer.echo("save it now: it is not stored and will not be shown again", err=True)


@app.command("list", epilog="\b\nExample:\n  feinsum keys list --json")
def list_keys(database: Database = None, as_json: AsJson = False) -> None:
    """List the keys, oldest first; secrets are not shown."""
    from feinsum.db.server.serving import open_serving_store

    with open_serving_store(database, may_create=False) as store:
        keys = store.keys()
    documents = [_make_document(key) for key in keys]
    print_document(documents, as_json, lambda: _print(keys))


@app.command(epilog="\b\nExample:\n  feinsum keys revoke 1f6c2a90")
def revoke(
    key_id: KeyId,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key permanently; a running service rejects it within seconds."""
    from feinsum.db.server.serving import open_serving_store

    with open_serving_store(database, may_create=False) as store:
        key = store.revoke_key(key_id)
    text = f"revoked: {key.id} of {key.name}"
    print_document(_make_document(key), as_json, lambda: typer.echo(text))


@app.command("trust", epilog="\b\nExample:\n  feinsum keys trust 1f6c2a90")
def trust_key(
    key_id: KeyId,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Mark a key as trusted: answers have facts sent with it from now on first."""
    _trust(key_id, database, as_json, is_trusted=True)


@app.command(epilog="\b\nExample:\n  feinsum keys distrust 1f6c2a90")
def distrust(
    key_id: KeyId,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Mark a key as untrusted; facts already recorded with it are unaffected."""
    _trust(key_id, database, as_json, is_trusted=False)


def _trust(
    key_id: str, database: str | None, as_json: bool, *, is_trusted: bool
) -> None:
    from feinsum.db.server.serving import open_serving_store

    with open_serving_store(database, may_create=False) as store:
        key = store.trust_key(key_id, is_trusted=is_trusted)
    text = f"{'' if is_trusted else 'not '}trusted: {key.id} of {key.name}"
    print_document(_make_document(key), as_json, lambda: typer.echo(text))


def _print(keys: Iterable[ApiKey]) -> None:
    now = datetime.now(UTC)
    print_table(
        ("name",),
        ("id", "scope", "trusted", "state", "created", "expires"),
        [
            (
                key.name,
                key.id,
                key.scope,
                "yes" if key.is_trusted or key.scope == "admin" else "no",
                key.state(now),
                f"{key.created_at:%Y-%m-%d}",
                f"{key.expires_at:%Y-%m-%d}" if key.expires_at else "never",
            )
            for key in keys
        ],
    )


def _make_document(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scope": key.scope,
        "state": key.state(datetime.now(UTC)),
        # an admin can trust its own keys, so that it is trusted itself
        "is_trusted": key.is_trusted or key.scope == "admin",
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }
