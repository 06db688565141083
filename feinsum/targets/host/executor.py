"""Executors of Loopy that run kernels of the host target on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock
from types import SimpleNamespace
from typing import Any

import loopy as lp
import numpy as np
from loopy.schedule.tools import get_kernel_arg_info
from loopy.symbolic import DependencyMapper, WalkMapper
from loopy.target.c.c_execution import CExecutionWrapperGenerator
from loopy.target.execution import ExecutorBase
from pymbolic import primitives as p
from pytools import memoize_method

from feinsum.errors import MeasurementError
from feinsum.targets.host.code import StandaloneCTarget
from feinsum.targets.host.kernel import HostCode, HostKernel
from feinsum.targets.quiet import quicker
from feinsum.targets.units import CodeShelf, HostProgram, with_code, with_program
from feinsum.words import with_article


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
        """Run the kernel and return its outputs, as Loopy's options say.

        Returns:
            None in place of an event, and the outputs.

        Raises:
            MeasurementError: if an argument is not an array, or if an output is
                read-only.
        """
        self.check_for_required_array_arguments(arguments.keys())
        if self.packing_controller is not None:
            arguments = self.packing_controller(arguments)
        for name in self._arrays & arguments.keys():
            if arguments[name] is not None:  # Loopy reports missing arguments
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
        """Compile the kernel for arguments of these dtypes; the name is Loopy's.

        Raises:
            DeviceUnavailableError: if there is no compiler.
            BuildError: if compilation fails.
        """
        code = self.generated(arg_to_dtype)
        return HostInfo(code, HostKernel.of(code))

    @memoize_method  # type: ignore[untyped-decorator]
    def generated(self, arg_to_dtype: Any = None) -> HostCode:
        """Return the code; subclasses may take it from elsewhere."""
        return self.generate(arg_to_dtype)

    def generate(self, arg_to_dtype: Any = None) -> HostCode:
        """Generate the code with Loopy."""
        with quicker():
            return self._generated(arg_to_dtype)

    def _generated(self, arg_to_dtype: Any) -> HostCode:
        unit = self.get_typed_and_scheduled_translation_unit(arg_to_dtype)
        code = lp.generate_code_v2(unit)
        kernel = unit[self.entrypoint]
        program = code.host_programs[self.entrypoint]
        is_alone = isinstance(unit.target, StandaloneCTarget)
        linkage = "static " if is_alone else _EXPORT
        source = f"{code.device_code()}\n\n{linkage}{program.ast}\n"
        invoker = self.get_invoker(unit, self.entrypoint, code)
        n_launches = len(code.device_programs)
        return HostCode(
            source,
            n_launches,
            _has_vectors(unit),
            _has_integers(unit),
            _has_conditional_reads(unit),
            _list_arguments(kernel),
            invoker,
        )

    def get_invoker_uncached(self, unit: Any, entrypoint: str, code: Any) -> Any:
        return CExecutionWrapperGenerator()(unit, entrypoint, code)


def _check_array(name: str, value: Any, *, is_written: bool) -> None:
    """Refuse read-only outputs, which Loopy does not check: a write may crash."""
    if not isinstance(value, np.ndarray):
        kind = type(value).__name__
        raise MeasurementError(
            f"{name!r} is {with_article(kind)}; expected a numpy array"
        )
    if is_written and not value.flags.writeable:
        raise MeasurementError(f"the kernel writes {name!r}, which is read-only")


@with_code.register
def _(usual: HostExecutor, shelf: CodeShelf) -> HostExecutor:
    return _CodedExecutor(usual.t_unit, usual.entrypoint, shelf)


@with_program.register
def _(usual: HostExecutor, program: HostProgram) -> HostExecutor:
    return _ProgramExecutor(usual.t_unit, usual.entrypoint, program)


class _CodedExecutor(HostExecutor):
    """An executor with code from a shelf, if the dtypes of all arguments are known."""

    def __init__(self, t_unit: Any, entrypoint: str, shelf: CodeShelf) -> None:
        super().__init__(t_unit, entrypoint)
        self.shelf = shelf

    def generated(self, arg_to_dtype: Any = None) -> HostCode:
        options = self.t_unit[self.entrypoint].options
        wants_to_see = options.write_code or options.edit_code or options.write_wrapper
        if arg_to_dtype or wants_to_see:
            return self.generate(arg_to_dtype)
        code = self.shelf.code()
        if not isinstance(code, HostCode):  # none, or code of another target
            code = self.generate()
            self.shelf.put_code(code)
        return code


class _ProgramExecutor(HostExecutor):
    """An executor with a program in place of a kernel, without a compilation."""

    def __init__(self, t_unit: Any, entrypoint: str, program: HostProgram) -> None:
        super().__init__(t_unit, entrypoint)
        self.program = program

    @memoize_method  # type: ignore[untyped-decorator]
    def translation_unit_info(self, _arg_to_dtype: Any = None) -> HostInfo:
        programs = {self.entrypoint: SimpleNamespace(name="")}
        code = SimpleNamespace(host_programs=programs)
        invoker = self.get_invoker_uncached(self.t_unit, self.entrypoint, code)
        arguments = _list_arguments(self.t_unit[self.entrypoint])
        kernel = ProgramKernel(self.program, arguments)
        return HostInfo(
            HostCode("", 0, False, False, False, arguments, invoker), kernel
        )


@dataclass(frozen=True, eq=False)
class ProgramKernel:
    """Runs a program on the arguments of a call, as :class:`HostKernel` runs code.

    Attributes:
        program: the program.
        arguments: name of each argument, and the dtype of scalars.
        scratch: memory that runs share.
        lock: protects the scratch memory.
    """

    program: HostProgram
    arguments: tuple[tuple[str, np.dtype[Any] | None], ...]
    scratch: dict[Any, Any] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)

    def __call__(self, *values: Any) -> None:
        """Run on values in the order of the arguments."""
        names = [name for name, _ in self.arguments]
        self._run(self._convert_values(dict(zip(names, values, strict=True))))

    def launch_of(self, values: Mapping[str, Any]) -> SimpleNamespace:
        """Prepare a call, its ``run``, that can be made any number of times."""
        return SimpleNamespace(run=partial(self._run, self._convert_values(values)))

    def caller(
        self, names: Sequence[str], constants: Mapping[str, Any]
    ) -> Callable[[Sequence[Any]], None]:
        """Return a function of the arrays ``names``.

        Args:
            names: names of the arrays, in the order of the function's arguments.
            constants: the scalars by name.
        """
        scalars = self._convert_values(constants)

        def call(arrays: Sequence[Any]) -> None:
            self._run({**scalars, **dict(zip(names, arrays, strict=True))})

        return call

    def _run(self, values: Mapping[str, Any]) -> None:
        with self.lock:
            self.program.run(values, self.scratch)

    def _convert_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Select the arguments among values, and convert scalars to their dtypes."""
        return {
            name: values[name] if dtype is None else dtype.type(values[name])
            for name, dtype in self.arguments
            if name in values
        }


@dataclass(frozen=True)
class HostInfo:
    """The code of a kernel, and the kernel built from it."""

    code: HostCode
    kernel: HostKernel | ProgramKernel


# -fvisibility=hidden hides all other symbols from dlsym
_EXPORT = '__attribute__((visibility("default")))\n'


def _list_arguments(kernel: Any) -> tuple[tuple[str, np.dtype[Any] | None], ...]:
    return tuple(
        (
            name,
            kernel.arg_dict[name].dtype.numpy_dtype
            if isinstance(kernel.arg_dict[name], lp.ValueArg)
            else None,
        )
        for name in get_kernel_arg_info(kernel).passed_arg_names
    )


def _list_kernels(unit: Any) -> list[lp.LoopKernel]:
    callables = unit.callables_table.values()
    return [c.subkernel for c in callables if isinstance(c, lp.CallableKernel)]


def _has_vectors(unit: Any) -> bool:
    return any(
        isinstance(tag, lp.kernel.data.VectorizeTag)
        for kernel in _list_kernels(unit)
        for iname in kernel.inames.values()
        for tag in iname.tags
    )


def _has_integers(unit: Any) -> bool:
    """Return whether an array has integers, or an unknown dtype."""
    return any(
        # an unknown dtype counts as an integer, because -fwrapv is correct for all
        array.dtype is None or array.dtype.numpy_dtype.kind in "iu"
        for kernel in _list_kernels(unit)
        for array in (*kernel.args, *kernel.temporary_variables.values())
        if not isinstance(array, lp.ValueArg)
    )


def _has_conditional_reads(unit: Any) -> bool:
    """Return whether a condition decides which entries of arrays are read."""
    finder = _ConditionFinder()
    for kernel in _list_kernels(unit):
        for insn in kernel.instructions:
            finder(getattr(insn, "expression", 0))
    return finder.has_found


class _ConditionFinder(WalkMapper):  # type: ignore[misc]
    """Finds branches that read entries which their condition does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.has_found = False

    def map_if(self, expr: p.If, /) -> None:
        branches = _find_subscripts(expr.then) | _find_subscripts(expr.else_)
        # the condition loads its entries in any case, so their loads need no mask
        self.has_found |= not branches <= _find_subscripts(expr.condition)
        super().map_if(expr)


def _find_subscripts(expression: Any) -> frozenset[Any]:
    leaves = DependencyMapper(composite_leaves=True)(expression)
    return frozenset(leaf for leaf in leaves if isinstance(leaf, p.Subscript))
