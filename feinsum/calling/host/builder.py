"""A process that builds the kernel of a call, while the calls go on undisturbed.

To import Loopy and to generate code takes seconds in which a thread of the calling
process would hold the interpreter again and again. So ``python -m`` of this module gets
what a call is made of, as JSON, builds the best kernel with the recipes that may be
faster, and answers with the shared object and how it is called. The calling process
loads no code generator. One process of a user builds at a time. See
:mod:`feinsum.processes`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from feinsum.calling.host.general import CallKey
from feinsum.calling.kernel_cache import LookupOptions, device_key, has_address
from feinsum.calling.operands import ArrayForm, form_of
from feinsum.errors import BuildError
from feinsum.threads import n_threads

if TYPE_CHECKING:
    from feinsum.calling.einsum_call import EinsumCall
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.db import Database

N_RIVALS = 2
"""Recipes, next to the one that is predicted to be the fastest, that are timed."""
LIMIT_S = 300.0
"""Seconds after which a build is stopped."""
PRIORITY = 10
"""How much the process gives way to others."""
LOCK = "builder"
MAX_BYTES = 1 << 30
"""Maximum bytes of the operands, which the process makes once more."""


@dataclass(frozen=True)
class BuildRequest:
    """A call without options: what a kernel depends on, without the entries of arrays.

    Attributes:
        forms: the shape, the strides and the dtype of each operand.
        first: the first use of each; see
            :func:`feinsum.calling.operands.first_uses`.
        database: its address; None for the user's own.
    """

    subscripts: str
    forms: tuple[tuple[tuple[int, ...], tuple[int, ...], str], ...]
    first: tuple[int, ...]
    database: str | None

    @classmethod
    def of(
        cls,
        subscripts: str,
        forms: Sequence[ArrayForm],
        first: Sequence[int],
        database: Database,
    ) -> BuildRequest | None:
        """None for a store of this process, and for operands that the other process
        cannot make, or only with much memory.
        """
        if not has_address(database):
            return None
        n_bytes = sum(prod(form.shape) * form.dtype.itemsize for form in forms)
        if n_bytes > MAX_BYTES or not all(form.is_aligned for form in forms):
            return None
        return cls(
            subscripts,
            tuple((form.shape, form.strides, form.dtype.str) for form in forms),
            tuple(first),
            None if database is None else os.fspath(cast(str, database)),
        )

    @property
    def parsed(self) -> EinsumCall:
        """The call as an einsum."""
        from feinsum.calling.einsum_call import parse_call

        operands = [(tuple(shape), np.dtype(dtype)) for shape, _, dtype in self.forms]
        return parse_call(self.subscripts, operands, self.first)

    def operands(self) -> list[Any]:
        """Make arrays with the memory layouts of those of the call."""
        # only their layout matters: kernels do not depend on values
        return [_array(*form) for form in self.forms]


def _array(shape: Sequence[int], strides: Sequence[int], dtype: str) -> Any:
    ends = [step * (n - 1) for step, n in zip(strides, shape, strict=True)]
    first = -sum(min(end, 0) for end in ends)
    size = first + sum(max(end, 0) for end in ends) + np.dtype(dtype).itemsize
    memory = np.zeros(size, np.uint8)
    array: Any = np.ndarray(tuple(shape), dtype, memory.data, first, tuple(strides))
    # ones: no denormal numbers, which would slow down what is timed
    array[...] = 1
    return array


def built_before(request: BuildRequest) -> PreparedCall | None:
    """Return the call with a kernel built for an earlier process; None without one."""
    from feinsum.cache import default_cache

    cache = default_cache()
    answer = None if cache is None else cache.read(_key(request))
    try:
        return _loaded(request.parsed, json.loads(answer)) if answer else None
    except (KeyError, TypeError, ValueError):  # a damaged entry
        return None


def _key(request: BuildRequest) -> str:
    """Return a key of what a kernel depends on, computed without further imports.

    An installation is told by the time of this file, which is new with each.
    """
    parts = (
        "built call",
        f"{Path(__file__).stat().st_mtime_ns} {np.__version__} {n_threads()}",
        *(os.environ.get(name, "") for name in ("FEINSUM_CC", "CC")),
        _processor(),
        json.dumps(asdict(request)),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(1)
def _processor() -> str:
    """Return the description of the first processor, without its frequency."""
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return platform.machine()
    return "\n".join(line for line in text.split("\n") if "MHz" not in line)


def build_elsewhere(request: BuildRequest) -> PreparedCall | None:
    """The call with a kernel that another process builds, and that is kept on disk.

    Returns:
        None if the best recipe calls a library, or there is none.

    Raises:
        BuildError: if the process fails, or takes longer than :data:`LIMIT_S`.
    """
    from feinsum.processes import Worker, WorkerError, python_command

    try:
        with Worker(python_command("feinsum.calling.host.builder")) as worker:
            answer = json.loads(worker.request(json.dumps(asdict(request)), LIMIT_S))
    except OSError as error:
        raise BuildError(f"no process that builds kernels starts: {error}") from error
    except WorkerError as error:
        raise BuildError(f"the process that builds kernels {error}") from None
    if "failure" in answer:
        raise BuildError(answer["failure"])
    if not answer:
        return None
    return _loaded(request.parsed, answer)


def _loaded(parsed: EinsumCall, answer: dict[str, Any]) -> PreparedCall:
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.calling.layouts import packed
    from feinsum.targets.host.kernel import HostKernel, start_pool

    # with the builder's threads: a pool of our own would need the compiler
    start_pool(b64decode(answer["pool"]))
    kernel = HostKernel.loaded(
        b64decode(answer["content"]),
        tuple((n, None if d is None else np.dtype(d)) for n, d in answer["arguments"]),
    )
    call = kernel.caller(answer["names"], answer["constants"])

    def run(arrays: Sequence[Any], out: Any = None) -> Any:
        call((*arrays, out))
        return out

    dtype = parsed.work_dtype
    inputs = tuple(
        (
            position,
            None if shape is None else partial(packed, shape=tuple(shape), dtype=dtype),
        )
        for position, shape in answer["takes"]
    )
    return PreparedCall(parsed, None, inputs, run)


def _answer(request: BuildRequest) -> dict[str, Any]:
    """Return the best kernel of a call; empty if it is none."""
    parsed = request.parsed  # refuses a wrong request before Loopy is loaded
    from feinsum.calling.host.building import build_call
    from feinsum.measure import open_device
    from feinsum.targets.host.kernel import pool

    arrays = request.operands()
    key = CallKey(
        request.subscripts,
        tuple(map(form_of, arrays)),
        None,
        tuple(request.first),
        device_key(arrays, None),
        LookupOptions(request.database),
    )
    call = build_call(parsed, key, arrays, N_RIVALS)
    if call.kernel is None or not call.kernel.compiled.built.n_launches:
        return {}
    opened: Any = open_device("host")
    code = opened.generate(opened.prepare(call.kernel.t_unit))
    (output,) = {name for name, dtype in code.arguments if dtype is None} - {
        *call.names
    }
    shapes = {x.position: x.shape for x in parsed.arguments}
    return {
        "content": b64encode(code.compiled_once()).decode(),
        "pool": b64encode(pool().content).decode(),
        "arguments": [(n, None if d is None else d.str) for n, d in code.arguments],
        "names": [*call.names, output],
        "constants": {name: int(value) for name, value in call.constants.items()},
        "takes": [
            (position, None if copy is None else shapes[position])
            for position, copy in call.inputs
        ],
    }


def _main() -> None:
    from feinsum.cache import default_cache, locked
    from feinsum.processes import Channel

    # the calls of the user go on meanwhile
    os.nice(PRIORITY)
    channel = Channel()
    request = BuildRequest(**json.loads(next(channel.requests())))
    cache = default_cache()
    try:
        with nullcontext() if cache is None else locked(cache.folder, LOCK, LIMIT_S):
            answer = _answer(request)
        if answer and cache is not None:
            # here, since the calling process may have ended
            cache.write(_key(request), json.dumps(answer).encode())
    except Exception as error:  # noqa: BLE001  (the calling process tells it)
        answer = {"failure": f"{type(error).__name__}: {error}"}
    channel.answer(json.dumps(answer))


if __name__ == "__main__":
    _main()
