"""Translation units that are run in another way than Loopy would.

Loopy asks a unit for its executor. These units ask for Loopy's executor, and give one
that does more with something of their own: code that was generated before, or a program
of the host in place of a kernel. Each target says how it does that, by registering with
:func:`with_code` and :func:`with_program`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Protocol, Self

import loopy as lp


class CodeShelf(Protocol):
    """The place of the generated code of one kernel."""

    def code(self) -> Any: ...

    def put_code(self, code: Any) -> None: ...


@dataclass
class HeldCode:
    """A shelf in memory: the code lives as long as its unit."""

    content: Any = None

    def code(self) -> Any:
        return self.content

    def put_code(self, code: Any) -> None:
        self.content = code


class HostProgram(Protocol):
    """A replacement of a kernel."""

    def run(self, values: Mapping[str, Any], scratch: dict[Any, Any]) -> None:
        """Compute the results.

        Args:
            values: every argument of the kernel by name.
            scratch: memory that is kept from one run to the next.
        """


@singledispatch
def with_code(usual: Any, _shelf: CodeShelf) -> Any:
    """Return Loopy's executor with code from a shelf, or unchanged without one."""
    return usual


@singledispatch
def with_program(usual: Any, _program: HostProgram) -> Any:
    """Return an executor that runs a program, or Loopy's own without access."""
    return usual


class UnitWithExecutor(lp.TranslationUnit):  # type: ignore[misc]
    """A translation unit with something that its executor needs.

    It is equal to the plain unit. Whatever is made from it, by a change or by
    pickling, is a plain one, for which that would not be right.
    """

    content: Any

    @classmethod
    def of(cls, unit: lp.TranslationUnit, content: Any) -> Self:
        extended = cls(unit.callables_table, unit.target, unit.entrypoints)
        # A field of the data class would be compared, hashed and pickled.
        object.__setattr__(extended, "content", content)  # the class is frozen
        return extended

    @property
    def plain(self) -> lp.TranslationUnit:
        """The unit without what was added."""
        return lp.TranslationUnit(self.callables_table, self.target, self.entrypoints)

    @abstractmethod
    def executor_like(self, usual: Any) -> Any:
        """Return the executor of this unit, in place of Loopy's own."""

    def for_target(self, target: Any) -> Self:
        """Return the same unit for another target."""
        return self.of(self.plain.copy(target=target), self.content)

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
        parts = self.callables_table, self.target, self.entrypoints
        return lp.TranslationUnit, parts


class CodedUnit(UnitWithExecutor):
    """A translation unit with a place for its code, in memory or shared on disk.

    The executor takes the code from the shelf, and puts it there the first time.
    """

    content: CodeShelf

    @property
    def shelf(self) -> CodeShelf:
        return self.content

    def executor_like(self, usual: Any) -> Any:
        return with_code(usual, self.content)


class LibraryUnit(UnitWithExecutor):
    """A translation unit with a program of the host that computes the same.

    On a device that shares no memory with the host Loopy generates code for it.
    """

    content: HostProgram

    @property
    def program(self) -> HostProgram:
        return self.content

    def executor_like(self, usual: Any) -> Any:
        return with_program(usual, self.content)


def for_target(unit: lp.TranslationUnit, target: Any) -> lp.TranslationUnit:
    """Return a unit for another target, with what its executor needs."""
    if isinstance(unit, UnitWithExecutor):
        return unit.for_target(target)
    return unit.copy(target=target)
