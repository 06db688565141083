"""``feinsum roofline``."""

from feinsum.cli.roofline.command import EXAMPLES, roofline

__all__ = ["EXAMPLES", "roofline"]
