"""Retrieval in compilers that generate Loopy kernels, and in array contexts.

A compiler calls :func:`transform_program` on every kernel before it builds it ::

    program ---> a recipe for any of its einsums? --yes--> the program with recipes
                               |
                               no
                               v
                   the compiler's own transform

The package arraycontext has a method for that, ``transform_loopy_program``; the mixins
here try retrieval first. They use only documented members of array contexts: ``queue``,
``transform_loopy_program`` and, for the eager mixin, ``call_loopy``.
:class:`FeinsumArrayContext` is the lazy one over arraycontext's own context of pytato.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

import loopy as lp
import numpy as np

from feinsum.db import Database
from feinsum.errors import DeviceUnavailableError, FeinsumError
from feinsum.records import Policy
from feinsum.retrieval import retrieve
from feinsum.targets.devices import open_device
from feinsum.targets.opencl.device import describe_device
from feinsum.targets.opencl.door import load_pyopencl

# Of arraycontext's releases none has this class, only its sources have it.
_WHY_NO_BASE = ""
try:
    from arraycontext import PytatoPyOpenCLArrayContext as _LazyBase
except ImportError as error:  # as the constructor reports
    _LazyBase, _WHY_NO_BASE = object, f"{error}"

_NEEDS = (
    "FeinsumArrayContext needs PytatoPyOpenCLArrayContext of the package arraycontext, "
    "and pytato: {}; docs/how-to/integrations.md says which versions work"
)


def _return_unchanged(t_unit: lp.TranslationUnit) -> lp.TranslationUnit:
    return t_unit


def transform_program(
    t_unit: lp.TranslationUnit,
    *,
    fallback: Callable[[lp.TranslationUnit], lp.TranslationUnit] = _return_unchanged,
    arguments: Mapping[str, Any] | None = None,
    device: str | None = None,
    database: Database = None,
    policy: Policy | None = None,
) -> lp.TranslationUnit:
    """Transform a program with recipes; if it gets none, pass it to ``fallback``.

    Each entry point is retrieved separately. If none gets a recipe, ``fallback`` gets
    the program unchanged; otherwise it is not called. No error is raised, except by
    ``fallback`` or for a wrong policy.

    Args:
        t_unit: the program.
        fallback: the compiler's own transform; by default, it returns the program
            unchanged.
        arguments: arguments of the call, if the program has one entry point that leaves
            dtypes and sizes open; see :func:`feinsum.retrieve`.
        device: as for :func:`feinsum.retrieve`.
        database: as for :func:`feinsum.retrieve`.
        policy: as for :func:`feinsum.retrieve`.

    Raises:
        InvalidOptionError: if ``policy`` is not one that ``retrieve`` names.
    """
    retrieved = t_unit
    names = sorted(t_unit.entrypoints)
    # each entry point has its own kernel, whose recipes are independent of the others
    for name in names:
        retrieved = retrieve(
            retrieved,
            arguments=arguments if len(names) == 1 else None,
            device=device,
            database=database,
            kernel_name=name,
            policy=policy,
            on_miss="return",
        )
    return fallback(t_unit) if retrieved is t_unit else retrieved


class RetrievesLazily:
    """Mixin for array contexts that generate whole programs with known sizes.

    ::

        class Mine(RetrievesLazily, PytatoPyOpenCLArrayContext):
            feinsum_database = "facts.sqlite"

    Attributes:
        feinsum_database, feinsum_policy: as for :func:`feinsum.retrieve`.
    """

    feinsum_database: Database = None
    feinsum_policy: Policy | None = None

    def transform_loopy_program(self, t_unit: lp.TranslationUnit) -> Any:
        """Transform a program with recipes; without any, by the next class."""
        base: Any = super()
        return transform_program(
            t_unit, fallback=base.transform_loopy_program, **self._look_up
        )

    @property
    def _look_up(self) -> dict[str, Any]:
        context: Any = self
        return {
            "device": describe_device(context.queue.device).id,
            "database": self.feinsum_database,
            "policy": self.feinsum_policy,
        }


class RetrievesEagerly(RetrievesLazily):
    """Mixin for array contexts that call one kernel at a time.

    Such kernels leave dtypes and sizes open. So they are looked up when they are
    called, once for every kind of arguments.
    """

    def transform_loopy_program(self, t_unit: lp.TranslationUnit) -> Any:
        """Transform a program like :class:`RetrievesLazily`, but each only once."""
        if t_unit not in self._finished:
            self._finished[t_unit] = super().transform_loopy_program(t_unit)
        return self._finished[t_unit]

    def call_loopy(self, t_unit: lp.TranslationUnit, **kwargs: Any) -> Any:
        """Call the kernel that is retrieved for arguments of this kind."""
        base: Any = super()
        retrieved = self._retrieve_for(t_unit, kwargs)
        if retrieved is t_unit:
            return base.call_loopy(t_unit, **kwargs)
        # sizes that were fixed are no longer arguments
        names = retrieved.default_entrypoint.arg_dict
        arguments = {name: value for name, value in kwargs.items() if name in names}
        return base.call_loopy(retrieved, **arguments)

    def _retrieve_for(
        self, t_unit: lp.TranslationUnit, arguments: Mapping[str, Any]
    ) -> lp.TranslationUnit:
        # a kernel is specialized to shapes and dtypes, not to values of arrays
        key = t_unit, frozenset((n, _get_kind(x)) for n, x in arguments.items())
        if key not in self._specialized:
            retrieved = transform_program(t_unit, arguments=arguments, **self._look_up)
            # `call_loopy` transforms programs: mark this one as finished
            if retrieved is not t_unit:
                self._finished[retrieved] = retrieved
            self._specialized[key] = retrieved
        return self._specialized[key]

    @cached_property
    def _specialized(self) -> dict[Any, lp.TranslationUnit]:
        """Retrieved programs, by program and kind of arguments."""
        return {}

    @cached_property
    def _finished(self) -> dict[lp.TranslationUnit, Any]:
        return {}


def _get_kind(argument: Any) -> Any:
    """Return the properties to which a kernel is specialized: shape, dtype or size."""
    if isinstance(argument, int | np.integer):
        return int(argument)
    shape = getattr(argument, "shape", ())
    return tuple(shape), str(getattr(argument, "dtype", type(argument)))


class FeinsumArrayContext(RetrievesLazily, _LazyBase):  # type: ignore[misc]
    """A lazy array context of pytato and OpenCL whose programs get recipes.

    ::

        actx = FeinsumArrayContext()
        gradient = actx.compile(lambda J, D, u: actx.einsum(subscripts, J, D, u))

    A program without a recipe gets the transform of arraycontext.
    """

    def __init__(
        self,
        queue: Any = None,
        allocator: Any = None,
        *,
        database: Database = None,
        policy: Policy | None = None,
        **options: Any,
    ) -> None:
        """Make a context.

        Args:
            queue: a queue of commands of pyopencl; by default one of the device of
                OpenCL that ``FEINSUM_DEVICE`` names, or else of the first that works.
            allocator: of device memory; by default buffers on a CPU, and what
                arraycontext chooses on another device.
            database: as for :func:`feinsum.retrieve`.
            policy: as for :func:`feinsum.retrieve`.
            options: of ``PytatoPyOpenCLArrayContext``.

        Raises:
            FeinsumError: if arraycontext or pytato is missing or too old.
            DeviceUnavailableError: if no device of OpenCL works.
        """
        if _LazyBase is object:
            raise FeinsumError(_NEEDS.format(_WHY_NO_BASE))
        try:  # the base would import it once a device is open
            import_module("pytato")
        except ImportError as error:
            raise FeinsumError(_NEEDS.format(error)) from error
        if queue is None:
            queue = _open_queue()
        if allocator is None and not options.get("use_memory_pool"):
            allocator = _choose_allocator(queue)
        super().__init__(queue, allocator, **options)
        # those of a subclass stay, unless the call names others
        if database is not None:
            self.feinsum_database = database
        if policy is not None:
            self.feinsum_policy = policy

    def clone(self) -> FeinsumArrayContext:
        """Make a context of the same queue, memory, database and policy."""
        return type(self)(
            self.queue,
            self.allocator,
            database=self.feinsum_database,
            policy=self.feinsum_policy,
        )


def _open_queue() -> Any:
    opened = open_device(loopy_target=lp.PyOpenCLTarget())
    if not hasattr(opened, "queue"):
        raise DeviceUnavailableError(
            f"array contexts run on OpenCL, not on {opened.device}; set "
            "FEINSUM_DEVICE=opencl, or pass a queue"
        )
    return opened.queue


def _choose_allocator(queue: Any) -> Any:
    """Choose buffers on a CPU, where shared virtual memory makes PoCL 3.0 crash."""
    cl = load_pyopencl()
    if queue.device.type & cl.device_type.CPU:
        return cl.tools.ImmediateAllocator(queue)
    return None  # as arraycontext chooses
