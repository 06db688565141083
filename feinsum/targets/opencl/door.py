"""The import of pyopencl, its errors, its warnings, and Intel's driver.

The wheel of Intel's OpenCL runtime for CPUs has a list of drivers for conda, with a
path that exists only there. The loader in pyopencl's wheel reads its lists once, on the
first query of platforms. So platforms are queried while a list with the right path
exists.
"""

from __future__ import annotations

import importlib
import os
from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import SimpleNamespace
from typing import Any

from feinsum.errors import DeviceUnavailableError, MeasurementError
from feinsum.targets.quiet import is_silenced, quiet, with_own_warn
from feinsum.words import get_first_lines

INSTALL_HINT = (
    "pip install 'feinsum[intel]' or 'feinsum[pocl]' gives an OpenCL device on a CPU; "
    "without one, make kernels with target=lp.ExecutableCTarget()"
)

_CACHE_VARIABLE = "PYOPENCL_CACHE_FAILURE_FATAL"


def load_pyopencl() -> Any:
    """Import ``pyopencl`` and ``pyopencl.array`` on first use.

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
    # If its cache of programs fails, because the home is read-only or a driver does not
    # know an option, pyopencl looks this variable up without a default. With a default,
    # it warns and builds without the cache, and so raises the original error.
    with_default = ChainMap(os.environ, {_CACHE_VARIABLE: ""})
    names = vars(importlib.import_module("pyopencl.cache"))
    build = "create_built_program_from_source_cached"
    names[build] = with_own_warn(names[build], os=SimpleNamespace(environ=with_default))
    loud = vars(cl)["compiler_output"]

    def compiler_output(text: str) -> None:
        if not is_silenced(cl.CompilerWarning):
            loud(text)

    vars(cl)["compiler_output"] = compiler_output
    return cl


@contextmanager
def convert_opencl_errors(
    action: str, kind: type[MeasurementError] = MeasurementError
) -> Iterator[None]:
    """Convert pyopencl's errors in the body to an error of class ``kind``.

    Args:
        action: what failed; begins the message, before the first lines of the cause.
        kind: class of the error to raise.
    """
    cl = load_pyopencl()
    try:
        yield
    except cl.Error as error:
        raise kind(f"{action}: {get_first_lines(error)}") from error


@contextmanager
def silence_builds() -> Iterator[None]:
    """Silence the warnings of a successful build, about its log and a missing cache.

    OpenCL compilers write remarks on correct kernels, such as unused arguments. A
    failed build is an error, not a warning.
    """
    load_pyopencl()
    with quiet(UserWarning):
        yield


PLATFORM = "Intel(R) OpenCL"

LIBRARY = "libintelocl.so"

SYSTEM_LISTS = Path("/etc/OpenCL/vendors")
"""Folder of lists that the loader reads if neither variable is set."""

VARIABLE, OTHER_VARIABLE = "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"


@cache
def find_intel_driver() -> Path | None:
    """Find the driver of the package ``intel-opencl-rt``; None without it."""
    with suppress(PackageNotFoundError):
        for file in files("intel-opencl-rt") or ():
            if file.name == LIBRARY:
                return Path(str(file.locate())).resolve()
    return None


def load_platforms(cl: Any) -> None:
    """Make the loader read its lists, and one with Intel's driver.

    Does nothing if the package is not installed, if the user sets the folder of lists,
    if the system's lists name the driver, or if the loader is not that of pyopencl's
    wheel. A loader that was called before does not read lists again.

    Args:
        cl: the module ``pyopencl``.
    """
    library = find_intel_driver()
    is_own_loader = (Path(cl.__file__).parent / ".libs").is_dir()
    if library is None or not is_own_loader or _is_arranged():
        return
    with suppress(cl.Error, OSError), _list_driver(library):
        cl.get_platforms()


def is_intel_platform(platform: Any) -> bool:
    """Return whether a platform is that of Intel's wheel, which is never a default."""
    return find_intel_driver() is not None and platform.name == PLATFORM


def _is_arranged() -> bool:
    """Return whether the user or the system configures the drivers to load."""
    by_user = os.environ.get(VARIABLE) or os.environ.get(OTHER_VARIABLE)
    return bool(by_user) or any(
        LIBRARY in path.read_text() for path in _list_system_files()
    )


def _list_system_files() -> list[Path]:
    return sorted(SYSTEM_LISTS.glob("*.icd"))


@contextmanager
def _list_driver(library: Path) -> Iterator[None]:
    """Set the loader's folder to one with the system's lists and ``library``."""
    with TemporaryDirectory(prefix="feinsum-") as folder:
        for path in _list_system_files():
            Path(folder, path.name).symlink_to(path)
        Path(folder, "feinsum-intel.icd").write_text(str(library))
        os.environ[VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[VARIABLE]
