"""``feinsum db``: one command of a database a file."""

from feinsum.cli.db.command import app

__all__ = ["app"]
