"""Shared objects: compiled once, kept in the cache, loaded from memory.

What is loaded is what was verified: the bytes of the cache carry a digest, and go
from there to the loader without a file that others could change.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from itertools import count
from pathlib import Path

from feinsum.cache import default_cache
from feinsum.errors import BuildError
from feinsum.targets.host.compiler import Compiler
from feinsum.targets.processor import host_processor

__all__ = ["compiled_once", "load", "load_with_content", "loaded"]


def load(compiler: Compiler, source: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """The library that a compiler makes of a source.

    Raises:
        BuildError: if it cannot be compiled or loaded.
    """
    return load_with_content(compiler, source, flags)[0]


def load_with_content(
    compiler: Compiler, source: str, flags: tuple[str, ...]
) -> tuple[ctypes.CDLL, bytes]:
    """The library that a compiler makes of a source, and its shared object.

    Raises:
        BuildError: if it cannot be compiled or loaded.
    """
    kept_in, key = default_cache(), _key(compiler, source, flags)
    kept = None if kept_in is None else kept_in.read(key)
    if kept is not None:
        return loaded(kept), kept
    content = compiler.compile(source, flags)
    library = loaded(content)
    if kept_in is not None:
        kept_in.write(key, content)
    return library, content


def compiled_once(compiler: Compiler, source: str, flags: tuple[str, ...]) -> bytes:
    """The shared object of a source, from the cache or for it; it is not loaded.

    Raises:
        BuildError: if it cannot be compiled.
    """
    kept_in, key = default_cache(), _key(compiler, source, flags)
    kept = None if kept_in is None else kept_in.read(key)
    if kept is None:
        kept = compiler.compile(source, flags)
        if kept_in is not None:
            kept_in.write(key, kept)
    return kept


def _key(compiler: Compiler, source: str, flags: tuple[str, ...]) -> str:
    """Key of everything that determines the code, including the processor: ``native``
    differs between machines that share a folder.
    """
    processor = host_processor()
    given = ("shared object", *compiler.command, compiler.version, *flags,
             processor.microarchitecture, *processor.features, source)  # fmt: skip
    return hashlib.sha256("\0".join(given).encode()).hexdigest()


def loaded(content: bytes) -> ctypes.CDLL:
    """A library, loaded from memory, or from a private folder where the system forbids
    that.

    Raises:
        BuildError: if it cannot be loaded.
    """
    try:
        return _from_memory(content)
    except (OSError, AttributeError):
        return _from_folder(content)


def _from_memory(content: bytes) -> ctypes.CDLL:
    file = os.memfd_create("feinsum-kernel", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(file), "wb") as writer:
            writer.write(content)
        return ctypes.CDLL(f"/proc/self/fd/{_no_way(next(_LOADS))}{file}")
    finally:
        os.close(file)


def _from_folder(content: bytes) -> ctypes.CDLL:
    try:
        with tempfile.TemporaryDirectory(prefix="feinsum-so-") as folder:
            path = Path(folder, "kernel.so")
            path.write_bytes(content)
            return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"a compiled kernel cannot be loaded: {error}") from error


_LOADS = count(1)


def _no_way(number: int) -> str:
    """A path that leads nowhere, another one for each number.

    The loader takes a path that it knows for the library that it has, but numbers of
    files are used again.

    >>> _no_way(6)
    '././/'
    """
    return "".join("./" if bit == "1" else "/" for bit in f"{number:b}")
