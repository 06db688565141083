"""The driver of a measurement: whether two are the same, and how they differ.

The environment of a fact names the driver's version and its platform. That of the host
target is the version of its calling code and every option of the C compiler, verbatim:
``1 -std=gnu11 -fPIC -w -O3 -march=native``. Of these options only those count that can
change a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from feinsum.records.environment import HOST_PLATFORM, Environment

_NO_TIME = re.compile(
    r"-w|-fPIC|-shared|-fvisibility=.*|-std=.*|-mprefer-vector-width=256"
)
"""Options of warnings, of linking and of the language, with which the loops stay the
same; and one that changes no loops but those that no recipe has vectorized, which are
not slower with it: generic loops took 0.96, recipes on record 1.01 times as long in the
geometric mean, for operators on a Zen 5.
"""

_ONLY_COMPLEX = frozenset({"-fcx-fortran-rules"})
"""Options that change nothing but products of complex numbers."""

_COMPLEX = re.compile(r":[<>=|]?c\d")


def driver_difference(there: Environment, here: Environment, workload_text: str) -> str:
    """How the drivers of two environments of one device differ; empty if they do not.

    Args:
        workload_text: what was measured there; some options matter to complex numbers
            alone.
    """
    told: list[str] = []
    if there.driver_version != here.driver_version:
        told.append(_told("driver", there.driver_version, here.driver_version))
    if there.platform_version == here.platform_version:
        return "; and with ".join(told)
    if there.device.platform != HOST_PLATFORM:
        told.append(
            _told("platform version", there.platform_version, here.platform_version)
        )
    else:
        told += _differing_options(there, here, workload_text)
    return "; and with ".join(told)


def _differing_options(
    there: Environment, here: Environment, workload_text: str
) -> Iterator[str]:
    is_complex = _COMPLEX.search(workload_text) is not None
    code, options = _options(there.platform_version, is_complex)
    code_here, options_here = _options(here.platform_version, is_complex)
    if code != code_here:
        yield _told("feinsum's calling code of version", code, code_here)
    if options != options_here:
        only = sorted(options - options_here), sorted(options_here - options)
        yield _told("compiler option", *(" ".join(names) or "none" for names in only))


def _told(what: str, there: str, here: str) -> str:
    return f"{what} {there}; here it is {here}"


@lru_cache(64)
def _options(platform_version: str, is_complex: bool) -> tuple[str, frozenset[str]]:
    """The version of the calling code, and the options that can change a time."""
    code, *options = platform_version.split() or [""]
    counted = {option for option in options if not _NO_TIME.fullmatch(option)}
    return code, frozenset(counted if is_complex else counted - _ONLY_COMPLEX)
