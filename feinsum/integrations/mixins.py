"""Mixins that put retrieval before the transforms of an array context.

They rely on nothing but methods that array contexts document: ``queue``,
``transform_loopy_program`` and, for the eager one, ``call_loopy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import loopy as lp
import numpy as np

from feinsum.db import Database
from feinsum.integrations.program import transform_program
from feinsum.records import Policy
from feinsum.targets.opencl.device import describe


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
        """The program with a recipe, or what the next class makes of it."""
        base: Any = super()
        return transform_program(
            t_unit, fallback=base.transform_loopy_program, **self._look_up
        )

    @property
    def _look_up(self) -> dict[str, Any]:
        here: Any = self
        return {
            "device": describe(here.queue.device).id,
            "database": self.feinsum_database,
            "policy": self.feinsum_policy,
        }


class RetrievesEagerly(RetrievesLazily):
    """For array contexts that call one kernel at a time.

    Such kernels leave dtypes and sizes open, so they are looked up when they are
    called: once for every kind of arguments.
    """

    def transform_loopy_program(self, t_unit: lp.TranslationUnit) -> Any:
        """As for lazy contexts; a program that has its recipe is left alone."""
        if t_unit not in self._finished:
            self._finished[t_unit] = super().transform_loopy_program(t_unit)
        return self._finished[t_unit]

    def call_loopy(self, t_unit: lp.TranslationUnit, **kwargs: Any) -> Any:
        """Call the kernel that was retrieved for such arguments."""
        base: Any = super()
        found = self._retrieved_for(t_unit, kwargs)
        if found is t_unit:
            return base.call_loopy(t_unit, **kwargs)
        # sizes that a recipe fixed are no arguments any more
        names = found.default_entrypoint.arg_dict
        given = {name: value for name, value in kwargs.items() if name in names}
        return base.call_loopy(found, **given)

    def _retrieved_for(
        self, t_unit: lp.TranslationUnit, arguments: Mapping[str, Any]
    ) -> lp.TranslationUnit:
        key = t_unit, frozenset((n, _kind(x)) for n, x in arguments.items())
        if key not in self._specialized:
            found = transform_program(t_unit, arguments=arguments, **self._look_up)
            if found is not t_unit:
                self._finished[found] = found
            self._specialized[key] = found
        return self._specialized[key]

    @cached_property
    def _specialized(self) -> dict[Any, lp.TranslationUnit]:
        """By program and kind of arguments."""
        return {}

    @cached_property
    def _finished(self) -> dict[lp.TranslationUnit, Any]:
        return {}


def _kind(argument: Any) -> Any:
    """The properties that specialize a kernel: shape and dtype, or a size."""
    if isinstance(argument, int | np.integer):
        return int(argument)
    shape = getattr(argument, "shape", ())
    return tuple(shape), str(getattr(argument, "dtype", type(argument)))
