"""``feinsum model``."""

from feinsum.cli.model.command import app

__all__ = ["app"]
