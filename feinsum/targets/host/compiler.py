"""The C compiler of this machine, and its shared objects.

Objects are compiled once, stored in the cache, and loaded from memory. The cache
verifies the digest of an entry, and its bytes are passed to the loader without a file
that another process could replace in between::

    source, flags -> key -> cache -> bytes -> memfd -> dlopen
                      '---> compile -> load -> cache
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from feinsum.cache import get_default_cache
from feinsum.errors import BuildError, DeviceUnavailableError
from feinsum.memory import get_remembered
from feinsum.processes import describe_exit, run_command
from feinsum.words import get_first_lines

ENTRY = "feinsum_entry"
"""The function that a compiled kernel exports."""

COMPILER_VARIABLE = "FEINSUM_CC"
"""Environment variable with the command of the C compiler."""

CANDIDATES = ("gcc", "clang", "cc")
"""Commands that are tried if no variable names one."""

LIMIT_S = 120.0
"""Time limit of the compiler for one kernel."""

N_LINES = 12
"""Number of lines of the compiler's output in messages."""

INSTALL_HINT = (
    f"install gcc or clang (apt-get install gcc), or set {COMPILER_VARIABLE} to the "
    "command of one"
)

_COMMON = (
    *("-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-w", "-O3"),
    # none of these reorders sums; contraction allows fused multiply-adds
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)

# Products of complex numbers as in numpy. Annex G of C requires a test for NaN in each
# product, which prevents vectorization.
_ONLY_GCC = ("-fcx-fortran-rules",)

# gcc 12.2 permutes vectors of eight doubles wrongly: for {0,1,2,6,4,5,6,7}, as in
# B[c,b]*B[b,c] of four rows, it takes a vpermilpd, which crosses no lanes of 128 bits.
# Its own vectorizers, which find these permutations, get 256 bits; vectors that a
# kernel declares keep theirs. Intel's processors have this default.
_ONLY_X86 = ("-mprefer-vector-width=256",)

_IS_X86 = platform.machine() in ("x86_64", "AMD64")

# On aarch64, -mcpu sets architecture and tuning, as -march=native does on x86.
_ARCHITECTURE = "-march=native" if platform.machine() != "aarch64" else "-mcpu=native"


@dataclass(frozen=True)
class Compiler:
    """A C compiler that works.

    Attributes:
        command: the words of the command.
        version: the first line of its output for ``--version``.
        is_clang: whether it accepts clang's options.
    """

    command: tuple[str, ...]
    version: str
    is_clang: bool

    @property
    def flags(self) -> tuple[str, ...]:
        """The options for kernels, none of which reorders sums."""
        if self.is_clang:
            return (*_COMMON, _ARCHITECTURE)
        return (*_COMMON, *_ONLY_GCC, *(_ONLY_X86 if _IS_X86 else ()), _ARCHITECTURE)

    def choose_flags(
        self,
        *,
        has_vectors: bool,
        has_integers: bool = False,
        has_conditional_reads: bool = False,
    ) -> tuple[str, ...]:
        """Return the options for one kernel.

        clang's own vectorizer spoils loops whose lanes are vectors already: a face
        mass operator took four times as long.

        Integers wrap, as in numpy. In C, overflow of signed integers is undefined, and
        gcc assumes that it does not happen: sums of 8-bit integers were wrong.

        Conditional reads of arrays become masked loads by if-conversion. gcc 12.2 then
        exchanges entries if a short loop was unrolled: ``v[5*a + b] = u[5*a + b] if
        t[5*a + b] > 0 else 1``. So if-conversion is switched off for such kernels.

        Args:
            has_vectors: whether the kernel declares vectors.
            has_integers: whether an array has integers.
            has_conditional_reads: whether conditions decide which entries are read.
        """
        flags = self.flags
        if self.is_clang and has_vectors:
            flags = (*flags, "-fno-vectorize", "-fno-slp-vectorize")
        if not self.is_clang and has_conditional_reads:
            flags = (*flags, "-fno-tree-loop-if-convert")
        return (*flags, "-fwrapv") if has_integers else flags

    def compile(self, source: str, flags: Sequence[str]) -> bytes:
        """Compile a source to a shared object.

        Raises:
            BuildError: with the first lines that the compiler wrote, if it fails,
                crashes, does not end within :data:`LIMIT_S` or cannot write.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="feinsum-cc-") as folder:
                code, built = Path(folder, "kernel.c"), Path(folder, "kernel.so")
                code.write_text(source)
                words = (*self.command, *flags, str(code), "-o", str(built), "-lm")
                _run(words, folder)
                if not built.is_file():
                    raise BuildError(f"{self.command[0]} wrote no shared object")
                return built.read_bytes()
        except OSError as error:
            raise BuildError(f"{self.command[0]} cannot compile: {error}") from error


def find_compiler() -> Compiler:
    """Find the compiler of ``FEINSUM_CC``, of ``CC``, or of gcc, clang and cc.

    Raises:
        DeviceUnavailableError: if there is none, or the named one does not work; the
            message tells what to install.
    """
    for name in (COMPILER_VARIABLE, "CC"):
        if named := os.environ.get(name, "").strip():
            return get_remembered(_Examined)[
                _split_command(name, named), f"{name}={named!r}: "
            ]
    for command in CANDIDATES:
        if shutil.which(command):
            return get_remembered(_Examined)[(command,), ""]
    raise DeviceUnavailableError(f"no C compiler was found; {INSTALL_HINT}")


def _split_command(name: str, command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise DeviceUnavailableError(f"{name} is {command!r}: {error}") from error


class _Examined(dict[tuple[tuple[str, ...], str], Compiler]):
    """Compilers that were tried, by their command and the variable that names it."""

    def __missing__(self, key: tuple[tuple[str, ...], str]) -> Compiler:
        return self.setdefault(key, _examine(*key))


def _examine(command: tuple[str, ...], named_by: str) -> Compiler:
    try:
        output = _run((*command, "--version"))
    except (OSError, BuildError) as error:
        raise DeviceUnavailableError(
            f"{named_by}{command[0]} does not work as a C compiler: {error}; "
            f"{INSTALL_HINT}"
        ) from error
    version = next((line.strip() for line in output.splitlines() if line.strip()), "")
    return Compiler(command, version, "clang" in output.lower())


def _run(words: Sequence[str], folder: str | None = None) -> str:
    """Run a command and return its output; kill all its processes at the time limit."""
    # PATH, because gcc finds its own programs by it, and systemd and cron may not set
    # it; LC_ALL, so that messages and the version, a part of keys, are in English
    env = {"PATH": os.defpath, **os.environ, "LC_ALL": "C"}
    try:
        completed = run_command(words, limit_s=LIMIT_S, env=env, cwd=folder)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{words[0]} did not finish within {LIMIT_S:g} s") from None
    if completed.returncode:
        # the first lines have the first error; the last one is only a count
        messages = get_first_lines(completed.stderr, n_lines=N_LINES)
        ending = describe_exit(completed.returncode)
        raise BuildError(f"{words[0]} ended with {ending}: {messages}")
    return completed.stdout


def load(compiler: Compiler, source: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """Compile a source, or take it from the cache, and load the library.

    Raises:
        BuildError: if it cannot be compiled or loaded.
    """
    return load_with_content(compiler, source, flags)[0]


def load_with_content(
    compiler: Compiler, source: str, flags: tuple[str, ...]
) -> tuple[ctypes.CDLL, bytes]:
    """Compile and load a source as :func:`load`; return the shared object, too.

    Raises:
        BuildError: if it cannot be compiled or loaded.
    """
    cache, key = get_default_cache(), _compute_key(compiler, source, flags)
    content = None if cache is None else cache.read(key)
    if content is not None:
        return load_content(content), content
    content = compiler.compile(source, flags)
    # loaded before it is cached, so that a broken object is not cached
    library = load_content(content)
    if cache is not None:
        cache.write(key, content)
    return library, content


def compile_once(compiler: Compiler, source: str, flags: tuple[str, ...]) -> bytes:
    """Compile a source, or take it from the cache, without loading it.

    Raises:
        BuildError: if it cannot be compiled.
    """
    cache, key = get_default_cache(), _compute_key(compiler, source, flags)
    content = None if cache is None else cache.read(key)
    if content is None:
        content = compiler.compile(source, flags)
        if cache is not None:
            cache.write(key, content)
    return content


def _compute_key(compiler: Compiler, source: str, flags: tuple[str, ...]) -> str:
    """Return a key of everything that determines the code.

    This includes the processor: ``native`` differs between machines that share a
    folder.
    """
    # imported here, because it takes ten times as long as loading a compiled object
    from feinsum.targets.processor import describe_host_processor

    processor = describe_host_processor()
    inputs = ("shared object", *compiler.command, compiler.version, *flags,
             processor.microarchitecture, *processor.features, source)  # fmt: skip
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()


def load_content(content: bytes) -> ctypes.CDLL:
    """Load a library from memory, or from a private folder if that is forbidden.

    Raises:
        BuildError: if it cannot be loaded.
    """
    try:
        return _load_from_memory(content)
    except (OSError, AttributeError):
        return _load_from_folder(content)


def _load_from_memory(content: bytes) -> ctypes.CDLL:
    # not in a folder, where another process could replace the file before it is loaded
    file = os.memfd_create("feinsum-kernel", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(file), "wb") as writer:
            writer.write(content)
        return ctypes.CDLL(f"/proc/self/fd/{_vary_path(next(_LOADS))}{file}")
    finally:
        os.close(file)


def _load_from_folder(content: bytes) -> ctypes.CDLL:
    try:
        with tempfile.TemporaryDirectory(prefix="feinsum-so-") as folder:
            path = Path(folder, "kernel.so")
            path.write_bytes(content)
            return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"a compiled kernel cannot be loaded: {error}") from error


_LOADS = count(1)


def _vary_path(number: int) -> str:
    """Return a prefix that varies a path without changing the file it leads to.

    The loader identifies libraries by their paths, but file numbers are reused.

    >>> _vary_path(6)
    '././/'
    """
    return "".join("./" if bit == "1" else "/" for bit in f"{number:b}")
