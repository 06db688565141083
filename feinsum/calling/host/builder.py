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
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.calling.options import CallOptions
from feinsum.calling.place import name_of, place_of
from feinsum.calling.reading.forms import Form
from feinsum.errors import BuildError
from feinsum.threads import n_threads

if TYPE_CHECKING:
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.calling.reading import Reading

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
            :func:`feinsum.calling.reading.dtypes.first_uses`.
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
        forms: Sequence[Form],
        first: Sequence[int],
        database: str | os.PathLike[str] | None,
    ) -> BuildRequest | None:
        """None for operands that the process cannot make, or only with much memory."""
        n_bytes = sum(prod(form.shape) * form.dtype.itemsize for form in forms)
        if n_bytes > MAX_BYTES or not all(form.is_aligned for form in forms):
            return None
        return cls(
            subscripts,
            tuple((form.shape, form.strides, form.dtype.str) for form in forms),
            tuple(first),
            None if database is None else os.fspath(database),
        )

    @property
    def reading(self) -> Reading:
        """The call as an einsum."""
        from feinsum.calling.reading import read_shapes

        given = [(tuple(shape), np.dtype(dtype)) for shape, _, dtype in self.forms]
        return read_shapes(self.subscripts, given, self.first)

    def operands(self) -> list[Any]:
        """Arrays that lie like those of the call."""
        return [_array(*form) for form in self.forms]


def _array(shape: Sequence[int], strides: Sequence[int], dtype: str) -> Any:
    ends = [step * (n - 1) for step, n in zip(strides, shape, strict=True)]
    first = -sum(min(end, 0) for end in ends)
    size = first + sum(max(end, 0) for end in ends) + np.dtype(dtype).itemsize
    memory = np.zeros(size, np.uint8)
    array: Any = np.ndarray(tuple(shape), dtype, memory.data, first, tuple(strides))
    array[...] = 1
    return array


def built_before(request: BuildRequest) -> PreparedCall | None:
    """The call with a kernel built for an earlier process; None without one."""
    from feinsum.cache import default_cache

    kept = default_cache()
    answer = None if kept is None else kept.read(_key(request))
    try:
        return _loaded(request.reading, json.loads(answer)) if answer else None
    except (KeyError, TypeError, ValueError):  # a damaged entry
        return None


def _key(request: BuildRequest) -> str:
    """Of what a kernel depends on here, by what takes no imports to find out.

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


@cache
def _processor() -> str:
    """What the system says of the first processor, without what changes."""
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
    return _loaded(request.reading, answer)


def _loaded(reading: Reading, answer: dict[str, Any]) -> PreparedCall:
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.calling.reading.arguments import packed
    from feinsum.targets.host.kernel import HostKernel

    kernel = HostKernel.loaded(
        b64decode(answer["content"]),
        tuple((n, None if d is None else np.dtype(d)) for n, d in answer["arguments"]),
    )
    call = kernel.caller(answer["names"], answer["constants"])

    def run(arrays: Sequence[Any], out: Any = None) -> Any:
        call((*arrays, out))
        return out

    dtype = reading.work_dtype
    takes = tuple(
        (
            position,
            None if shape is None else partial(packed, shape=tuple(shape), dtype=dtype),
        )
        for position, shape in answer["takes"]
    )
    return PreparedCall(reading, None, CallOptions(None), takes, run)


def _answer(request: BuildRequest) -> dict[str, Any]:
    """The best kernel of a call; empty if it is none."""
    from feinsum.calling.host.building import build_call
    from feinsum.measure import open_device

    arrays, reading = request.operands(), request.reading
    options = CallOptions(request.database, effort="amortized")
    where = (
        place_of(arrays, None),
        name_of(options.database),
        options.policy,
        options.on_miss,
        options.effort,
    )
    forms = [Form(x.shape, x.strides, x.dtype, x.flags.aligned) for x in arrays]
    call = build_call(reading, arrays, forms, None, where, options, N_RIVALS)
    if call.kernel is None or not call.kernel.compiled.built.n_launches:
        return {}
    opened: Any = open_device("host")
    code = opened.generate(opened.prepare(call.kernel.t_unit))
    (output,) = {name for name, dtype in code.arguments if dtype is None} - {
        *call.names
    }
    shapes = {feed.position: feed.shape for feed in reading.feeds}
    return {
        "content": b64encode(code.compiled_once()).decode(),
        "arguments": [(n, None if d is None else d.str) for n, d in code.arguments],
        "names": [*call.names, output],
        "constants": {name: int(value) for name, value in call.constants.items()},
        "takes": [
            (position, None if take is None else shapes[position])
            for position, take in call.takes
        ],
    }


def _main() -> None:
    from feinsum.cache import default_cache, locked
    from feinsum.processes import Channel

    os.nice(PRIORITY)
    channel = Channel()
    request = BuildRequest(**json.loads(next(channel.requests())))
    kept = default_cache()
    try:
        with nullcontext() if kept is None else locked(kept.folder, LOCK, LIMIT_S):
            answer = _answer(request)
        if answer and kept is not None:
            # here, since the calling process may have ended
            kept.write(_key(request), json.dumps(answer).encode())
    except Exception as error:  # noqa: BLE001  (the calling process tells it)
        answer = {"failure": f"{type(error).__name__}: {error}"}
    channel.answer(json.dumps(answer))


if __name__ == "__main__":
    _main()
