"""A process that builds the kernel of a call, while the calls go on undisturbed.

Importing Loopy and generating code takes seconds, in which a thread of the calling
process would keep taking the interpreter's lock. So another process, ``python -m`` of
this module, builds the kernel; the calling process loads no code generator::

    calling process    --- BuildRequest: subscripts, forms, database --->    builder
                       <--- shared object, names and order of arguments ---

The builder times the best predicted recipe against its rivals. Each user runs one
builder at a time. See :mod:`feinsum.processes`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from feinsum.calling.kernel_cache import (
    CallKey,
    LookupOptions,
    has_address,
    make_device_key,
)
from feinsum.calling.operands import ArrayForm, get_form
from feinsum.errors import BuildError
from feinsum.threads import get_n_threads

if TYPE_CHECKING:
    from feinsum.calling.einsum_call import EinsumCall
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.calling.structure import CallStructure
    from feinsum.db import Database
    from feinsum.targets.host.kernel import HostKernel

N_RIVALS = 2
"""Recipes that are timed besides the one that is predicted to be the fastest."""
LIMIT_S = 300.0
"""Seconds after which a build is stopped."""
PRIORITY = 10
"""Increment of the niceness of the process."""
LOCK = "builder"
MAX_FACTOR = 1 << 20
"""Factor by which sizes may grow beyond those for which a kernel was built."""
MAX_BYTES = 1 << 30
"""Maximum bytes of the operands, of which the process makes a second set."""


@dataclass(frozen=True)
class BuildRequest:
    """A call without options: all that its kernel depends on, without array entries.

    Attributes:
        forms: shape, strides and dtype of each operand.
        first: for each operand, the position of its first use; see
            :func:`feinsum.calling.operands.find_first_uses`.
        database: address of the database; None for the user's own.
        varying: indices whose extents are run-time data although they are short; see
            :class:`feinsum.calling.einsum_call.EinsumCall`.
    """

    subscripts: str
    forms: tuple[tuple[tuple[int, ...], tuple[int, ...], str], ...]
    first: tuple[int, ...]
    database: str | None
    varying: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        subscripts: str,
        forms: Sequence[ArrayForm],
        first: Sequence[int],
        database: Database,
    ) -> BuildRequest | None:
        """Build the request for a call; None if no other process can build its kernel.

        Another process cannot use a store of this process. It cannot make unaligned
        operands, and should not make large ones.
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

    @cached_property
    def parsed(self) -> EinsumCall:
        """The call as an einsum."""
        from feinsum.calling.einsum_call import parse_call

        operands = [(tuple(shape), np.dtype(dtype)) for shape, _, dtype in self.forms]
        return parse_call(self.subscripts, operands, self.first, self.varying)

    @cached_property
    def structure(self) -> CallStructure:
        """The structure of the call, equal for all calls that share its kernel."""
        from feinsum.calling.structure import CallStructure

        forms = tuple(
            ArrayForm(tuple(shape), tuple(strides), np.dtype(dtype), True)
            for shape, strides, dtype in self.forms
        )
        return CallStructure(self.parsed, forms)

    @cached_property
    def key(self) -> str:
        """The key of its structure in the cache on disk."""
        texts = (
            "built call",
            f"{_get_installation()} {np.__version__} {get_n_threads()}",
            *(os.environ.get(name, "") for name in ("FEINSUM_CC", "CC")),
            _describe_processor(),
            str(self.database),
            self.structure.text,
        )
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()

    def operands(self) -> list[Any]:
        """Make arrays with the memory layouts of the call's operands."""
        from feinsum.result_memory import make_strided

        arrays = [make_strided(n, s, np.dtype(dtype)) for n, s, dtype in self.forms]
        # kernels depend on no value, but denormal numbers would slow them down
        for array in arrays:
            array[...] = 1
        return arrays


@dataclass(frozen=True, eq=False)
class BuiltKernel:
    """A kernel that another process has built, for all calls of one structure.

    Attributes:
        names: names of the arrays that it gets.
        scalars: for each size and stride that it gets, by name, the name in the
            structure.
        is_normal: whether these are names of the normalized call.
        takes: for each array but the result, the position of an operand, and whether
            the operand is copied.
        recipe: its recipe, in words.
        limits: maximum sizes, by their names in the structure, at which its
            intermediates fit into memory; empty if they always do.
    """

    kernel: HostKernel
    names: Sequence[str]
    scalars: Mapping[str, str]
    is_normal: bool
    takes: Sequence[tuple[int, bool]]
    recipe: str
    limits: Mapping[str, int]

    @classmethod
    def load(cls, answer: dict[str, Any]) -> BuiltKernel:
        """Load the kernel of an answer.

        Raises:
            KeyError, TypeError, ValueError: if the answer is damaged.
        """
        from feinsum.targets.host.compiler import load_content
        from feinsum.targets.host.kernel import HostKernel, start_pool

        # the builder's pool of threads: compiling one here would need a compiler
        start_pool(b64decode(answer["pool"]))
        arguments = [
            (n, None if d is None else np.dtype(d)) for n, d in answer["arguments"]
        ]
        library = load_content(b64decode(answer["content"]))
        kernel = HostKernel(library, tuple(arguments))
        names = "names", "scalars", "is_normal", "takes", "recipe", "limits"
        return cls(kernel, *(answer[name] for name in names))

    def call(self, structure: CallStructure) -> PreparedCall | None:
        """Prepare a call of the structure with the kernel; None beyond its limits."""
        from feinsum.calling.host.prepared import PreparedCall
        from feinsum.calling.structure import pack_array

        values = structure.get_call(is_normal=self.is_normal).constants
        if any(values[name] > limit for name, limit in self.limits.items()):
            return None
        constants = {
            name: values[structure_name]
            for name, structure_name in self.scalars.items()
        }
        caller = self.kernel.caller(self.names, constants)

        def run(arrays: Sequence[Any], out: Any = None) -> Any:
            caller((*arrays, out))
            return out

        parsed = structure.parsed
        shapes = {x.position: x.shape for x in parsed.arguments}
        inputs = tuple(
            (
                k,
                partial(pack_array, shape=shapes[k], dtype=parsed.work_dtype)
                if is_copied
                else None,
            )
            for k, is_copied in self.takes
        )
        return PreparedCall(parsed, None, inputs, run, built_recipe=self.recipe)


def load_built(request: BuildRequest) -> BuiltKernel | None:
    """Load the kernel that was built for an earlier process; None if there is none."""
    try:
        answer = _read_answer(request)
        return BuiltKernel.load(answer) if answer else None
    except (KeyError, TypeError, ValueError):  # a damaged entry
        return None


def find_built_recipe(request: BuildRequest) -> str:
    """Find the recipe of the kernel that :func:`load_built` loads; empty for none."""
    try:
        return str(_read_answer(request).get("recipe", ""))
    except (AttributeError, ValueError):  # a damaged entry
        return ""


def _read_answer(request: BuildRequest) -> dict[str, Any]:
    from feinsum.cache import get_default_cache

    cache = get_default_cache()
    answer = None if cache is None else cache.read(request.key)
    return json.loads(answer) if answer else {}


@lru_cache(1)
def _get_installation() -> int:
    """Return the modification time of this file, which identifies the installation."""
    return Path(__file__).stat().st_mtime_ns


@lru_cache(1)
def _describe_processor() -> str:
    """Return the system's description of the first processor, without its frequency."""
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return platform.machine()
    return "\n".join(line for line in text.split("\n") if "MHz" not in line)


def build_elsewhere(request: BuildRequest) -> BuiltKernel | None:
    """Build the kernel of a call in another process, which also stores it on disk.

    Returns:
        The kernel; None if there is no recipe, or the best one calls a library.

    Raises:
        BuildError: if the process fails, or takes longer than :data:`LIMIT_S`.
    """
    from feinsum.processes import Worker, WorkerError, make_python_command

    try:
        with Worker(make_python_command("feinsum.calling.host.builder")) as worker:
            answer = json.loads(worker.request(json.dumps(asdict(request)), LIMIT_S))
    except OSError as error:
        raise BuildError(f"no process that builds kernels starts: {error}") from error
    except WorkerError as error:
        raise BuildError(f"the process that builds kernels {error}") from None
    if "failure" in answer:
        raise BuildError(answer["failure"])
    if not answer:
        return None
    return BuiltKernel.load(answer)


def _build_answer(request: BuildRequest) -> dict[str, Any]:
    """Build the best kernel of a call; the answer is empty if there is none."""
    parsed = request.parsed  # raises errors of the request before Loopy is loaded
    from feinsum.calling.host.building import build_call
    from feinsum.measure import open_device
    from feinsum.targets.host.kernel import get_pool

    arrays = request.operands()
    key = CallKey(
        request.subscripts,
        tuple(map(get_form, arrays)),
        None,
        tuple(request.first),
        make_device_key(arrays, None),
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
    return {
        "content": b64encode(code.compiled_once()).decode(),
        "pool": b64encode(get_pool().content).decode(),
        "arguments": [(n, None if d is None else d.str) for n, d in code.arguments],
        "names": [*call.names, output],
        "scalars": dict(call.scalars),
        "is_normal": call.is_normal,
        "takes": [(position, copy is not None) for position, copy in call.inputs],
        "recipe": call.recipe,
        "limits": _compute_limits(request.structure, call),
    }


def _compute_limits(structure: CallStructure, call: PreparedCall) -> dict[str, int]:
    """Return the maximum sizes at which a kernel's intermediates fit into memory.

    The result is empty if they always do.
    """
    from feinsum.measure.intermediates import (
        count_temporary_bytes,
        get_intermediate_limit_bytes,
    )

    assert call.kernel is not None
    t_unit = call.kernel.t_unit
    laid_out = structure.get_call(is_normal=call.is_normal)
    parsed, values = laid_out.parsed, laid_out.constants

    def count_bytes(factor: int) -> int:
        larger = {**values, **{name: factor * n for name, n in parsed.sizes.items()}}
        scalars = {
            name: larger[structure_name]
            for name, structure_name in call.scalars.items()
        }
        return count_temporary_bytes(t_unit, scalars)

    limit = get_intermediate_limit_bytes(parsed.einsum, parsed.sizes)
    if not parsed.sizes or count_bytes(MAX_FACTOR) <= limit:
        return {}
    factor = 1
    while count_bytes(2 * factor) <= limit:
        factor *= 2
    return {name: factor * n for name, n in parsed.sizes.items()}


def _main() -> None:
    from feinsum.cache import get_default_cache, hold_file_lock
    from feinsum.processes import Channel

    # the user's program goes on meanwhile, and comes first
    os.nice(PRIORITY)
    channel = Channel()
    request = BuildRequest(**json.loads(next(channel.requests())))
    cache = get_default_cache()
    try:
        with (
            nullcontext()
            if cache is None
            else hold_file_lock(cache.folder, LOCK, LIMIT_S)
        ):
            answer = _build_answer(request)
        if answer and cache is not None:
            # stored by this process, since the calling one may have ended
            cache.write(request.key, json.dumps(answer).encode())
    except Exception as error:  # noqa: BLE001  (the calling process reports it)
        answer = {"failure": f"{type(error).__name__}: {error}"}
    channel.answer(json.dumps(answer))


if __name__ == "__main__":
    _main()
