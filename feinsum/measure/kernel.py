"""Loopy kernels on a device: compile once, bind arguments once, run often."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import sleep
from typing import Any, TypeVar

import loopy as lp
import numpy as np
from loopy.diagnostic import ParameterFinderWarning

from feinsum.errors import BuildError, DeviceUnavailableError, MeasurementError
from feinsum.measure.verification import get_poison_value
from feinsum.targets.host.device import HostDevice
from feinsum.targets.host.kernel import HostCode
from feinsum.targets.layout import (
    Layout,
    bind_sizes_of,
    compute_layout,
    get_entry_kernel,
    infer_types,
)
from feinsum.targets.protocol import Array, Built, OpenDevice, Timer
from feinsum.targets.quiet import quiet, uncached
from feinsum.words import get_first_lines

T = TypeVar("T")

SPIN_S = 0.12
"""How long idle threads of a library spin on cores that other kernels need."""
SHORT_S = 0.02
"""If a library takes less time, it runs twice, and the second run counts. After the
pause its threads sleep, and waking them takes longer than a product of small matrices.
In a program that calls the library repeatedly, they are awake."""


def compile_kernel(t_unit: Any, opened: OpenDevice) -> CompiledKernel:
    """Generate and build the code of a translation unit with one entry point.

    The unit may be for any Loopy target; it is built for the target of the device.
    Nothing is printed: what Loopy prints about a kernel that it cannot translate
    becomes a note of the error.

    Raises:
        DeviceUnavailableError: if a build tool, such as a compiler, is missing.
        BuildError: with the first lines of the cause, or of the build log if a compiler
            failed.
    """
    return CompiledKernel(opened, _generate(t_unit, opened, opened.build))


def generate_for_host(t_unit: Any, opened: HostDevice) -> HostCode:
    """Generate the code of a translation unit without building it.

    The same code is never requested again, so Loopy's caches on disk are bypassed.

    Raises:
        BuildError: if there is none.
    """
    with uncached():
        return _generate(t_unit, opened, opened.generate)


def _generate(t_unit: Any, opened: OpenDevice, make: Callable[[Any], T]) -> T:
    try:
        # bind() passes every size, so that Loopy need not find it from shapes
        with quiet(ParameterFinderWarning) as printed:
            return _generate_with_caches(
                lambda: make(infer_types(opened.prepare(t_unit)))
            )
    except (BuildError, DeviceUnavailableError, Warning):
        raise  # a warning is an error only where the user asked for it
    except Exception as error:
        names = ", ".join(sorted(t_unit.entrypoints))
        failure = BuildError(
            f"kernel {names!r} cannot be built for {opened.device}: "
            f"{type(error).__name__}: {get_first_lines(error)}"
        )
        if printed.getvalue():
            failure.add_note(get_first_lines(printed.getvalue(), n_lines=60))
        raise failure from error


def _generate_with_caches(generate: Callable[[], T]) -> T:
    """Generate with Loopy's disk caches, or without them if they fail."""
    try:
        return generate()
    except sqlite3.Error:
        # Loopy's caches are SQLite files, which fail if the disk is full, for instance
        with uncached():
            return generate()


@dataclass(frozen=True, eq=False)
class CompiledKernel:
    """A kernel that is built for a device."""

    opened: OpenDevice
    built: Built

    @property
    def t_unit(self) -> Any:
        """The translation unit that was built, every dtype known."""
        return self.built.t_unit

    @property
    def timer(self) -> Timer:
        """The clock to use."""
        return self.built.timer

    def bind(self, arguments: Mapping[str, Any]) -> BoundKernel:
        """Move the arguments to the device.

        Args:
            arguments: the array or scalar of each argument by name, with the kernel's
                shapes and dtypes. Sizes that follow from shapes, and arrays that are
                only written, may be omitted.

        Raises:
            MeasurementError: if arguments are missing, unknown or of the wrong shape or
                dtype, or if the device lacks memory.
        """
        kernel = get_entry_kernel(self.t_unit)
        _check_names(kernel, arguments)
        sizes = bind_sizes_of(kernel, arguments)
        values: dict[str, Any] = {**sizes, **arguments}
        slots, initial = {}, {}
        for arg in kernel.args:
            if isinstance(arg, lp.ValueArg):
                slots[arg.name] = _convert_scalar(arg, values)
                continue
            layout = compute_layout(arg, sizes)
            buffer = _fill_buffer(arg, layout, values)
            # the kernel overwrites these values, and must start from them in every
            # verification
            if arg.is_output and arg.is_input:
                initial[arg.name] = buffer.copy()
            slots[arg.name] = _Slot(layout, self._upload(arg.name, layout, buffer))
        outputs = tuple(arg.name for arg in kernel.args if arg.is_output)
        return BoundKernel(self, slots, outputs, initial)

    def _upload(self, name: str, layout: Layout, buffer: Array) -> Any:
        try:
            return self.opened.upload(buffer, layout)
        except MeasurementError as error:
            raise MeasurementError(f"argument {name!r}: {error}") from error


@dataclass(frozen=True, eq=False)
class _Slot:
    """An array of the device and how its entries lie in its buffer."""

    layout: Layout
    array: Any


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A built kernel with its arguments on the device.

    Attributes:
        slots: device array or scalar of every argument.
        outputs: names of the arrays that the kernel writes.
    """

    compiled: CompiledKernel
    slots: Mapping[str, Any]
    outputs: tuple[str, ...]
    _initial: Mapping[str, Array] = field(repr=False)

    @property
    def timer(self) -> Timer:
        """The clock of :meth:`run`."""
        return self.compiled.timer

    def run(self, timer: Timer | None = None) -> float:
        """Run once and wait for the end.

        Args:
            timer: the clock of a comparison, in which libraries that take less than
                :data:`SHORT_S` run twice; by default :attr:`timer`, and one run, whose
                results count.

        Returns:
            Seconds, by :data:`feinsum.targets.protocol.Timer`.

        Raises:
            MeasurementError: if the device refuses or fails.
        """
        arguments = {
            name: slot.array if isinstance(slot, _Slot) else slot
            for name, slot in self.slots.items()
        }
        built = self.compiled.built
        elapsed_s = built.run(arguments, timer or self.timer)
        # No launches: a library computed, whose threads now spin on our cores.
        if built.n_launches == 0:
            if timer is not None and elapsed_s < SHORT_S:
                elapsed_s = built.run(arguments, timer)
            sleep(SPIN_S)
        return elapsed_s

    def sharing(self, other: BoundKernel) -> BoundKernel:
        """Bind the same kernel to the arrays of another one, where layouts match.

        Kernels that are timed in turns find the caches as the previous one left them.
        With shared arrays, this is the same for all of them.
        """
        slots = {
            name: other.slots[name]
            if isinstance(slot, _Slot)
            and isinstance(shared := other.slots.get(name), _Slot)
            and shared.layout == slot.layout
            else slot
            for name, slot in self.slots.items()
        }
        return replace(self, slots=slots)

    def read(self) -> dict[str, Array]:
        """Copy the outputs to arrays of the host, by name."""
        results = {}
        for name in self.outputs:
            slot = self.slots[name]
            buffer = self.compiled.opened.download(slot.array, slot.layout)
            # unpack returns a view with the padding of the buffer
            results[name] = slot.layout.unpack(buffer).copy(order="C")
        return results

    def poison(self) -> None:
        """Overwrite the outputs, so that stale values cannot pass for results.

        Outputs that are only written are filled with
        :func:`feinsum.measure.verification.get_poison_value`; those that are also read
        get back their initial values.
        """
        for name in self.outputs:
            slot = self.slots[name]
            buffer = self._initial.get(name)
            if buffer is None:
                layout = slot.layout
                value = get_poison_value(layout.dtype)
                buffer = np.full(layout.n_entries, value, layout.dtype)
            self.compiled.opened.overwrite(slot.array, buffer)


def _check_names(kernel: Any, arguments: Mapping[str, Any]) -> None:
    names = {arg.name for arg in kernel.args}
    if unknown := sorted(set(arguments) - names):
        raise MeasurementError(
            f"kernel {kernel.name!r} has no arguments {unknown}; it has {sorted(names)}"
        )


def _convert_scalar(arg: Any, arguments: Mapping[str, Any]) -> Any:
    if arg.name not in arguments:
        raise MeasurementError(f"the scalar argument {arg.name!r} is missing")
    return arg.dtype.numpy_dtype.type(arguments[arg.name])


def _fill_buffer(arg: Any, layout: Layout, arguments: Mapping[str, Any]) -> Array:
    """Return the initial values of an array's buffer: the given ones, else zeros."""
    if arg.name not in arguments:
        if arg.is_input:
            raise MeasurementError(
                f"the array argument {arg.name!r} of shape {layout.shape} is missing"
            )
        return np.zeros(layout.n_entries, layout.dtype)
    array = np.asarray(arguments[arg.name])
    if array.shape != layout.shape or array.dtype != layout.dtype:
        raise MeasurementError(
            f"argument {arg.name!r} has shape {array.shape} and dtype {array.dtype}, "
            f"expected {layout.shape} and {layout.dtype}"
        )
    return layout.pack(array)
