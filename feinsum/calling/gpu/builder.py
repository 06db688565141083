"""A process that builds the calls of a GPU, while libraries answer them.

Building takes seconds, in which the calling process would keep taking the
interpreter's lock. So another process, ``python -m`` of this module, makes arrays of
the same forms on the same GPU, and times the contenders there. The calling process
loads no code generator. A contender that costs a process the GPU costs it the builder::

    calling process   --- BuildRequest: subscripts, forms, GPU, database --->   builder
                      <--- a pickled call, whose launches are data ----------
    later processes   <--- the same, from the disk --------------------------

The pickles come from a process of our own, or from the cache, which signs them. Each
user runs one builder at a time. See :mod:`feinsum.processes`.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import pickle
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from feinsum.cache import CACHE_VARIABLE, DiskCache, get_default_cache, hold_file_lock
from feinsum.calling.gpu.flat import FlatCall
from feinsum.calling.gpu.site import Site, parse_arrays
from feinsum.calling.kernel_cache import LookupOptions
from feinsum.dtypes import format_dtype
from feinsum.errors import BuildError, DeviceUnavailableError
from feinsum.libraries import ALIGNMENT
from feinsum.memory import forget, get_remembered
from feinsum.options import get_default_location
from feinsum.targets.cuda.cutensor import load_cutensor
from feinsum.targets.cuda.device import CUDA, CudaDevice
from feinsum.targets.cuda.nvrtc import find_nvrtc
from feinsum.targets.cuda.session import find_driver
from feinsum.targets.protocol import list_versions

if TYPE_CHECKING:
    from feinsum.calling.gpu.prepared import GpuCall
    from feinsum.processes import Worker

logger = logging.getLogger(__name__)

MODULE = "feinsum.calling.gpu.builder"
LIMIT_S = 300.0
"""Seconds after which a build is stopped."""
PRIORITY = 10
"""Increment of the niceness of the process."""
LOCK = "gpu-builder"
MAX_WAITING = 16
"""Builds that wait for another one. Further ones begin with a later call."""
BYTE = np.dtype(np.uint8)


@dataclass(frozen=True)
class BuildRequest:
    """A call without options: all that its result depends on, without array entries.

    Attributes:
        forms: shape, strides in bytes, dtype of each operand, and whether its address
            is aligned.
        first: for each operand, the position of its first use; see
            :func:`feinsum.calling.operands.find_first_uses`.
        slot: the address of the GPU on the PCI bus: its number may differ in another
            process.
        database: address of the database; None for the user's own.
    """

    subscripts: str
    forms: tuple[tuple[tuple[int, ...], tuple[int, ...], str, bool], ...]
    first: tuple[int, ...]
    slot: str
    database: str | None

    @classmethod
    def of(
        cls, subscripts: str, first: Sequence[int], site: Site
    ) -> BuildRequest | None:
        """Build the request for a call; None if its options need this process."""
        if not site.options.is_usual:
            return None
        addresses = site.opened.session.addresses(site.arrays)
        forms = tuple(
            (
                tuple(array.shape),
                tuple(array.strides),
                format_dtype(np.dtype(array.dtype)),
                not address % ALIGNMENT,
            )
            for array, address in zip(site.arrays, addresses, strict=True)
        )
        database = cast(str | None, site.options.database)
        address = None if database is None else os.fspath(database)
        return cls(str(subscripts), forms, tuple(first), site.opened.slot, address)

    def make_key(self, opened: CudaDevice) -> str:
        """Return the key of the call in the cache on disk, for a GPU of that kind."""
        facts = opened.facts
        texts = (
            "call on a GPU",
            str(_get_installation()),
            json.dumps(_list_software()),
            # not the slot: another GPU of the same kind runs the same kernels
            repr((facts.name, facts.capability, facts.multiprocessors, facts.driver)),
            *_describe_database(self.database),
            *(f"{k}={v}" for k, v in sorted(os.environ.items()) if _is_setting(k)),
            json.dumps((self.subscripts, self.forms, self.first)),
        )
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()

    def make_arrays(self, opened: CudaDevice) -> list[Any]:
        """Make arrays with the memory layouts of the call's operands, on that GPU."""
        # an array given twice is one operand of the einsum
        arrays = [_make_array(opened, *form) for form in self.forms]
        return [arrays[k] for k in self.first]


def _make_array(
    opened: CudaDevice,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: str,
    is_aligned: bool,
) -> Any:
    """Make an array of ones, since denormal numbers would slow down kernels."""
    kind = _parse_dtype(dtype)
    last_offsets = [step * (n - 1) for step, n in zip(strides, shape, strict=True)]
    below = -sum(min(offset, 0) for offset in last_offsets)
    above = sum(max(offset, 0) for offset in last_offsets) + kind.itemsize
    # the first entry is at a multiple of the alignment, or right behind one
    start = -(-below // ALIGNMENT) * ALIGNMENT + (0 if is_aligned else kind.alignment)
    session = opened.session
    memory = session.empty((start + above,), BYTE)
    entry = memory[start : start + kind.itemsize].view(kind)
    array = session.strided(entry, shape, strides)
    session.overwrite(array, 1, session.current_stream())
    return array


def _parse_dtype(text: str) -> np.dtype[Any]:
    if text == "bfloat16":
        import feinsum.ir.dtypes  # noqa: F401  (numpy then knows it by its name)
    return np.dtype(text)


def _describe_database(database: str | None) -> tuple[str, str]:
    """Return its address and, for a file, the time of its last change.

    New facts may be about the call.
    """
    address = get_default_location() if database is None else database
    try:
        changed = Path(address.removeprefix("sqlite:///")).stat().st_mtime_ns
    except (OSError, ValueError):  # a server, or a file that does not exist yet
        changed = 0
    return address, str(changed)


def _is_setting(name: str) -> bool:
    """Tell whether a variable may affect what is built, such as other facts."""
    return name.startswith("FEINSUM_") and name != CACHE_VARIABLE


@lru_cache(1)
def _get_installation() -> int:
    """Return the modification time of this file, which identifies the installation."""
    return Path(__file__).stat().st_mtime_ns


@lru_cache(1)
def _list_software() -> dict[str, str]:
    """List the versions of all that computes, chooses or compiles."""
    try:
        compiler = find_nvrtc().version
    except DeviceUnavailableError:  # libraries may be all that is needed
        compiler = ""
    cutensor = load_cutensor()
    return {
        **list_versions(),
        # the packages of CuPy have several names; an open GPU has loaded one of them
        "cupy": str(getattr(sys.modules.get("cupy"), "__version__", "")),
        "nvrtc": compiler,
        "cutensor": "" if cutensor is None else cutensor[1],
    }


class _Pickler(pickle.Pickler):
    """Writes calls, with a reference in place of the GPU."""

    def persistent_id(self, obj: Any) -> str | None:
        return "GPU" if isinstance(obj, CudaDevice) else None


class _Unpickler(pickle.Unpickler):
    """Reads calls for a GPU of this process."""

    def __init__(self, content: bytes, opened: CudaDevice) -> None:
        super().__init__(io.BytesIO(content))
        self._opened = opened

    def persistent_load(self, pid: Any) -> CudaDevice:
        if pid != "GPU":
            raise pickle.UnpicklingError(f"an unknown reference: {pid}")
        return self._opened


def write_call(call: GpuCall) -> bytes:
    """Write a call for another process; see :func:`read_call`."""
    file = io.BytesIO()
    _Pickler(file).dump(call)
    return file.getvalue()


def read_call(content: bytes, opened: CudaDevice) -> GpuCall:
    """Read what :func:`write_call` wrote, and load its kernels.

    Raises:
        BuildError: if the content is damaged, or the GPU does not take the kernels.
    """
    try:
        call: GpuCall = _Unpickler(content, opened).load()
        if isinstance(call, FlatCall):
            with opened.session.active():
                _ = call.prepared
    except Exception as error:  # whatever the content says
        raise BuildError(f"a call that was built cannot be read: {error}") from error
    return call


def load_built(request: BuildRequest, opened: CudaDevice) -> GpuCall | None:
    """Load the call that was built for an earlier process; None if there is none."""
    cache = get_default_cache()
    content = None if cache is None else cache.read(request.make_key(opened))
    if content is None:
        return None
    try:
        return read_call(content, opened)
    except BuildError as error:
        logger.debug("%s", error)
        return None


class Builder:
    """The process that builds: started for a request, and ended when none waits."""

    def __init__(self) -> None:
        self._turn, self._counting = Lock(), Lock()
        self._worker: Worker | None = None
        self._n_requests = 0

    @property
    def is_busy(self) -> bool:
        """Whether so many requests wait that another one should not."""
        return self._n_requests > MAX_WAITING

    def build(self, request: BuildRequest, opened: CudaDevice) -> GpuCall:
        """Let the process build a call, which it also stores on disk.

        Raises:
            BuildError: if the process fails, or takes longer than :data:`LIMIT_S`.
        """
        with self._counted(), self._turn:
            answer = self._ask(json.dumps(asdict(request)))
        if "failure" in answer:
            raise BuildError(answer["failure"])
        return read_call(b64decode(answer["call"]), opened)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._counting:
            self._n_requests += 1
        try:
            yield
        finally:
            with self._counting:
                self._n_requests -= 1

    def _ask(self, line: str) -> dict[str, str]:
        from feinsum.processes import Worker, WorkerError, make_python_command

        answer: dict[str, str] = {}
        try:
            if self._worker is None:
                self._worker = Worker(make_python_command(MODULE))
            answer = json.loads(self._worker.request(line, LIMIT_S))
            return answer
        except OSError as error:
            raise BuildError(f"no process that builds starts: {error}") from error
        except WorkerError as error:
            raise BuildError(f"the process that builds {error}") from None
        finally:
            # its memory is for the caller; after a failure the GPU may be lost to it
            is_last = self._n_requests == 1
            if self._worker is not None and (is_last or "call" not in answer):
                self._worker.close()
                self._worker = None


if hasattr(os, "register_at_fork"):
    # a forked child has neither the threads that hold the locks nor the process
    os.register_at_fork(after_in_child=lambda: forget(Builder))


def build_elsewhere(request: BuildRequest, opened: CudaDevice) -> GpuCall:
    """Build a call in another process; see :meth:`Builder.build`."""
    return get_remembered(Builder).build(request, opened)


def _open_slot(slot: str) -> CudaDevice:
    for facts in find_driver().gpus():
        if facts.slot == slot:
            return CUDA.open_ordinal(facts.ordinal)
    raise DeviceUnavailableError(f"the process that builds has no GPU at {slot}")


def answer_request(line: str) -> str:
    """Build the call of a request, unless another process has stored it by now."""
    try:
        raw = json.loads(line)
        raw["forms"] = tuple(
            (tuple(shape), tuple(strides), dtype, is_aligned)
            for shape, strides, dtype, is_aligned in raw["forms"]
        )
        request = BuildRequest(**{**raw, "first": tuple(raw["first"])})
        opened, cache = _open_slot(request.slot), get_default_cache()
        with _hold_turn(cache):
            content = _build_content(request, opened, cache)
        return json.dumps({"call": b64encode(content).decode()})
    except Exception as error:  # noqa: BLE001  (the calling process reports it)
        return json.dumps({"failure": f"{type(error).__name__}: {error}"})


def _hold_turn(cache: DiskCache | None) -> Any:
    """Return a context in which no other process times anything on a GPU."""
    return (
        nullcontext() if cache is None else hold_file_lock(cache.folder, LOCK, LIMIT_S)
    )


def _build_content(
    request: BuildRequest, opened: CudaDevice, cache: DiskCache | None
) -> bytes:
    from feinsum.calling.gpu.building import build  # loads Loopy

    key = request.make_key(opened)
    stored = None if cache is None else cache.read(key)
    if stored is not None:
        return stored
    session = opened.session
    with session.active():
        arrays = request.make_arrays(opened)
        options = LookupOptions(request.database)
        site = Site(arrays, session.current_stream(), opened, options)
        parsed = parse_arrays(request.subscripts, arrays, request.first)
        content = write_call(build(parsed, site))
    if cache is not None:
        # stored by this process, since the calling one may have ended
        cache.write(key, content)
    return content


def _main() -> None:
    from feinsum.processes import Channel

    # the user's program goes on meanwhile, and comes first
    os.nice(PRIORITY)
    channel = Channel()
    channel.end_with_parent()
    for line in channel.requests():
        channel.answer(answer_request(line))


if __name__ == "__main__":
    _main()
