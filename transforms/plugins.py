"""User-defined transforms: entry points, modules named in a variable, and scripts.

Processes that run trials find the first two themselves. They get the transforms of a
script or notebook from the parent process, in a file.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from feinsum.errors import TransformError
from feinsum.transforms.registry import REGISTRY, Transform, register

logger = logging.getLogger(__name__)

GROUP = "feinsum.transforms"
"""Entry point group; an entry point names a module that registers transforms."""

VARIABLE = "FEINSUM_TRANSFORMS"
"""Environment variable with modules to import, separated by commas."""


def load_plugins() -> None:
    """Import every module that registers user-defined transforms.

    A module that cannot be imported is logged and skipped, so that one broken plug-in
    does not stop everything else; recipes that name its transforms are then refused.
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


_BUILTIN: set[tuple[str, int]] = set()
"""The transforms that other processes register themselves: library and plug-ins."""


def note_builtin() -> None:
    """Record that other processes find all transforms registered so far themselves."""
    _BUILTIN.update(REGISTRY)


def list_local_transforms() -> tuple[Transform, ...]:
    """Return the transforms that other processes do not find themselves."""
    return tuple(t for key, t in REGISTRY.items() if key not in _BUILTIN)


def export_transforms(folder: str | Path) -> tuple[str, ...]:
    """Write the transforms of this process to a folder.

    Returns:
        the arguments for :func:`import_transforms`; empty if there are none.

    Raises:
        TransformError: if one cannot be written.
    """
    transforms = list_local_transforms()
    if not transforms:
        return ()
    import cloudpickle  # slow to import, and needed for transforms of scripts only

    try:
        # the reader needs the paths first: unpickling imports modules from there
        content = cloudpickle.dumps(sys.path) + cloudpickle.dumps(transforms)
    except Exception as error:  # whatever a foreign function refers to
        names = ", ".join(f"{t.name}@{t.version}" for t in transforms)
        raise TransformError(
            f"{names} cannot be passed to trial processes: {error}; put them "
            "into a module, and name the module in FEINSUM_TRANSFORMS"
        ) from error
    path = Path(folder) / "transforms.pickle"
    path.write_bytes(content)
    return (str(path),)


def import_transforms(arguments: Sequence[str]) -> None:
    """Register the transforms written by the parent process, if any.

    If the file cannot be read, the error is logged, and recipes that name the
    transforms are then refused as unknown.
    """
    if not arguments:
        return
    import pickle

    try:
        # only the parent process can write there; its script may import modules of its
        # own folder
        with Path(arguments[0]).open("rb") as file:
            paths = pickle.load(file)  # noqa: S301
            sys.path += [path for path in paths if path not in sys.path]
            transforms = pickle.load(file)  # noqa: S301
    except Exception:  # whatever a foreign module does wrong
        logger.exception("the transforms of the parent process cannot be loaded")
        return
    for transform in transforms:
        if (transform.name, transform.version) not in REGISTRY:
            register(transform)
