"""Translation units that are run in another way than Loopy would."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import loopy as lp
from loopy.target.pyopencl_execution import PyOpenCLExecutor

__all__ = ["UnitWithExecutor"]


class UnitWithExecutor(lp.TranslationUnit):  # type: ignore[misc]
    """A translation unit with something that its executor needs.

    It is equal to the plain unit. Whatever is made from it, by a change or by
    pickling, is a plain one, for which that would not be right.
    """

    content: Any

    @classmethod
    def of(cls, unit: lp.TranslationUnit, content: Any) -> Self:
        made = cls(unit.callables_table, unit.target, unit.entrypoints)
        object.__setattr__(made, "content", content)  # the class is frozen
        return made

    @property
    def plain(self) -> lp.TranslationUnit:
        """The unit without what was added."""
        return lp.TranslationUnit(self.callables_table, self.target, self.entrypoints)

    @abstractmethod
    def executor_like(self, usual: PyOpenCLExecutor) -> PyOpenCLExecutor:
        """The executor of this unit for the context of Loopy's own."""

    def copy(self, **changes: Any) -> lp.TranslationUnit:
        return self.plain.copy(**changes)

    def executor(self, *args: Any, **options: Any) -> Any:
        usual = self.plain.executor(*args, **options)
        if type(usual) is not PyOpenCLExecutor or len(self.entrypoints) != 1:
            return usual
        return self.executor_like(usual)

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
