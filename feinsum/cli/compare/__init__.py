"""``feinsum compare``."""

from feinsum.cli.compare.command import EXAMPLES, compare

__all__ = ["EXAMPLES", "compare"]
