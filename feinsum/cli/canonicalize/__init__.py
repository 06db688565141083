"""``feinsum canonicalize``."""

from feinsum.cli.canonicalize.command import EXAMPLES, canonicalize

__all__ = ["EXAMPLES", "canonicalize"]
