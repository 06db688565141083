"""User-defined transforms: entry points, and modules named in a variable."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.metadata import entry_points

__all__ = ["GROUP", "VARIABLE", "load_plugins"]

logger = logging.getLogger(__name__)

GROUP = "feinsum.transforms"
"""Entry point group; an entry point names a module that registers transforms."""

VARIABLE = "FEINSUM_TRANSFORMS"
"""Environment variable with modules to import, separated by commas."""


def load_plugins() -> None:
    """Import every module that registers user-defined transforms.

    A module that cannot be imported is logged and skipped, so that it breaks no build;
    its recipes are then unknown transforms.
    """
    named = os.environ.get(VARIABLE, "").split(",")
    modules = [name.strip() for name in named if name.strip()]
    modules += [entry.value for entry in entry_points(group=GROUP)]
    for name in dict.fromkeys(modules):
        try:
            import_module(name)
        except Exception as error:  # whatever a foreign module does wrong
            logger.error(
                "the transforms of module %r cannot be loaded: %s: %s",
                name,
                type(error).__name__,
                error,
                exc_info=not isinstance(error, ModuleNotFoundError),
            )
