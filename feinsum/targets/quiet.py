"""Loopy, islpy and pyopencl without output, and Loopy without unnecessary work.

Loopy prints a kernel that it cannot translate, prompts at the terminal, and warns about
deliberate features of our kernels; islpy warns about conversions inside Loopy.
``sys.stdout`` and the filters of warnings belong to the whole process, where other
threads use them. So these modules get their own ``print`` and ``warn``, which depend on
the context of the call: within :func:`quiet`, output is collected and warnings are
dropped; elsewhere they behave as before.

:data:`quicker` avoids work of Loopy's generator without changing the code. For each
loop, the generator defines a data class, and makes a copy of the kernel, which discards
everything that was computed from the domains. Kernels with several rows have more than
a hundred loops, and the tags of each iname are looked up thousands of times.
:data:`uncached` avoids pickling kernels into Loopy's database if their code is stored
elsewhere.
"""

from __future__ import annotations

import builtins
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from types import FunctionType, SimpleNamespace
from typing import Any

import islpy
import loopy as lp
import loopy.check  # Loopy imports this, isl_helpers and the executions late
import loopy.codegen.control as control
import loopy.codegen.loop as loop
import loopy.diagnostic
import loopy.isl_helpers
import loopy.schedule
import loopy.target.c.c_execution
import loopy.target.execution
import loopy.target.pyopencl_execution
from pytools import memoize_method

from feinsum.settings import SharedSetting


@dataclass(frozen=True)
class _Quiet:
    """The output that a context collects, and the warnings that it drops."""

    ignored: tuple[type[Warning], ...]
    printed: io.StringIO = field(default_factory=io.StringIO)


_CONTEXT: ContextVar[_Quiet | None] = ContextVar("feinsum_quiet", default=None)


@contextmanager
def quiet(*ignored: type[Warning]) -> Iterator[io.StringIO]:
    """Collect what Loopy prints, in this thread alone; drop warnings of islpy.

    Args:
        ignored: classes of warnings of Loopy and pyopencl that are dropped, too.

    Yields:
        what was printed.
    """
    outer = _CONTEXT.get() or _Quiet((DeprecationWarning,))
    context = _Quiet((*outer.ignored, *ignored), outer.printed)
    token = _CONTEXT.set(context)
    try:
        yield context.printed
    finally:
        _CONTEXT.reset(token)


def is_silenced(category: type[Warning]) -> bool:
    """Return whether the context drops warnings of this class."""
    context = _CONTEXT.get()
    return context is not None and issubclass(category, context.ignored)


def drop_when_quiet(_record: logging.LogRecord) -> bool:
    """Drop the log records of another package in a quiet context."""
    return _CONTEXT.get() is None


def _print(*values: Any, file: Any = None, **options: Any) -> None:
    """Replace ``print`` in Loopy's modules."""
    context = _CONTEXT.get()
    builtins.print(*values, file=context.printed if context else file, **options)


def _warn(
    message: Any, category: Any = None, stacklevel: int = 1, source: Any = None
) -> None:
    """Replace ``warnings.warn`` in these modules."""
    if not is_silenced(category or UserWarning):
        warnings.warn(message, category, stacklevel + 1, source)


def _warn_with_kernel(warn: Callable[..., None]) -> Callable[..., None]:
    @wraps(warn)
    def warn_with_kernel(
        kernel: Any,
        id: str,
        text: str,
        type: type[Warning] = loopy.diagnostic.LoopyWarning,
        stacklevel: int | None = None,
    ) -> None:
        if not is_silenced(type):
            level = 2 if stacklevel is None else stacklevel + 1
            warn(kernel, id, text, type, level)

    return warn_with_kernel


def with_own_warn(function: FunctionType, **globals: Any) -> FunctionType:
    """Copy a function such that its ``from warnings import warn`` finds :func:`_warn`.

    Args:
        function: the function to copy.
        globals: further names of its module, with the values that it is to find.
    """

    def import_module(name: str, *arguments: Any) -> Any:
        if name == "warnings":
            return SimpleNamespace(warn=_warn)
        return builtins.__import__(name, *arguments)

    our_builtins = {**vars(builtins), "__import__": import_module}
    names = {**function.__globals__, **globals, "__builtins__": our_builtins}
    copied = FunctionType(
        function.__code__,
        names,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


class _ScheduleDebugger(loopy.schedule.ScheduleDebugger):  # type: ignore[misc]
    """Reports no progress, and prompts for nothing, in a quiet context."""

    def __init__(self, debug_length: Any = None, interactive: bool = True) -> None:
        super().__init__(debug_length, interactive and _CONTEXT.get() is None)

    def update(self) -> None:
        if _CONTEXT.get() is None:
            super().update()


def _install() -> None:
    """Give these modules the names above; once, when this module is imported."""
    # `warn` is its deprecated name; both are replaced in their own module, too
    warn_with_kernel_before, deprecated_warn = (
        loopy.diagnostic.warn_with_kernel,
        loopy.diagnostic.warn,
    )
    warn_with_kernel = _warn_with_kernel(warn_with_kernel_before)
    # a copy of the list, because other threads may import modules meanwhile
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] != "loopy":
            continue
        names = vars(module)
        names.setdefault("print", _print)
        for alias in ("warn", "warn_with_kernel"):
            if names.get(alias) in (warn_with_kernel_before, deprecated_warn):
                names[alias] = warn_with_kernel
            elif names.get(alias) is warnings.warn:
                names[alias] = _warn
    loopy.schedule.ScheduleDebugger = _ScheduleDebugger
    generator = loopy.target.execution.ExecutionWrapperGeneratorBase
    find = generator.generate_integer_arg_finding_from_array_data
    generator.generate_integer_arg_finding_from_array_data = with_own_warn(find)
    conversions = sys.modules.get(f"{islpy.__name__}._monkeypatch")
    if conversions is not None:
        vars(conversions)["warn"] = _warn


_install()


def _replace_functions() -> Callable[[], None]:
    intersected = loop.intersect_kernel_with_slab
    classes: dict[str, type] = {}

    def with_slab(kernel: Any, slab: Any, iname: str) -> Any:
        """Return the kernel itself if the slab is the universe, as for uncut loops."""
        is_all = slab.plain_is_universe()
        return kernel if is_all else intersected(kernel, slab, iname)

    def define_once(**options: Any) -> Callable[[type], type]:
        """Define local classes of a function once, as they use nothing of its scope."""

        def decorate(kind: type) -> type:
            if (name := kind.__qualname__) not in classes:
                classes[name] = dataclass(**options)(kind)
            return classes[name]

        return decorate

    tags_of_type = lp.LoopKernel.iname_tags_of_type

    def end() -> None:
        loop.intersect_kernel_with_slab = intersected
        control.dataclass = dataclass
        lp.LoopKernel.iname_tags_of_type = tags_of_type

    loop.intersect_kernel_with_slab = with_slab
    control.dataclass = define_once
    lp.LoopKernel.iname_tags_of_type = memoize_method(tags_of_type)
    return end


def _switch_caches_off() -> Callable[[], None]:
    was_enabled = lp.CACHING_ENABLED
    lp.set_caching_enabled(False)
    return lambda: lp.set_caching_enabled(was_enabled)


quicker = SharedSetting(_replace_functions)
"""Context in which Loopy generates code in less time."""

uncached = SharedSetting(_switch_caches_off)
"""Context in which Loopy does not use its caches on disk."""
