"""Translation units whose device code was generated before, by another process.

Loopy asks a unit for its executor, and the executor for the code. A :class:`CodedUnit`
gives an executor that takes the code from a shelf, and puts it there the first time.
The binary is left to the caches of PoCL and pyopencl, which go by the code itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from types import SimpleNamespace
from typing import Any, Protocol

import loopy as lp
from loopy.target.pyopencl_execution import PyOpenCLExecutor

from feinsum.codegen.own_executor import UnitWithExecutor
from feinsum.measure.opencl import pyopencl

__all__ = ["CodeShelf", "CodedUnit", "DeviceCode"]

_GENERATING = Lock()
"""Whether Loopy uses its caches is one setting of the process."""


@dataclass(frozen=True)
class DeviceCode:
    """What Loopy generates for a kernel.

    Attributes:
        source: for the OpenCL compiler.
        build_options: for the same.
        invoker: checks the arguments of a call and launches the kernels.
    """

    source: str
    build_options: Any
    invoker: Callable[..., Any]


class CodeShelf(Protocol):
    """The place of the code of one kernel."""

    def code(self) -> DeviceCode | None: ...

    def put_code(self, code: DeviceCode) -> None: ...


class CodedUnit(UnitWithExecutor):
    """A translation unit with a place for its code."""

    content: CodeShelf

    @property
    def shelf(self) -> CodeShelf:
        return self.content

    def executor_like(self, usual: PyOpenCLExecutor) -> PyOpenCLExecutor:
        return _CodedExecutor(
            usual.context, usual.t_unit, usual.entrypoint, self.content
        )


class _CodedExecutor(PyOpenCLExecutor):  # type: ignore[misc]
    """Loopy's executor; where the dtypes of all arguments are known, with kept code."""

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
        if arg_to_dtype or wants_to_see:
            return super().translation_unit_info(arg_to_dtype)
        return self._built

    @cached_property
    def _built(self) -> SimpleNamespace:
        """The kernels by name, and what launches them, as Loopy's executor wants it."""
        code = self.shelf.code()
        if code is None:
            code = self._generated()
            self.shelf.put_code(code)
        program = pyopencl().Program(self.context, code.source)
        program = program.build(options=code.build_options)
        names = program.kernel_names.split(";")
        kernels = SimpleNamespace(**{name: getattr(program, name) for name in names})
        return SimpleNamespace(cl_kernels=kernels, invoker=code.invoker)

    def _generated(self) -> DeviceCode:
        """From Loopy, without its caches: they would keep all of it once more."""
        with _GENERATING, lp.CacheMode(False):
            unit = self.get_typed_and_scheduled_translation_unit(None)
            generated = lp.generate_code_v2(unit)
            invoker = self.get_invoker(unit, self.entrypoint, generated)
        options = unit[self.entrypoint].options
        return DeviceCode(generated.device_code(), options.build_options, invoker)
