"""Which packages a list of requirements brings, without installing them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import distribution, packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["RUN_WITHOUT", "closure", "modules_outside"]

RUN_WITHOUT = """
import sys
refused = frozenset({modules!r})

class Refuse:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"{{name}} is not there", name=name)

sys.meta_path.insert(0, Refuse)
from feinsum.cli import main
main()
"""
"""A program: the command line where some modules cannot be imported."""


def closure(lines: Iterable[str]) -> set[str]:
    """The names of the installed packages that some requirements need, in the end."""
    todo = [Requirement(line) for line in lines]
    found: set[str] = set()
    seen: set[str] = set()
    while todo:
        one = todo.pop()
        if str(one) in seen:
            continue
        seen.add(str(one))
        found.add(canonicalize_name(one.name))
        inner = map(Requirement, distribution(one.name).requires or ())
        todo += [r for r in inner if _is_wanted(r, one.extras)]
    return found


def modules_outside(names: set[str]) -> set[str]:
    """The importable modules of all other packages."""
    return {
        module
        for module, owners in packages_distributions().items()
        if not names & {canonicalize_name(owner) for owner in owners}
    }


def _is_wanted(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras))
