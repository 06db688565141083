"""``feinsum tune``."""

from feinsum.cli.tune.command import EXAMPLES, tune

__all__ = ["EXAMPLES", "tune"]
