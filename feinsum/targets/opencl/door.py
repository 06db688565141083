"""The door to pyopencl: its import, its errors, its warnings."""

from __future__ import annotations

import importlib
import os
from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from types import SimpleNamespace
from typing import Any

from feinsum.errors import DeviceUnavailableError, MeasurementError
from feinsum.targets.messages import first_lines
from feinsum.targets.opencl.intel import load_platforms
from feinsum.targets.quiet import quiet, silenced, with_own_warn

__all__ = [
    "INSTALL_HINT",
    "opencl_errors",
    "pyopencl",
    "quiet_builds",
]

INSTALL_HINT = (
    "pip install 'feinsum[intel]' or 'feinsum[pocl]' gives an OpenCL device on a CPU; "
    "without one, make kernels with target=lp.ExecutableCTarget()"
)
_CACHE_VARIABLE = "PYOPENCL_CACHE_FAILURE_FATAL"


def pyopencl() -> Any:
    """The modules ``pyopencl`` and ``pyopencl.array``, imported on first use.

    Raises:
        DeviceUnavailableError: if pyopencl cannot be imported.
    """
    try:
        with _LOADING:
            return _load()
    except ImportError as error:
        raise DeviceUnavailableError(
            f"pyopencl cannot be imported ({error}); {INSTALL_HINT}"
        ) from error


_LOADING = Lock()


@cache
def _load() -> Any:
    importlib.import_module("pyopencl.array")
    cl = importlib.import_module("pyopencl")
    load_platforms(cl)
    # Where its cache of programs fails, in a home that cannot be written or with an
    # option that a driver does not know, pyopencl looks this variable up without a
    # default. With one, it warns and builds without the cache, which raises the true
    # error.
    with_default = ChainMap(os.environ, {_CACHE_VARIABLE: ""})
    names = vars(importlib.import_module("pyopencl.cache"))
    build = "create_built_program_from_source_cached"
    names[build] = with_own_warn(names[build], os=SimpleNamespace(environ=with_default))
    loud = vars(cl)["compiler_output"]

    def compiler_output(text: str) -> None:
        if not silenced(cl.CompilerWarning):
            loud(text)

    vars(cl)["compiler_output"] = compiler_output
    return cl


@contextmanager
def opencl_errors(
    what: str, kind: type[MeasurementError] = MeasurementError
) -> Iterator[None]:
    """Turn every pyopencl error of the body into a ``kind``.

    Args:
        what: what failed, for the message: ``"<what>: <first lines of the cause>"``.
    """
    cl = pyopencl()
    try:
        yield
    except cl.Error as error:
        raise kind(f"{what}: {first_lines(error)}") from error


@contextmanager
def quiet_builds() -> Iterator[None]:
    """Silence the warnings of a successful build: of its log, and of no cache.

    OpenCL compilers remark on kernels that are in order (unused arguments,
    vectorization refused); a failed build is an error, not a warning.
    """
    pyopencl()
    with quiet(UserWarning):
        yield
