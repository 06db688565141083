"""Executors of OpenCL: Loopy's own, with cached code or with a program of the host.

Binaries are left to the caches of PoCL and pyopencl, whose keys are the code. A program
runs on memory that the host shares with a device. The code that Loopy generates checks
and allocates the arguments; in place of a kernel, a function of the host is called with
the arguments as numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from types import SimpleNamespace
from typing import Any, Self

import loopy as lp
import numpy as np
from loopy.schedule.tools import get_kernel_arg_info
from loopy.target.pyopencl_execution import (
    PyOpenCLExecutionWrapperGenerator,
    PyOpenCLExecutor,
)

from feinsum.targets.opencl.door import load_pyopencl
from feinsum.targets.protocol import Array
from feinsum.targets.units import CodeShelf, HostProgram, with_code, with_program

_GENERATING = Lock()
"""Protects Loopy's setting for its caches, which belongs to the whole process."""

_CPU = 1 << 1
"""``CL_DEVICE_TYPE_CPU``."""

_MACHINE = "_lpy_cl_kernels"
"""Name, in the generated code, of the object passed in place of the kernels."""


@dataclass(frozen=True)
class DeviceCode:
    """Code that Loopy generates for a kernel.

    Attributes:
        source: source in OpenCL C.
        build_options: options of the OpenCL compiler.
        invoker: checks the arguments of a call and launches the kernels.
    """

    source: str
    build_options: Any
    invoker: Callable[..., Any]


@with_code.register
def _(usual: PyOpenCLExecutor, shelf: CodeShelf) -> PyOpenCLExecutor:
    return _CodedExecutor(usual.context, usual.t_unit, usual.entrypoint, shelf)


@with_program.register
def _(usual: PyOpenCLExecutor, program: HostProgram) -> PyOpenCLExecutor:
    if not all(device.type & _CPU for device in usual.context.devices):
        return usual
    return _ProgramExecutor(usual.context, usual.t_unit, usual.entrypoint, program)


class _CodedExecutor(PyOpenCLExecutor):  # type: ignore[misc]
    """Loopy's executor, with cached code if the dtypes of all arguments are known."""

    def __init__(
        self,
        context: Any,
        t_unit: lp.TranslationUnit,
        entrypoint: str,
        shelf: CodeShelf,
    ) -> None:
        super().__init__(context, t_unit, entrypoint)
        self.shelf = shelf

    def translation_unit_info(self, arg_to_dtype: Any = None) -> Any:
        options = self.t_unit[self.entrypoint].options
        wants_to_see = options.write_code or options.edit_code or options.write_wrapper
        # the shelf has code for the dtypes of the unit only; and these options act
        # while code is generated
        if arg_to_dtype or wants_to_see:
            return super().translation_unit_info(arg_to_dtype)
        return self._built

    @cached_property
    def _built(self) -> SimpleNamespace:
        """The kernels by name, and the invoker, as Loopy's executor needs them."""
        code = self.shelf.code()
        if not isinstance(code, DeviceCode):  # none, or code of another target
            code = self._generate_code()
            self.shelf.put_code(code)
        program = load_pyopencl().Program(self.context, code.source)
        program = program.build(options=code.build_options)
        # CL_PROGRAM_KERNEL_NAMES is separated by semicolons
        names = program.kernel_names.split(";")
        kernels = SimpleNamespace(**{name: getattr(program, name) for name in names})
        return SimpleNamespace(cl_kernels=kernels, invoker=code.invoker)

    def _generate_code(self) -> DeviceCode:
        """Generate code with Loopy, without its caches, which would store it twice."""
        with _GENERATING, lp.CacheMode(False):
            unit = self.get_typed_and_scheduled_translation_unit(None)
            generated = lp.generate_code_v2(unit)
            invoker = self.get_invoker(unit, self.entrypoint, generated)
        options = unit[self.entrypoint].options
        return DeviceCode(generated.device_code(), options.build_options, invoker)


class _ProgramExecutor(PyOpenCLExecutor):  # type: ignore[misc]
    """Loopy's executor with a program of the host; builds nothing for the device."""

    def __init__(
        self,
        context: Any,
        t_unit: lp.TranslationUnit,
        entrypoint: str,
        program: HostProgram,
    ) -> None:
        super().__init__(context, t_unit, entrypoint)
        self.program = program

    def translation_unit_info(self, arg_to_dtype: Any = None) -> Any:
        return self._info

    @cached_property
    def _info(self) -> SimpleNamespace:
        """The object that launches the program; it has no OpenCL kernels."""
        kernel = self.t_unit[self.entrypoint]
        names = get_kernel_arg_info(kernel).passed_arg_names
        scalars = {
            arg.name: arg.dtype.numpy_dtype.type
            for arg in kernel.args
            if isinstance(arg, lp.ValueArg)
        }
        machine = _Machine(self.program, tuple(names), scalars)
        wrapper = _WrapperGenerator()
        programs = {self.entrypoint: SimpleNamespace(name=_MACHINE)}
        code = SimpleNamespace(host_programs=programs)
        invoker = wrapper(self.t_unit, self.entrypoint, code)

        def launch(_kernels: Any, *args: Any, **options: Any) -> Any:
            return invoker(machine, *args, **options)

        return SimpleNamespace(cl_kernels=SimpleNamespace(), invoker=launch)


class _WrapperGenerator(PyOpenCLExecutionWrapperGenerator):  # type: ignore[misc]
    """Generates an invoker that passes arrays themselves to the program."""

    def get_arg_pass(self, arg: Any) -> str:
        # Loopy passes base_data, which has no shape, strides or offset
        return str(arg.name)

    def generate_invocation(
        self, gen: Any, kernel: Any, kai: Any, host_program_name: str, args: Any
    ) -> None:
        args = ["_lpy_cl.enqueue_marker", *args]
        super().generate_invocation(gen, kernel, kai, host_program_name, args)

    def generate_host_code(self, gen: Any, codegen_result: Any) -> None:
        """Do nothing: there is no host code."""


@dataclass(frozen=True, eq=False)
class _Machine:
    """Runs a program on the arguments of a call.

    Attributes:
        program: the program.
        names: names of the arguments, in the order in which they are passed.
        scalars: the types of arguments that are not arrays.
        scratch: memory that runs share.
        lock: protects the scratch memory.
    """

    program: HostProgram
    names: tuple[str, ...]
    scalars: Mapping[str, type]
    scratch: dict[Any, Any] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def __call__(
        self,
        _kernels: Any,
        queue: Any,
        mark: Callable[[Any], Any],
        *arguments: Any,
        wait_for: Any,
        allocator: Any,
    ) -> Any:
        """Wait for pending work on the arguments, map them, run, and unmap them.

        Returns:
            An event of ``queue``, after all work is done.
        """
        values: dict[str, Any] = {}
        with self.lock, _SharedMemory(queue, wait_for) as memory:
            for name, value in zip(self.names, arguments, strict=True):
                scalar = self.scalars.get(name)
                values[name] = scalar(value) if scalar else memory.of(value)
            self.program.run(values, self.scratch)
        # Loopy adds this event to the arrays written, for which later commands then
        # wait
        return mark(queue)


@dataclass(frozen=True, eq=False)
class _SharedMemory:
    """Maps arrays of a device to the host while the context is open."""

    queue: Any
    wait_for: Any
    maps: list[Any] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # the device may use mapped memory only when the unmap commands are complete
        for event in [mapped.release(self.queue) for mapped in self.maps]:
            event.wait()

    def of(self, array: Any) -> Array:
        """Map an array to the host, after pending work on it."""
        if array.size == 0:
            return np.empty(array.shape, array.dtype)
        # plain buffers have no map_rw, only shared virtual memory
        if not hasattr(array.base_data, "map_rw"):
            host: Array = array.map_to_host(self.queue, wait_for=self.wait_for)
            self.maps.append(host.base)
            return host
        # map_to_host waits for these events itself, map_rw does not
        for event in array.events:
            event.wait()
        mapped = array.base_data.map_rw(queue=self.queue, wait_for=self.wait_for)
        self.maps.append(mapped)
        # the map begins with the allocation, not with the array
        return np.ndarray(
            array.shape, array.dtype, mapped.array, array.offset, array.strides
        )
