"""Array contexts of the package arraycontext, or made from it, that retrieve."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from feinsum.db import Database
from feinsum.errors import FeinsumError
from feinsum.integrations.mixins import RetrievesEagerly, RetrievesLazily
from feinsum.records import Policy


def eager_array_context(
    base: type | None = None, *, database: Database = None, policy: Policy | None = None
) -> Any:
    """A class of array contexts that call one kernel at a time, and retrieve it.

    Args:
        base: a class of one's own whose ``call_loopy`` builds kernels; by default
            ``PyOpenCLArrayContext`` of arraycontext.
        database, policy: as for :func:`feinsum.retrieve`.

    Raises:
        FeinsumError: if arraycontext cannot be imported, or has no such class.
    """
    base = base or _class_of_arraycontext("PyOpenCLArrayContext")
    return _made_from(RetrievesEagerly, base, database, policy)


def lazy_array_context(
    base: type | None = None, *, database: Database = None, policy: Policy | None = None
) -> Any:
    """The same for contexts that generate whole programs.

    By default the base is ``PytatoPyOpenCLArrayContext``.
    """
    base = base or _class_of_arraycontext("PytatoPyOpenCLArrayContext")
    return _made_from(RetrievesLazily, base, database, policy)


def _made_from(
    mixin: type, base: type, database: Database, policy: Policy | None
) -> type:
    attributes = {
        "__module__": __name__,
        "feinsum_database": database,
        "feinsum_policy": policy,
    }
    return type(f"Retrieving{base.__name__}", (mixin, base), attributes)


def _class_of_arraycontext(name: str) -> Any:
    try:
        return getattr(import_module("arraycontext"), name)
    except (ImportError, AttributeError) as error:
        raise FeinsumError(
            f"the class {name} of the package arraycontext is needed: {error}; "
            "docs/how-to/integrations.md says which versions have it"
        ) from error
