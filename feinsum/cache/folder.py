"""A folder of signed entries that the processes of one user share.

Readers unpickle what they find, and unpickling runs code. So the folder must belong
to the user and be closed to all others, and every entry carries a digest that is
keyed by a secret of the folder. An entry that was truncated, changed, renamed, or
written without the secret is ignored. Programs of the user can read the secret, so
nothing here protects against them.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir

from feinsum.memory import get_remembered

logger = logging.getLogger(__name__)

MAX_BYTES = 256 * 2**20
"""Default capacity of a cache."""

SUFFIX = ".entry"

_SECRET = "secret"  # noqa: S105  (the name of a file)

_PART = "part-"

_N_SECRET_BYTES = 32

_N_DIGEST_BYTES = 32


@dataclass(frozen=True)
class CacheInfo:
    """Current contents of a cache."""

    location: str
    n_entries: int
    n_bytes: int
    max_bytes: int


@dataclass(frozen=True)
class DiskCache:
    """Values by key; the least recently used ones are removed when space runs out.

    Every entry is a file that is renamed into place when complete, so that other
    processes see all of it or nothing. Missing space, folders or permissions raise no
    error: then there is no entry, and one warning in the log.

    Args:
        folder: created when it is needed, with access for the user alone.
    """

    folder: Path
    max_bytes: int = MAX_BYTES

    def read(self, key: str) -> bytes | None:
        """Return the value of a key, if there is an entry that can be trusted."""
        path = self._get_path(key)
        try:
            secret = self._get_secret()
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn_once(self.folder, error)
            return None
        # before anything is unpickled, which would run its code
        digest, value = content[:_N_DIGEST_BYTES], content[_N_DIGEST_BYTES:]
        if not hmac.compare_digest(digest, _digest(secret, key, value)):
            logger.warning("the entry %s is damaged or foreign; removing it", path)
            self.remove(key)
            return None
        with suppress(OSError):
            os.utime(path)
        return value

    def write(self, key: str, value: bytes) -> None:
        """Store a value in place of an earlier one."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = _digest(self._get_secret(), key, value) + value
            # readers see the old entry or the new one, never a part of it
            with _complete_file(self.folder, content) as temporary:
                temporary.replace(self._get_path(key))
            self._make_room()
        except OSError as error:
            _warn_once(self.folder, error)

    def remove(self, key: str) -> None:
        """Forget an entry, if there is one."""
        with suppress(OSError):
            self._get_path(key).unlink(missing_ok=True)

    def info(self) -> CacheInfo:
        """Return how many entries there are, and their size."""
        sizes = [size for _, size, _ in self._list_entries()]
        return CacheInfo(str(self.folder), len(sizes), sum(sizes), self.max_bytes)

    def clear(self) -> int:
        """Remove all entries, the secret and leftovers; return how many entries."""
        paths = [path for _, _, path in self._list_entries()]
        leftovers = [*self.folder.glob(f"{_PART}*"), *self.folder.glob(_SECRET)]
        for path in (*paths, *leftovers):
            path.unlink(missing_ok=True)
        return len(paths)

    def _get_path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def _list_entries(self) -> Iterator[tuple[int, int, Path]]:
        """Yield when each entry was last used, its size, and its file."""
        for path in self.folder.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):  # another process was faster
                status = path.stat()
                yield status.st_mtime_ns, status.st_size, path

    def _make_room(self) -> None:
        # by the time of the last use, which reading updates
        entries = sorted(self._list_entries())
        too_much = sum(size for _, size, _ in entries) - self.max_bytes
        for _, size, path in entries:
            if too_much <= 0:
                return
            path.unlink(missing_ok=True)
            too_much -= size

    def _get_secret(self) -> bytes:
        """Return the key of the digests, and create it if there is none.

        Raises:
            OSError: if there is no folder, or other users have access.
        """
        _check_private(self.folder)
        path = self.folder / _SECRET
        if not path.exists():
            drawn = secrets.token_bytes(_N_SECRET_BYTES)
            with (
                _complete_file(self.folder, drawn) as temporary,
                suppress(FileExistsError),
            ):
                path.hardlink_to(temporary)  # the secret of the first process counts
        _check_private(path)
        secret = path.read_bytes()
        if len(secret) != _N_SECRET_BYTES:
            raise OSError(f"{path} is damaged: run 'feinsum cache clear'")
        return secret


@contextmanager
def _complete_file(folder: Path, content: bytes) -> Iterator[Path]:
    """Write a file under a temporary name, to be renamed or linked.

    The temporary name is removed afterwards.
    """
    number, name = tempfile.mkstemp(dir=folder, prefix=_PART)
    path = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _check_private(path: Path) -> None:
    status = path.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(
            f"{path} is accessible to others; restrict it to its owner (chmod "
            "go-rwx), or "
            "set FEINSUM_CACHE_DIR to another folder"
        )


def _digest(secret: bytes, key: str, value: bytes) -> bytes:
    signed = key.encode() + b"\0" + value
    return hmac.new(secret, signed, hashlib.sha256).digest()


class _Warned(set[Path]):
    """The folders of which the log has a warning."""


def _warn_once(folder: Path, error: OSError) -> None:
    warned = get_remembered(_Warned)
    if folder not in warned:
        warned.add(folder)
        logger.warning(
            "not caching in %s: %s; every process builds anew: set FEINSUM_CACHE_DIR "
            "to a folder of yours, or to 'off'",
            folder,
            error,
        )


CACHE_VARIABLE = "FEINSUM_CACHE_DIR"
"""Environment variable with the folder of the cache, or ``off``."""

OFF = "off"


def cache_folder() -> Path | None:
    """Return the configured cache folder, else the user's; None if it is off."""
    named = os.environ.get(CACHE_VARIABLE, "").strip()
    if named.lower() == OFF:
        return None
    return Path(named or user_cache_dir("feinsum", appauthor=False)).expanduser()


def get_default_cache() -> DiskCache | None:
    """Return the user's cache; None if it is off."""
    folder = cache_folder()
    return None if folder is None else DiskCache(folder)


@contextmanager
def hold_file_lock(folder: Path, name: str, timeout_s: float) -> Iterator[bool]:
    """Hold a lock exclusively in the body, or go on without it after a time limit.

    Args:
        folder: folder of the lock's file; made with access for the user alone.
        name: name of the lock's file.
        timeout_s: how long to wait for the lock, in seconds.

    Yields:
        whether it is locked; False where no such file can be made.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(folder / name, timeout=timeout_s, mode=0o600)
            stack.enter_context(lock)
        except (Timeout, OSError, NotImplementedError):  # or a system without locks
            yield False
        else:
            yield True
