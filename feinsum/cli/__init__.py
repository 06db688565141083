"""The command line ``feinsum``: one module for each command, no logic of its own."""

from feinsum.cli.app import app, main

__all__ = ["app", "main"]
