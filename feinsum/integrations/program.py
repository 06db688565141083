"""The function that a compiler calls on every kernel before it builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import loopy as lp

from feinsum.db import Database
from feinsum.records import Policy
from feinsum.retrieval import retrieve


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
    """The program with a recipe, or what ``fallback`` makes of it.

    Every entry point is retrieved on its own. If none gets a recipe, the program
    goes to ``fallback`` as it was given; else it is finished, and ``fallback`` does
    not see it. Nothing is raised but by ``fallback``.

    Args:
        fallback: the transform that was in place before; by default the program
            is returned unchanged.
        arguments: of the call, if the program has one entry point that leaves
            dtypes and sizes open; see :func:`feinsum.retrieve`.
        device, database, policy: as for :func:`feinsum.retrieve`.

    Raises:
        InvalidOptionError: if ``policy`` is not one that ``retrieve`` names.
    """
    found = t_unit
    names = sorted(t_unit.entrypoints)
    for name in names:
        found = retrieve(
            found,
            arguments=arguments if len(names) == 1 else None,
            device=device,
            database=database,
            kernel_name=name,
            policy=policy,
            on_miss="return",
        )
    return fallback(t_unit) if found is t_unit else found
