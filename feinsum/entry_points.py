"""Entry points: how a package calls one that stands above it.

Imports go downward only. A package above registers its function in ``pyproject.toml``,
as plug-ins of pytest do, and the one below looks it up by group and name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from feinsum.errors import FeinsumError

DOCUMENTS = "feinsum.documents"
"""Group of further checks of documents: the name is a kind of document; the function
takes a document of plausible values and yields its findings."""

PLANNERS = "feinsum.planners"
"""Group of planners: ``program`` plans a program of einsums on many processes."""


@cache
def list_registered(group: str, name: str) -> tuple[Callable[..., Any], ...]:
    """Return the functions registered under a name; several packages may register one.

    >>> [function.__name__ for function in list_registered(DOCUMENTS, "plan")]
    ['findings']
    >>> list_registered(DOCUMENTS, "record")
    ()
    """
    # loaded once per process: importlib reads the metadata of all packages
    return tuple(entry.load() for entry in entry_points(group=group, name=name))


def require_registered(group: str, name: str) -> Callable[..., Any]:
    """Return the function registered under a name.

    Raises:
        FeinsumError: if there is none, as in sources that were not installed.
    """
    functions = list_registered(group, name)
    if not functions:
        raise FeinsumError(
            f"no installed package has the entry point {name!r} of the group "
            f"{group!r}; install feinsum with pip instead of copying its folder"
        )
    return functions[0]
