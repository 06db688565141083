"""The command line ``feinsum``: one command a file, no logic of its own."""

from feinsum.cli.app import app, main

__all__ = ["app", "main"]
