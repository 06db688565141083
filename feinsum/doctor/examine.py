"""All checks, one after another; none of them changes anything.

Those of settings, databases, the cache, the clock and the network are here, too.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, get_args

from feinsum.cache import cache_folder
from feinsum.db import OPENERS, REMOTE, USER, examine, examine_layers, list_layer_names
from feinsum.db.address import REMOTE_VARIABLE, get_remote_url
from feinsum.db.remote.layer import BUDGET_VARIABLE, examine_service
from feinsum.doctor.machine import (
    Diagnosis,
    check_compiler,
    check_contractions,
    check_devices,
    check_machine,
    check_openblas,
    check_packaged_facts,
    check_plugins,
    check_variables,
    check_versions,
    note,
    ok,
    problem,
)
from feinsum.errors import StoreError
from feinsum.loopy_cache import find_folder_problem, get_loopy_folder
from feinsum.records import Policy
from feinsum.retrieval.request import (
    POLICY_VARIABLE,
    VERIFY_VARIABLE,
    is_verification_on,
)
from feinsum.words import format_count

logger = logging.getLogger(__name__)

Check: TypeAlias = Callable[[], Iterator[Diagnosis]]


def run_checks(
    database: str | PathLike[str] | None = None,
    device: str | None = None,
    *,
    service_variables: Collection[str] = (),
    further: Mapping[str, Check] = MappingProxyType({}),
) -> Iterator[Diagnosis]:
    """Run all checks and yield their findings as they come.

    Args:
        database: path or URL; by default the user's own.
        device: see :func:`feinsum.measure.open_device`.
        service_variables: see :func:`check_variables`.
        further: checks of packages above this one, by name.
    """
    checks: dict[str, Check] = {
        "settings": check_settings,
        "variables": lambda: check_variables(of_service=service_variables),
        "versions": check_versions,
        "compiler": check_compiler,
        "contractions": check_contractions,
        "plug-ins": check_plugins,
        "devices": lambda: check_devices(device),
        "packaged facts": lambda: check_packaged_facts(device),
        "database": lambda: check_database(database),
        "layers": check_layers,
        "cache": check_cache,
        "room": check_disk_room,
        "clock": check_clock,
        "machine": check_machine,
        "openblas": check_openblas,
        "remote": check_remote,
        **further,
    }
    for name, check in checks.items():
        try:
            yield from check()
        except Exception as error:  # the other checks must run, too
            logger.exception("the check of %s failed", name)
            yield problem(
                name,
                f"the check failed with {type(error).__name__}: {error}",
                "report this bug with the output of 'feinsum doctor --json'",
            )


CLOCK_TOLERANCE_S = 5.0

OLDEST = datetime(2025, 1, 1, tzinfo=UTC)


def check_settings() -> Iterator[Diagnosis]:
    """Check the variables with a fixed set of values, and the verification switch."""
    policy = os.environ.get(POLICY_VARIABLE, "").strip()
    if policy and policy not in get_args(Policy):
        yield problem(
            "settings",
            f"{POLICY_VARIABLE} is {policy!r}: every look-up fails",
            f"set it to one of {', '.join(get_args(Policy))}",
        )
    else:
        yield ok("settings", f"policy {policy or 'default'}")
    if not is_verification_on(None):
        yield note(
            "settings",
            f"{VERIFY_VARIABLE} is off: recipes are neither verified nor timed",
            f"unset {VERIFY_VARIABLE}, unless this machine cannot run the kernels",
        )


def check_database(
    database: str | PathLike[str] | None, name: str = "database"
) -> Iterator[Diagnosis]:
    """Check that the database can be opened, read, locked and written."""
    health = examine(database)
    if health.problem:
        yield problem(
            name,
            f"{health.location}: {health.problem}",
            "release its lock, fix its permissions, or name another database",
        )
    elif health.n_records is None:
        yield ok(name, f"{health.location}: will be created when first written")
    else:
        yield ok(
            name,
            f"{health.location}: {format_count(health.n_records, 'fact')}, writable",
        )


def check_layers() -> Iterator[Diagnosis]:
    """Report the layers that facts are looked up in, except user and service."""
    try:
        names = list_layer_names()
    except StoreError as error:
        yield problem("layers", str(error), f"choose from {', '.join(OPENERS)}")
        return
    yield ok("layers", ", ".join(names))
    for state in examine_layers(n for n in names if n not in (USER, REMOTE)):
        if state.problem:
            yield problem(
                f"layer {state.name}",
                f"{state.location}: {state.problem}",
                "look-ups skip it; fix it, or remove it from FEINSUM_LAYERS",
            )
        else:
            yield ok(
                f"layer {state.name}",
                f"{state.location}: {format_count(state.n_records or 0, 'fact')}",
            )


def check_cache() -> Iterator[Diagnosis]:
    """Check that kernels and verifications can be cached."""
    folder = cache_folder()
    if folder is None:
        yield note(
            "cache",
            "off: every process retrieves kernels and verifies recipes again",
            "unset FEINSUM_CACHE_DIR",
        )
        return
    above = next(path for path in (folder, *folder.parents) if path.exists())
    why = _explain_not_private(above, is_own=above == folder)
    if why:
        advice = (
            "make it private (chmod go-rwx), make room, or set FEINSUM_CACHE_DIR to "
            "another folder"
        )
        yield problem("cache", f"{above} {why}: nothing is cached", advice)
    else:
        yield ok("cache", str(folder))


def _explain_not_private(folder: Path, *, is_own: bool) -> str:
    if not folder.is_dir():
        return "is not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "is not writable"
    status = folder.stat()
    if is_own and (status.st_uid != os.geteuid() or status.st_mode & 0o077):
        return "is accessible to others"
    why = find_folder_problem(folder)
    return f"cannot be used ({why})" if why else ""


def check_disk_room() -> Iterator[Diagnosis]:
    """Check that there is room for compiler output and Loopy's databases."""
    try:
        why = find_folder_problem(Path(tempfile.gettempdir()))
    except OSError as error:  # no usual folder is writable
        why = str(error)
    if why:
        yield problem(
            "temporary files",
            f"{why}: no kernel can be compiled, and numpy answers calls",
            "make room there, or set TMPDIR to another folder",
        )
    else:
        yield ok("temporary files", tempfile.gettempdir())
    if why := find_folder_problem(get_loopy_folder()):
        yield note(
            "loopy",
            f"{why}: every process generates the code of its kernels again",
            "set XDG_CACHE_HOME to a folder that can be written",
        )


def check_clock() -> Iterator[Diagnosis]:
    """Check that the clock is roughly right and agrees with the file system."""
    now = datetime.now(UTC)
    if now < OLDEST:
        yield problem("clock", f"the system date is {now:%Y-%m-%d}", "set the clock")
        return
    try:
        with tempfile.NamedTemporaryFile() as file:
            skew_s = Path(file.name).stat().st_mtime - time.time()
    except OSError:  # check_room reports this
        skew_s = 0.0
    if abs(skew_s) > CLOCK_TOLERANCE_S:
        yield problem(
            "clock",
            f"the clock of the file system differs by {skew_s:+.0f} s",
            "synchronize the clocks (NTP)",
        )
    else:
        yield ok("clock", f"{now.isoformat(timespec='seconds')}")


def check_remote() -> Iterator[Diagnosis]:
    """Check that the configured service answers and accepts the key."""
    url = get_remote_url()
    if not url:
        return
    service = examine_service(url)
    if service.problem:
        advice = "check the URL, the key, the network and the server's log"
        text = f"{service.location}: {service.problem}"
        yield problem("remote", text, f"{advice}; or unset {REMOTE_VARIABLE}")
    elif service.left_alone:
        yield note(
            "remote",
            f"{service.location} answers, but failed within the last minute: "
            f"{service.left_alone}",
            f"look-ups skip it for a minute; if it is slow, raise {BUDGET_VARIABLE}",
        )
    else:
        yield ok("remote", f"{service.location} answers, version {service.version}")
