"""Running kernels of the host target on arrays of numpy."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from threading import Lock
from types import SimpleNamespace
from typing import Any

import loopy as lp
import numpy as np
from loopy.schedule.tools import get_kernel_arg_info
from loopy.target.c.c_execution import CExecutionWrapperGenerator
from loopy.target.execution import ExecutorBase
from pytools import memoize_method

from feinsum.errors import MeasurementError
from feinsum.targets.host.code import ENTRY
from feinsum.targets.host.compiler import Compiler, find_compiler
from feinsum.targets.host.library import load
from feinsum.targets.host.threads import n_threads
from feinsum.targets.units import CodeShelf, HostProgram, with_code, with_program

__all__ = ["HostCode", "HostExecutor", "HostKernel", "Launch"]


@dataclass(frozen=True)
class HostCode:
    """What Loopy generates for a kernel.

    Attributes:
        source: for the C compiler.
        n_launches: how many regions of the pool one call is.
        has_vectors: whether its loops are vectors already.
        arguments: the name of each, in the order of the entry point; the dtype of
            those that are scalars.
        invoker: checks the arguments of a call, allocates results, and calls.
    """

    source: str
    n_launches: int
    has_vectors: bool
    arguments: tuple[tuple[str, np.dtype[Any] | None], ...]
    invoker: Callable[..., Any]


class HostExecutor(ExecutorBase):  # type: ignore[misc]
    """Loopy's executor of one entry point.

    >>> import loopy as lp
    >>> from feinsum.targets.host import HostCTarget
    >>> unit = lp.make_kernel("{[i]: 0<=i<n}", "y[i] = 2*x[i]", target=HostCTarget(),
    ...                       lang_version=(2018, 2))
    >>> unit.executor()(x=np.arange(3.0))[1]
    (array([0., 2., 4.]),)
    """

    def __call__(self, *_queue: Any, **arguments: Any) -> Any:
        """The outputs of the kernel, as Loopy's options say.

        Returns:
            None in the place of an event, and the outputs.

        Raises:
            MeasurementError: if an argument is no array, or one that is to be written
                is read-only.
        """
        self.check_for_required_array_arguments(arguments.keys())
        if self.packing_controller is not None:
            arguments = self.packing_controller(arguments)
        for name in self._arrays & arguments.keys():
            if arguments[name] is not None:  # that it is missing, Loopy says
                _check_array(name, arguments[name], is_written=name in self._written)
        info = self.translation_unit_info(self.arg_to_dtype(arguments))
        return info.code.invoker([info.kernel], **arguments)

    @cached_property
    def _arrays(self) -> frozenset[str]:
        arguments = self.t_unit[self.entrypoint].args
        return frozenset(a.name for a in arguments if isinstance(a, lp.ArrayArg))

    @cached_property
    def _written(self) -> frozenset[str]:
        return frozenset(self.t_unit[self.entrypoint].get_written_variables())

    @memoize_method  # type: ignore[untyped-decorator]
    def translation_unit_info(self, arg_to_dtype: Any = None) -> HostInfo:
        """The kernel for arguments of these dtypes, by Loopy's name for it.

        Raises:
            DeviceUnavailableError: if there is no compiler.
            BuildError: if it fails.
        """
        code = self.generated(arg_to_dtype)
        return HostInfo(code, HostKernel.of(code))

    def generated(self, arg_to_dtype: Any = None) -> HostCode:
        """The code, by Loopy."""
        unit = self.get_typed_and_scheduled_translation_unit(arg_to_dtype)
        code = lp.generate_code_v2(unit)
        kernel = unit[self.entrypoint]
        program = code.host_programs[self.entrypoint]
        source = f"{code.device_code()}\n\n{_EXPORT}{program.ast}\n"
        invoker = self.get_invoker(unit, self.entrypoint, code)
        n_launches = len(code.device_programs)
        return HostCode(
            source, n_launches, _has_vectors(unit), _arguments(kernel), invoker
        )

    def get_invoker_uncached(self, unit: Any, entrypoint: str, code: Any) -> Any:
        return CExecutionWrapperGenerator()(unit, entrypoint, code)


def _check_array(name: str, value: Any, *, is_written: bool) -> None:
    """Loopy checks the rest. To a read-only array the kernel would write, or crash."""
    if not isinstance(value, np.ndarray):
        kind = type(value).__name__
        raise MeasurementError(f"{name!r} is a {kind}; expected an array of numpy")
    if is_written and not value.flags.writeable:
        raise MeasurementError(f"the kernel writes {name!r}, which is read-only")


@with_code.register
def _(usual: HostExecutor, shelf: CodeShelf) -> HostExecutor:
    return _CodedExecutor(usual.t_unit, usual.entrypoint, shelf)


@with_program.register
def _(usual: HostExecutor, program: HostProgram) -> HostExecutor:
    return _ProgramExecutor(usual.t_unit, usual.entrypoint, program)


class _CodedExecutor(HostExecutor):
    """With code from a shelf, where the dtypes of all arguments are known."""

    def __init__(self, t_unit: Any, entrypoint: str, shelf: CodeShelf) -> None:
        super().__init__(t_unit, entrypoint)
        self.shelf = shelf

    def generated(self, arg_to_dtype: Any = None) -> HostCode:
        options = self.t_unit[self.entrypoint].options
        wants_to_see = options.write_code or options.edit_code or options.write_wrapper
        if arg_to_dtype or wants_to_see:
            return super().generated(arg_to_dtype)
        code = self.shelf.code()
        if not isinstance(code, HostCode):  # that of another target is none of ours
            code = super().generated()
            self.shelf.put_code(code)
        return code


class _ProgramExecutor(HostExecutor):
    """With a program in the place of a kernel: there is nothing to compile."""

    def __init__(self, t_unit: Any, entrypoint: str, program: HostProgram) -> None:
        super().__init__(t_unit, entrypoint)
        self.program = program

    @memoize_method  # type: ignore[untyped-decorator]
    def translation_unit_info(self, _arg_to_dtype: Any = None) -> HostInfo:
        programs = {self.entrypoint: SimpleNamespace(name="")}
        code = SimpleNamespace(host_programs=programs)
        invoker = self.get_invoker_uncached(self.t_unit, self.entrypoint, code)
        arguments = _arguments(self.t_unit[self.entrypoint])
        kernel = _ProgramKernel(self.program, arguments)
        return HostInfo(HostCode("", 0, False, arguments, invoker), kernel)


@dataclass(frozen=True, eq=False)
class _ProgramKernel:
    """Runs a program on the arguments of a call.

    Attributes:
        lock: runs share their scratch memory.
    """

    program: HostProgram
    arguments: tuple[tuple[str, np.dtype[Any] | None], ...]
    scratch: dict[Any, Any] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)

    def __call__(self, *values: Any) -> None:
        named = {
            name: value if dtype is None else dtype.type(value)
            for (name, dtype), value in zip(self.arguments, values, strict=True)
        }
        with self.lock:
            self.program.run(named, self.scratch)


@dataclass(frozen=True)
class HostInfo:
    """The code of a kernel, and the kernel that was built of it."""

    code: HostCode
    kernel: Callable[..., None]


_EXPORT = '__attribute__((visibility("default")))\n'


def _arguments(kernel: Any) -> tuple[tuple[str, np.dtype[Any] | None], ...]:
    return tuple(
        (
            name,
            kernel.arg_dict[name].dtype.numpy_dtype
            if isinstance(kernel.arg_dict[name], lp.ValueArg)
            else None,
        )
        for name in get_kernel_arg_info(kernel).passed_arg_names
    )


def _has_vectors(unit: Any) -> bool:
    return any(
        isinstance(tag, lp.kernel.data.VectorizeTag)
        for callable_ in unit.callables_table.values()
        if isinstance(callable_, lp.CallableKernel)
        for iname in callable_.subkernel.inames.values()
        for tag in iname.tags
    )


@dataclass(frozen=True, eq=False)
class HostKernel:
    """A kernel that is compiled and loaded.

    Attributes:
        arguments: see :class:`HostCode`.
    """

    library: ctypes.CDLL
    arguments: tuple[tuple[str, np.dtype[Any] | None], ...]

    @classmethod
    def of(cls, code: HostCode) -> HostKernel:
        """Compile and load.

        Raises:
            DeviceUnavailableError: if there is no compiler.
            BuildError: if it fails.
        """
        compiler = find_compiler()
        flags = compiler.flags_for(has_vectors=code.has_vectors)
        return cls(load(compiler, code.source, flags), code.arguments)

    @classmethod
    def compiled(
        cls,
        compiler: Compiler,
        source: str,
        flags: Sequence[str],
        arguments: tuple[tuple[str, np.dtype[Any] | None], ...],
    ) -> HostKernel:
        """Compile and load a source that has the entry point."""
        return cls(load(compiler, source, (*compiler.flags, *flags)), arguments)

    def __call__(self, *values: Any) -> None:
        """Run on values in the order of the arguments."""
        self.launch(values).run()

    def launch(self, values: Sequence[Any]) -> Launch:
        """A call that is ready to be made, any number of times.

        Args:
            values: arrays, from whose first entry the kernel counts, and scalars.
        """
        held: list[Any] = []
        slots = (ctypes.c_void_p * len(values))()
        for at, (value, (_, dtype)) in enumerate(
            zip(values, self.arguments, strict=True)
        ):
            array = value if dtype is None else np.array(value, dtype)
            held.append(array)
            slots[at] = array.ctypes.data
        return Launch(self._entry, slots, tuple(held), pool())

    def launch_of(self, values: Mapping[str, Any]) -> Launch:
        """The same for values by name."""
        return self.launch([values[name] for name, _ in self.arguments])

    def caller(
        self, names: Sequence[str], constants: Mapping[str, Any]
    ) -> Callable[[Sequence[Any]], None]:
        """A function of the arrays ``names``; it does as little as can be per call.

        Args:
            constants: the scalars by name.
        """
        scalars = {
            name: np.array(constants[name], dtype)
            for name, dtype in self.arguments
            if dtype is not None
        }
        order = [name for name, _ in self.arguments]
        places = [order.index(name) for name in names]
        slots = [scalars[n].ctypes.data if n in scalars else 0 for n in order]
        entry, shared, table = self._entry, pool(), ctypes.c_void_p * len(order)
        parallel, arena = shared.parallel, shared.arena

        def call(arrays: Sequence[Any], _held: Any = scalars) -> None:
            own = slots.copy()
            for place, array in zip(places, arrays, strict=True):
                own[place] = array.ctypes.data
            if entry(table(*own), parallel, arena):
                raise MeasurementError(NO_MEMORY)

        return call

    @property
    def _entry(self) -> Any:
        return getattr(self.library, ENTRY)


NO_MEMORY = "the kernel failed to run: there is no memory for its temporaries"


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with the memory that it works on.

    Attributes:
        slots: the address of each argument, which may be changed between runs.
        held: what the addresses belong to.
    """

    entry: Any
    slots: Any
    held: tuple[Any, ...]
    pool: Pool

    def run(self) -> None:
        """Run once and wait for the end.

        Raises:
            MeasurementError: if there is no memory for temporaries.
        """
        if self.entry(self.slots, self.pool.parallel, self.pool.arena):
            raise MeasurementError(NO_MEMORY)


@dataclass(frozen=True)
class Pool:
    """The threads of this process.

    Attributes:
        parallel, arena: functions that kernels call.
        threshold_s: how long a kernel runs before it is shared by threads.
    """

    library: ctypes.CDLL
    parallel: ctypes.c_void_p
    arena: ctypes.c_void_p
    n_threads: int
    threshold_s: float


_STARTING = Lock()
_POOLS: list[Pool] = []


def pool() -> Pool:
    """The pool, started when it is first asked for.

    Raises:
        DeviceUnavailableError, BuildError: if it cannot be compiled.
    """
    if _POOLS:
        return _POOLS[0]
    with _STARTING:
        if not _POOLS:
            _POOLS.append(_started())
    return _POOLS[0]


def _started() -> Pool:
    compiler, threads = find_compiler(), n_threads()
    source = files(__package__).joinpath("pool.c").read_text()
    library = load(compiler, source, (*compiler.flags, "-pthread"))
    library.feinsum_start.restype = ctypes.c_int64
    threshold_s = library.feinsum_start(threads) * 1e-9
    parallel, arena = (
        ctypes.cast(function, ctypes.c_void_p)
        for function in (library.feinsum_parallel, library.feinsum_arena)
    )
    return Pool(library, parallel, arena, threads, threshold_s)


if hasattr(os, "register_at_fork"):

    def _free_lock() -> None:
        """The thread that started the pool is not in the child."""
        global _STARTING
        _STARTING = Lock()

    os.register_at_fork(after_in_child=_free_lock)
