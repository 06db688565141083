"""Intel's OpenCL runtime for CPUs, where it is installed as a Python package.

Its wheel writes a list of drivers for conda, with a path that exists nowhere else.
The loader in pyopencl's wheel reads its lists once, when it is first asked for the
platforms, and so it is asked while a list with the right path lies ready.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["comes_last", "driver", "load_platforms"]

PLATFORM = "Intel(R) OpenCL"
LIBRARY = "libintelocl.so"
SYSTEM_LISTS = Path("/etc/OpenCL/vendors")
"""Folder that the loader reads if neither variable is set."""
VARIABLE, OTHER_VARIABLE = "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"


@cache
def driver() -> Path | None:
    """The driver of the package ``intel-opencl-rt``; None if it is not installed."""
    with suppress(PackageNotFoundError):
        for file in files("intel-opencl-rt") or ():
            if file.name == LIBRARY:
                return Path(str(file.locate())).resolve()
    return None


def load_platforms(cl: Any) -> None:
    """Make the loader read its lists, with Intel's driver among them.

    Nothing is done if the package is not installed, if the user says where the lists
    are, if those of the system name the driver, or if the loader is not that of
    pyopencl's wheel. A loader that was asked before keeps what it has.

    Args:
        cl: the module ``pyopencl``.
    """
    library = driver()
    is_own_loader = (Path(cl.__file__).parent / ".libs").is_dir()
    if library is None or not is_own_loader or _is_arranged():
        return
    with suppress(cl.Error, OSError), _listed(library):
        cl.get_platforms()


def comes_last(platform: Any) -> bool:
    """Whether a platform is that of the package, which is nobody's default."""
    return driver() is not None and platform.name == PLATFORM


def _is_arranged() -> bool:
    """The user, or the system, says already which drivers are to be loaded."""
    by_user = os.environ.get(VARIABLE) or os.environ.get(OTHER_VARIABLE)
    return bool(by_user) or any(LIBRARY in path.read_text() for path in _system())


def _system() -> list[Path]:
    return sorted(SYSTEM_LISTS.glob("*.icd"))


@contextmanager
def _listed(library: Path) -> Iterator[None]:
    """The system's lists and one that names ``library``, in a folder for the loader."""
    with TemporaryDirectory(prefix="feinsum-") as folder:
        for path in _system():
            Path(folder, path.name).symlink_to(path)
        Path(folder, "feinsum-intel.icd").write_text(str(library))
        os.environ[VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[VARIABLE]
