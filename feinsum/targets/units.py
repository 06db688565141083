"""Translation units with their own executors.

Loopy calls ``executor`` of a unit. These units wrap Loopy's executor in one that uses
code that was generated before, or runs a program of the host in place of a kernel. Each
target registers such executors with :func:`with_code` and :func:`with_program`::

    unit.executor() -> Loopy's executor -> with_code(executor, shelf)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Protocol, Self

import loopy as lp


class CodeShelf(Protocol):
    """Storage for the generated code of one kernel."""

    def code(self) -> Any: ...

    def put_code(self, code: Any) -> None: ...


@dataclass
class HeldCode:
    """A shelf in memory, which lives as long as its unit."""

    content: Any = None

    def code(self) -> Any:
        return self.content

    def put_code(self, code: Any) -> None:
        self.content = code


class HostProgram(Protocol):
    """A program of the host that replaces a kernel."""

    def run(self, values: Mapping[str, Any], scratch: dict[Any, Any]) -> None:
        """Compute the results.

        Args:
            values: every argument of the kernel by name.
            scratch: memory that is reused by the next run.
        """


@singledispatch
def with_code(usual: Any, _shelf: CodeShelf) -> Any:
    """Return an executor with code from a shelf, or Loopy's if the target has none."""
    return usual


@singledispatch
def with_program(usual: Any, _program: HostProgram) -> Any:
    """Return an executor that runs a program, or Loopy's if the target has none."""
    return usual


class UnitWithExecutor(lp.TranslationUnit):  # type: ignore[misc]
    """A translation unit with additional content for its executor.

    It is equal to the plain unit. Changing or pickling it makes a plain unit, for which
    the content would be wrong.
    """

    content: Any

    @classmethod
    def of(cls, unit: lp.TranslationUnit, content: Any) -> Self:
        extended = cls(unit.callables_table, unit.target, unit.entrypoints)
        # not a field of the data class, which would be compared, hashed and pickled
        object.__setattr__(extended, "content", content)  # the class is frozen
        return extended

    @property
    def plain(self) -> lp.TranslationUnit:
        """The unit without its content."""
        return lp.TranslationUnit(self.callables_table, self.target, self.entrypoints)

    @abstractmethod
    def executor_like(self, usual: Any) -> Any:
        """Return the executor of this unit, in place of Loopy's own."""

    def for_target(self, target: Any) -> Self:
        """Return the same unit for another target."""
        return self.of(convert_to_target(self.plain, target), self.content)

    def copy(self, **changes: Any) -> lp.TranslationUnit:
        return self.plain.copy(**changes)

    def executor(self, *args: Any, **options: Any) -> Any:
        usual = self.plain.executor(*args, **options)
        return usual if len(self.entrypoints) != 1 else self.executor_like(usual)

    def __eq__(self, other: object) -> bool:
        return bool(
            self.plain
            == (other.plain if isinstance(other, UnitWithExecutor) else other)
        )

    def __hash__(self) -> int:
        return hash(self.plain)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.callables_table, self.target, self.entrypoints
        return lp.TranslationUnit, arguments


class CodedUnit(UnitWithExecutor):
    """A translation unit with a shelf for its code, in memory or shared on disk.

    The executor takes the code from the shelf, or generates it and stores it there.
    """

    content: CodeShelf

    @property
    def shelf(self) -> CodeShelf:
        return self.content

    def executor_like(self, usual: Any) -> Any:
        return with_code(usual, self.content)


class LibraryUnit(UnitWithExecutor):
    """A translation unit with a program of the host that computes the same results.

    On a device that shares no memory with the host, Loopy generates code for the unit.
    """

    content: HostProgram

    @property
    def program(self) -> HostProgram:
        return self.content

    def executor_like(self, usual: Any) -> Any:
        return with_program(usual, self.content)


def convert_to_target(unit: lp.TranslationUnit, target: Any) -> lp.TranslationUnit:
    """Convert a unit to another target, with the content for its executor."""
    if isinstance(unit, UnitWithExecutor):
        return unit.for_target(target)
    if target != unit.target:  # which Loopy changes only before preprocessing
        for name, callable_ in unit.callables_table.items():
            if isinstance(callable_, lp.CallableKernel):
                unit = drop_schedule(unit, name)
    return unit.copy(target=target)


def drop_schedule(unit: lp.TranslationUnit, name: str) -> lp.TranslationUnit:
    """Drop Loopy's schedule, and return a kernel to its state before preprocessing."""
    kernel = unit[name]
    if kernel.state == lp.KernelState.INITIAL:
        return unit
    state = lp.KernelState.INITIAL
    return unit.with_kernel(kernel.copy(linearization=None, state=state))
