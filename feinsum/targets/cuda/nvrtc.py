"""NVRTC, the compiler of CUDA C++. It needs neither a GPU nor a driver."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from feinsum.cache import get_default_cache
from feinsum.errors import BuildError, DeviceUnavailableError
from feinsum.words import get_first_lines

INSTALL_HINT = "pip install 'feinsum[cuda]' gives CuPy and NVRTC"

# ptxas reports registers and spills, see KernelFigures, only if it is verbose.
FLAGS = ("--std=c++17", "-default-device", "--ptxas-options=--verbose")
"""Options of the compiler, none of which reorders sums."""

TOOLKIT = "/usr/local/cuda/lib64/libnvrtc.so"
"""The library of NVIDIA's toolkit, for systems without it on the loader's path."""

ELF = b"\x7fELF"
"""The first bytes of a cubin."""

HEADERS = {
    "stdint.h": """\
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t;
typedef long int64_t; typedef unsigned long uint64_t;
""",
    "stdbool.h": "",
    "math.h": """\
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
""",
}
"""Headers of C that Loopy's code includes; NVRTC has none of its own."""


@dataclass(frozen=True)
class CudaBinary:
    """A compiled source.

    Attributes:
        source: source in CUDA C++.
        image: a cubin, or PTX as text if the compiler is older than the device.
        log: the report of ptxas on registers and memory.
    """

    source: str
    image: bytes
    log: str

    @property
    def has_figures(self) -> bool:
        """Whether ptxas has reported registers; it does not run for PTX."""
        return self.image.startswith(ELF) and "Compiling entry function" in self.log


@dataclass(frozen=True)
class Nvrtc:
    """The compiler as a library.

    Attributes:
        library: the loaded library.
        version: the version of NVRTC, such as ``12.9``.
        architectures: compute capabilities that it supports, as numbers such as 90.
    """

    library: Any
    version: str
    architectures: tuple[int, ...]

    def choose_architecture(self, capability: tuple[int, int]) -> str:
        """Return the architecture to compile for: the device, or PTX for a newer one.

        Raises:
            BuildError: if the device is older than any that the compiler supports.
        """
        wanted = 10 * capability[0] + capability[1]
        if wanted in self.architectures:
            return f"sm_{wanted}"
        # the driver compiles PTX for a device that NVRTC does not support yet
        older = [number for number in self.architectures if number < wanted]
        if not older:
            raise BuildError(
                f"NVRTC {self.version} compiles for {self._range}, the device is of "
                f"{wanted}; install an older nvidia-cuda-nvrtc"
            )
        return f"compute_{max(older)}"

    @property
    def _range(self) -> str:
        return f"sm_{min(self.architectures)} to sm_{max(self.architectures)}"

    def compile(self, source: str, architecture: str) -> CudaBinary:
        """Compile a source, or return the cached binary of an earlier compilation.

        Args:
            source: source in CUDA C++.
            architecture: such as ``sm_90``, or ``compute_90`` for PTX.

        Raises:
            BuildError: with the first lines of the log.
        """
        cache = get_default_cache()
        # everything that the binary depends on, so that machines can share a cache
        inputs = ("cubin", self.version, architecture, *FLAGS, *HEADERS.values())
        key = hashlib.sha256("\0".join((*inputs, source)).encode()).hexdigest()
        entry = None if cache is None else cache.read(key)
        if entry is not None:
            # the log ends at the first NUL; the image may contain more of them
            log, _, image = entry.partition(b"\0")
            return CudaBinary(source, image, log.decode())
        binary = self._compile_source(source, architecture)
        if cache is not None:
            cache.write(key, binary.log.encode() + b"\0" + binary.image)
        return binary

    def _compile_source(self, source: str, architecture: str) -> CudaBinary:
        program = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(HEADERS))(*(n.encode() for n in HEADERS))
        texts = (ctypes.c_char_p * len(HEADERS))(
            *(text.encode() for text in HEADERS.values())
        )
        library = self.library
        self._check(
            library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), b"kernel.cu",
                len(HEADERS), texts, names,
            )
        )  # fmt: skip
        try:
            options = (f"--gpu-architecture={architecture}", *FLAGS)
            flags = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            failed = library.nvrtcCompileProgram(program, len(options), flags)
            # read also after success, because the log has ptxas's figures
            log = self._get_text(program, "ProgramLog").rstrip(b"\0").decode()
            if failed:
                raise BuildError(f"NVRTC {self.version}: {get_first_lines(log)}")
            output = "CUBIN" if architecture.startswith("sm_") else "PTX"
            return CudaBinary(source, self._get_text(program, output), log)
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _get_text(self, program: ctypes.c_void_p, output: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(
            getattr(self.library, f"nvrtcGet{output}Size")(program, ctypes.byref(size))
        )
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self.library, f"nvrtcGet{output}")(program, buffer))
        return buffer.raw

    def _check(self, code: int) -> None:
        if code:
            self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
            message = self.library.nvrtcGetErrorString(code).decode()
            raise BuildError(f"NVRTC {self.version}: {message}")


@cache
def find_nvrtc() -> Nvrtc:
    """Load the compiler of the Python package, or that of the system.

    Raises:
        DeviceUnavailableError: if there is no compiler.
    """
    for name in _list_library_names():
        try:
            return _wrap_library(ctypes.CDLL(name))
        except (
            OSError,
            AttributeError,
        ):  # before CUDA 11.2, some functions are missing
            continue
    raise DeviceUnavailableError(
        f"the compiler NVRTC (libnvrtc.so) is not installed; {INSTALL_HINT}"
    )


def _wrap_library(library: Any) -> Nvrtc:
    major, minor, n_architectures = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    library.nvrtcGetNumSupportedArchs(ctypes.byref(n_architectures))
    numbers = (ctypes.c_int * n_architectures.value)()
    library.nvrtcGetSupportedArchs(numbers)
    return Nvrtc(library, f"{major.value}.{minor.value}", tuple(numbers))


def _list_library_names() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else (spec.submodule_search_locations or [])
    for folder in folders:
        paths = Path(folder).glob("*/lib/libnvrtc.so.*")
        # without alternatives, such as libnvrtc.so.12.alt
        main = (path for path in paths if re.fullmatch(r"libnvrtc\.so\.\d+", path.name))
        yield from map(str, sorted(main))
    yield from ("libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so", TOOLKIT)
