"""Retrieval in compilers that generate Loopy kernels, and in array contexts.

A compiler calls :func:`transform_program` on every kernel before it builds it ::

    program ---> a recipe for any of its einsums? --yes--> the program with recipes
                               |
                               no
                               v
                   the compiler's own transform

The package arraycontext has a method for that, ``transform_loopy_program``; the mixins
here put retrieval before it. They rely on nothing but methods that array contexts
document: ``queue``, ``transform_loopy_program`` and, for the eager one, ``call_loopy``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

import loopy as lp
import numpy as np

from feinsum.db import Database
from feinsum.errors import FeinsumError
from feinsum.records import Policy
from feinsum.retrieval import retrieve
from feinsum.targets.opencl.device import describe


def _unchanged(t_unit: lp.TranslationUnit) -> lp.TranslationUnit:
    return t_unit


def transform_program(
    t_unit: lp.TranslationUnit,
    *,
    fallback: Callable[[lp.TranslationUnit], lp.TranslationUnit] = _unchanged,
    arguments: Mapping[str, Any] | None = None,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
) -> lp.TranslationUnit:
    """Give a program a recipe, or else pass it to ``fallback``.

    Every entry point is retrieved on its own. If none gets a recipe, the program
    goes to ``fallback`` as it was given; else it is finished, and ``fallback`` does
    not see it. Nothing is raised but by ``fallback``.

    Args:
        t_unit: the program.
        fallback: the transform that was in place before; by default the program
            is returned unchanged.
        arguments: of the call, if the program has one entry point that leaves
            dtypes and sizes open; see :func:`feinsum.retrieve`.
        device: as for :func:`feinsum.retrieve`.
        database: as for :func:`feinsum.retrieve`.
        policy: as for :func:`feinsum.retrieve`.

    Raises:
        InvalidOptionError: if ``policy`` is not one that ``retrieve`` names.
    """
    retrieved = t_unit
    names = sorted(t_unit.entrypoints)
    # each entry point has its own kernel; what one gets does not depend on the others
    for name in names:
        retrieved = retrieve(
            retrieved,
            arguments=arguments if len(names) == 1 else None,
            device=device,
            database=database,
            kernel_name=name,
            policy=policy,
            on_miss="return",
        )
    return fallback(t_unit) if retrieved is t_unit else retrieved


class RetrievesLazily:
    """For array contexts that generate whole programs, dtypes and sizes known.

    ::

        class Mine(RetrievesLazily, PytatoPyOpenCLArrayContext):
            feinsum_database = "facts.sqlite"

    Attributes:
        feinsum_database, feinsum_policy: as for :func:`feinsum.retrieve`.
    """

    feinsum_database: Database = None
    feinsum_policy: Policy | None = None

    def transform_loopy_program(self, t_unit: lp.TranslationUnit) -> Any:
        """Give a program a recipe, or else pass it to the next class."""
        base: Any = super()
        return transform_program(
            t_unit, fallback=base.transform_loopy_program, **self._look_up
        )

    @property
    def _look_up(self) -> dict[str, Any]:
        context: Any = self
        return {
            "device": describe(context.queue.device).id,
            "database": self.feinsum_database,
            "policy": self.feinsum_policy,
        }


class RetrievesEagerly(RetrievesLazily):
    """For array contexts that call one kernel at a time.

    Such kernels leave dtypes and sizes open, so they are looked up when they are
    called: once for every kind of arguments.
    """

    def transform_loopy_program(self, t_unit: lp.TranslationUnit) -> Any:
        """Transform a program as lazy contexts do, but each program only once."""
        if t_unit not in self._finished:
            self._finished[t_unit] = super().transform_loopy_program(t_unit)
        return self._finished[t_unit]

    def call_loopy(self, t_unit: lp.TranslationUnit, **kwargs: Any) -> Any:
        """Call the kernel that was retrieved for such arguments."""
        base: Any = super()
        retrieved = self._retrieved_for(t_unit, kwargs)
        if retrieved is t_unit:
            return base.call_loopy(t_unit, **kwargs)
        # sizes that a recipe fixed are no arguments any more
        names = retrieved.default_entrypoint.arg_dict
        arguments = {name: value for name, value in kwargs.items() if name in names}
        return base.call_loopy(retrieved, **arguments)

    def _retrieved_for(
        self, t_unit: lp.TranslationUnit, arguments: Mapping[str, Any]
    ) -> lp.TranslationUnit:
        # a kernel is specialized by shapes and dtypes, not by values of arrays
        key = t_unit, frozenset((n, _kind(x)) for n, x in arguments.items())
        if key not in self._specialized:
            retrieved = transform_program(t_unit, arguments=arguments, **self._look_up)
            # its own transform must not see the finished kernel again
            if retrieved is not t_unit:
                self._finished[retrieved] = retrieved
            self._specialized[key] = retrieved
        return self._specialized[key]

    @cached_property
    def _specialized(self) -> dict[Any, lp.TranslationUnit]:
        """By program and kind of arguments."""
        return {}

    @cached_property
    def _finished(self) -> dict[lp.TranslationUnit, Any]:
        return {}


def _kind(argument: Any) -> Any:
    """Return the properties that specialize a kernel: shape and dtype, or a size."""
    if isinstance(argument, int | np.integer):
        return int(argument)
    shape = getattr(argument, "shape", ())
    return tuple(shape), str(getattr(argument, "dtype", type(argument)))


def eager_array_context(
    base: type | None = None, *, database: Database = None, policy: Policy | None = None
) -> Any:
    """Make a class of array contexts that call and retrieve one kernel at a time.

    Args:
        base: a class of one's own whose ``call_loopy`` builds kernels; by default
            ``PyOpenCLArrayContext`` of arraycontext.
        database: as for :func:`feinsum.retrieve`.
        policy: as for :func:`feinsum.retrieve`.

    Raises:
        FeinsumError: if arraycontext cannot be imported, or has no such class.
    """
    base = base or _class_of_arraycontext("PyOpenCLArrayContext")
    return _made_from(RetrievesEagerly, base, database, policy)


def lazy_array_context(
    base: type | None = None, *, database: Database = None, policy: Policy | None = None
) -> Any:
    """Make a class of array contexts that generate and retrieve whole programs.

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
