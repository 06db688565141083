"""All checks, one after another; none of them changes anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from os import PathLike
from typing import TypeAlias

from feinsum.doctor.devices import check_devices, check_packaged_facts, check_versions
from feinsum.doctor.finding import Finding, problem
from feinsum.doctor.machine import (
    check_compiler,
    check_contractions,
    check_machine,
    check_openblas,
    check_plugins,
    check_variables,
)
from feinsum.doctor.places import (
    check_cache,
    check_clock,
    check_database,
    check_layers,
    check_remote,
    check_room,
    check_settings,
)

__all__ = ["examination"]

logger = logging.getLogger(__name__)

Check: TypeAlias = Callable[[], Iterator[Finding]]


def examination(
    database: str | PathLike[str] | None = None, device: str | None = None
) -> Iterator[Finding]:
    """The findings of all checks, as they come.

    Args:
        database: path or URL; by default the user's own.
        device: see :func:`feinsum.measure.open_device`.
    """
    checks: dict[str, Check] = {
        "settings": check_settings,
        "variables": check_variables,
        "versions": check_versions,
        "compiler": check_compiler,
        "contractions": check_contractions,
        "plug-ins": check_plugins,
        "devices": lambda: check_devices(device),
        "packaged facts": lambda: check_packaged_facts(device),
        "database": lambda: check_database(database),
        "layers": check_layers,
        "cache": check_cache,
        "room": check_room,
        "clock": check_clock,
        "machine": check_machine,
        "openblas": check_openblas,
        "remote": check_remote,
    }
    for name, check in checks.items():
        try:
            yield from check()
        except Exception as error:  # a doctor must see the other patients, too
            logger.exception("the check of %s failed", name)
            yield problem(
                name,
                f"the check failed with {type(error).__name__}: {error}",
                "report this bug with the output of 'feinsum doctor --json'",
            )
