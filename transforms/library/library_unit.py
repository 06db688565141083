"""Translation units that the host computes, in memory that it shares with a device.

The caller sees an executor of Loopy: arguments are taken, checked and allocated by the
code that Loopy generates for this. In the place of a kernel for the device, a function
of the host is called with the arguments as numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from types import SimpleNamespace
from typing import Any, Protocol, Self

import loopy as lp
import numpy as np
from loopy.schedule.tools import get_kernel_arg_info
from loopy.target.pyopencl_execution import (
    PyOpenCLExecutionWrapperGenerator,
    PyOpenCLExecutor,
)

from feinsum.codegen.own_executor import UnitWithExecutor
from feinsum.transforms.library.array_function import Array

__all__ = ["HostProgram", "LibraryUnit"]

_CPU = 1 << 1
"""``CL_DEVICE_TYPE_CPU``."""
_MACHINE = "_lpy_cl_kernels"
"""What the generated code calls what is given to it in the place of the kernels."""


class HostProgram(Protocol):
    """What takes the place of a kernel."""

    def run(self, values: Mapping[str, Any], scratch: dict[Any, Any]) -> None:
        """Compute the results.

        Args:
            values: every argument of the kernel by name.
            scratch: memory that is kept from one run to the next.
        """


class LibraryUnit(UnitWithExecutor):
    """A translation unit with a program of the host that computes the same.

    On a device that is no CPU Loopy generates code for it.
    """

    content: HostProgram

    @property
    def program(self) -> HostProgram:
        return self.content

    def executor_like(self, usual: PyOpenCLExecutor) -> PyOpenCLExecutor:
        if not all(device.type & _CPU for device in usual.context.devices):
            return usual
        return _HostExecutor(
            usual.context, usual.t_unit, usual.entrypoint, self.content
        )


class _HostExecutor(PyOpenCLExecutor):  # type: ignore[misc]
    """Loopy's executor, but for the code of the device: there is none to build."""

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
        """What launches the program; of OpenCL kernels there are none."""
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
    """Passes arrays as they are, to what stands in the place of the kernels."""

    def get_arg_pass(self, arg: Any) -> str:
        return str(arg.name)

    def generate_invocation(
        self, gen: Any, kernel: Any, kai: Any, host_program_name: str, args: Any
    ) -> None:
        args = ["_lpy_cl.enqueue_marker", *args]
        super().generate_invocation(gen, kernel, kai, host_program_name, args)

    def generate_host_code(self, gen: Any, codegen_result: Any) -> None:
        """There is none."""


@dataclass(frozen=True, eq=False)
class _Machine:
    """Runs a program on the arguments of a call.

    Attributes:
        names: of the arguments, in the order in which they are passed.
        scalars: the types of those that are no arrays.
        lock: runs share their scratch memory.
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
        *given: Any,
        wait_for: Any,
        allocator: Any,
    ) -> Any:
        """Wait for what the arguments wait for, run, and give them back.

        Returns:
            An event of ``queue``, for which there is nothing left to do.
        """
        values: dict[str, Any] = {}
        with self.lock, _SharedMemory(queue, wait_for) as memory:
            for name, value in zip(self.names, given, strict=True):
                scalar = self.scalars.get(name)
                values[name] = scalar(value) if scalar else memory.of(value)
            self.program.run(values, self.scratch)
        return mark(queue)


@dataclass(frozen=True, eq=False)
class _SharedMemory:
    """The memory of arrays of a device, as arrays of the host for a while."""

    queue: Any
    wait_for: Any
    maps: list[Any] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for event in [held.release(self.queue) for held in self.maps]:
            event.wait()

    def of(self, array: Any) -> Array:
        """The array, when all that it waits for is done."""
        if array.size == 0:
            return np.empty(array.shape, array.dtype)
        if not hasattr(array.base_data, "map_rw"):
            host: Array = array.map_to_host(self.queue, wait_for=self.wait_for)
            self.maps.append(host.base)
            return host
        for event in array.events:
            event.wait()
        held = array.base_data.map_rw(queue=self.queue, wait_for=self.wait_for)
        self.maps.append(held)
        return np.ndarray(
            array.shape, array.dtype, held.array, array.offset, array.strides
        )
