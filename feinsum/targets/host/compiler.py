"""The C compiler of this machine, and what it makes of a source: shared objects.

They are compiled once, kept in the cache, and loaded from memory. What is loaded is
what was verified: the bytes of the cache carry a digest, and go from there to the
loader without a file that others could change.
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

from feinsum.cache import default_cache
from feinsum.errors import BuildError, DeviceUnavailableError
from feinsum.memory import remembered
from feinsum.processes import describe_exit, run_command
from feinsum.words import first_lines

ENTRY = "feinsum_entry"
"""The function that a compiled kernel exports."""

COMPILER_VARIABLE = "FEINSUM_CC"
"""Environment variable with the command of the C compiler."""

CANDIDATES = ("gcc", "clang", "cc")

LIMIT_S = 120.0
"""How long the compiler may take for one kernel."""

N_LINES = 12

INSTALL_HINT = (
    f"install gcc or clang (apt-get install gcc), or set {COMPILER_VARIABLE} to the "
    "command of one"
)

_COMMON = (
    *("-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-w", "-O3"),
    # none allows another order of sums; contraction gives fused multiply-adds
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)

# Products of complex numbers as numpy computes them. Annex G of C looks for NaN in each
# of them and computes it again, which no loop with vectors does.
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
        command: the words with which it is called.
        version: the first line of what it says of itself.
        is_clang: whether it takes clang's options.
    """

    command: tuple[str, ...]
    version: str
    is_clang: bool

    @property
    def flags(self) -> tuple[str, ...]:
        """The options with which kernels are compiled; none that reorders sums."""
        if self.is_clang:
            return (*_COMMON, _ARCHITECTURE)
        return (*_COMMON, *_ONLY_GCC, *(_ONLY_X86 if _IS_X86 else ()), _ARCHITECTURE)

    def flags_for(
        self,
        *,
        has_vectors: bool,
        has_integers: bool = False,
        has_conditional_reads: bool = False,
    ) -> tuple[str, ...]:
        """Return the options for one kernel.

        clang's own vectorizer spoils loops whose lanes are vectors already: a face
        mass operator took four times as long.

        Integers wrap, as in numpy. C leaves open what happens where one with a sign
        does, and gcc relies on that it never does: sums of 8 bits came out wrong.

        Arrays that are read under a condition are read through masks. gcc 12.2 mixes
        up entries there, where a short loop was unrolled: ``v[5*a + b] = u[5*a + b] if
        t[5*a + b] > 0 else 1``. Without the conversion of conditions there are none.
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
        DeviceUnavailableError: if there is none, or the one that is named does not
            work; the message says what to install.
    """
    for name in (COMPILER_VARIABLE, "CC"):
        if named := os.environ.get(name, "").strip():
            return remembered(_Examined)[
                _split_command(name, named), f"{name}={named!r}: "
            ]
    for command in CANDIDATES:
        if shutil.which(command):
            return remembered(_Examined)[(command,), ""]
    raise DeviceUnavailableError(f"no C compiler was found; {INSTALL_HINT}")


def _split_command(name: str, command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise DeviceUnavailableError(f"{name} is {command!r}: {error}") from error


class _Examined(dict[tuple[tuple[str, ...], str], Compiler]):
    """The compilers by their command, and by what names it."""

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
    """Run a command and return its output; all its processes end at the limit."""
    # gcc finds its own programs by PATH, which systemd and cron may leave out; messages
    # and the version, a part of cache keys, do not depend on the locale.
    env = {"PATH": os.defpath, **os.environ, "LC_ALL": "C"}
    try:
        completed = run_command(words, limit_s=LIMIT_S, env=env, cwd=folder)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{words[0]} did not finish within {LIMIT_S:g} s") from None
    if completed.returncode:
        # A compiler names the first error first: its last line is only a count.
        messages = first_lines(completed.stderr, n_lines=N_LINES)
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
    cache, key = default_cache(), _key(compiler, source, flags)
    content = None if cache is None else cache.read(key)
    if content is not None:
        return loaded(content), content
    content = compiler.compile(source, flags)
    # Loaded before it is cached: what cannot be loaded is compiled again next time.
    library = loaded(content)
    if cache is not None:
        cache.write(key, content)
    return library, content


def compiled_once(compiler: Compiler, source: str, flags: tuple[str, ...]) -> bytes:
    """Compile a source, or take it from the cache, without loading it.

    Raises:
        BuildError: if it cannot be compiled.
    """
    cache, key = default_cache(), _key(compiler, source, flags)
    content = None if cache is None else cache.read(key)
    if content is None:
        content = compiler.compile(source, flags)
        if cache is not None:
            cache.write(key, content)
    return content


def _key(compiler: Compiler, source: str, flags: tuple[str, ...]) -> str:
    """Return a key of everything that determines the code.

    This includes the processor: ``native`` differs between machines that share a
    folder.
    """
    # here, since loading what others compiled takes a tenth of the time without it
    from feinsum.targets.processor import host_processor

    processor = host_processor()
    parts = ("shared object", *compiler.command, compiler.version, *flags,
             processor.microarchitecture, *processor.features, source)  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def loaded(content: bytes) -> ctypes.CDLL:
    """Load a library from memory, or from a private folder where memory is forbidden.

    Raises:
        BuildError: if it cannot be loaded.
    """
    try:
        return _load_from_memory(content)
    except (OSError, AttributeError):
        return _load_from_folder(content)


def _load_from_memory(content: bytes) -> ctypes.CDLL:
    # No file that another process could replace between writing and loading.
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
    """Vary a path without changing what it leads to.

    The loader takes a path that it knows for the library that it has, but numbers of
    files are used again.

    >>> _vary_path(6)
    '././/'
    """
    return "".join("./" if bit == "1" else "/" for bit in f"{number:b}")
