"""Loops over cells, and whether several of their cells can be computed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import islpy as isl
import loopy as lp
import numpy as np
from loopy.symbolic import (
    IdentityMapper,
    get_dependencies,
    pw_aff_to_expr,
)
from pymbolic import primitives as p

from feinsum.errors import TransformError
from feinsum.raising.affine import are_distinct_places, strides_of

MOST_BYTES = 1 << 18
"""Maximum bytes of the values of a batch, which are on the stack."""

Expression: TypeAlias = Any


def loop_around(kernel: lp.LoopKernel, called: str) -> str:
    """The one loop around the call."""
    calls = [i for i in kernel.instructions if isinstance(i, lp.CallInstruction)]
    around = frozenset[str]().union(*(insn.within_inames for insn in calls))
    if len(calls) != 1 or len(around) != 1:
        raise TransformError(
            f"kernel {called!r} is called {len(calls)} times, in the loops "
            f"{sorted(around)}; expected one call in one loop over cells"
        )
    (loop,) = around
    return loop


@dataclass(frozen=True)
class CellLoop:
    """A loop over cells without calls."""

    kernel: lp.LoopKernel
    loop: str
    width: int

    @cached_property
    def order(self) -> list[lp.Assignment]:
        """The instructions, each after those that it waits for."""
        kernel = self.kernel
        place = {insn.id: k for k, insn in enumerate(kernel.instructions)}
        left = sorted(kernel.instructions, key=lambda insn: place[insn.id])
        done: list[lp.Assignment] = []
        ids: set[str] = set()
        while left:
            ready = next((i for i in left if i.depends_on <= ids), None)
            if ready is None:
                raise TransformError("its instructions depend on each other in a cycle")
            left.remove(ready)
            ids.add(ready.id)
            done.append(ready)
        return done

    @cached_property
    def private(self) -> dict[str, lp.TemporaryVariable]:
        """The private values of each cell."""
        written = self.kernel.get_written_variables()
        known = self.kernel.temporary_variables
        return {n: t for n, t in known.items() if n in written}

    @cached_property
    def bounds(self) -> tuple[Expression, Expression]:
        """The first cell and the last one."""
        found = self.kernel.get_iname_bounds(self.loop)
        ends = found.lower_bound_pw_aff, found.upper_bound_pw_aff
        if any(len(end.get_pieces()) != 1 for end in ends):
            raise TransformError(f"loop {self.loop!r} has no plain bounds")
        first, last = (pw_aff_to_expr(end) for end in ends)
        return first, last

    def check(self) -> None:
        """Raise the error if the cells cannot be computed together."""
        if self.kernel.substitutions:
            raise TransformError("the kernel has substitution rules")
        for insn in self.order:
            is_plain = (
                isinstance(insn, lp.Assignment)
                and not (insn.predicates or insn.atomicity)
                and isinstance(insn.assignee, (p.Variable, p.Subscript))
                and not insn.reduction_inames()
            )
            if not is_plain or self.loop not in insn.within_inames:
                raise TransformError(
                    f"instruction {insn.id!r} is not a plain assignment in the loop "
                    f"{self.loop!r}"
                )
        self._check_domains()
        self._check_arrays()
        for name, temporary in self.private.items():
            self._check_private(name, temporary)
        n_bytes = sum(
            self.width * prod(t.shape) * t.dtype.itemsize for t in self.private.values()
        )
        if n_bytes > MOST_BYTES:
            raise TransformError(
                f"the values of {self.width} cells take {n_bytes} bytes; at most "
                f"{MOST_BYTES} are put on the stack"
            )

    def _check_domains(self) -> None:
        for domain in self.kernel.domains:
            if self.loop in domain.get_var_names(isl.dim_type.param):
                raise TransformError(f"a loop has bounds that depend on {self.loop!r}")
            names = domain.get_var_names(isl.dim_type.set)
            if self.loop in names and len(names) > 1:
                raise TransformError(f"loop {self.loop!r} shares its domain")

    def _check_arrays(self) -> None:
        """An array that is written is written by one instruction, and read only where
        that adds to it.
        """
        arrays = set(self.kernel.arg_dict)
        for insn in self.order:
            (name,) = insn.assignee_var_names()
            if name not in arrays:
                continue
            others = [
                other.id
                for other in self.order
                if other.id != insn.id and name in other.dependency_names()
            ]
            own = _without(insn.expression, insn.assignee)
            indices = _without(insn.assignee, insn.assignee)
            if others or name in get_dependencies((own, *indices)):
                raise TransformError(
                    f"{name!r} is written, and read or written elsewhere; a cell may "
                    "depend on the one before"
                )

    def _check_private(self, name: str, temporary: lp.TemporaryVariable) -> None:
        """Each cell assigns all entries of a value before it reads any."""
        touching = [i for i in self.order if name in i.dependency_names()]
        first = touching[0]
        is_first = (
            name in first.assignee_var_names()
            and name not in get_dependencies(first.expression)
            and temporary.base_storage is None
            and temporary.initializer is None
            and isinstance(temporary.shape, tuple)
            and all(isinstance(n, (int, np.integer)) for n in temporary.shape)
        )
        if not is_first or not self._covers(first, temporary.shape):
            raise TransformError(
                f"not every entry of {name!r} is assigned before it is read in a cell"
            )

    def _covers(self, insn: lp.Assignment, shape: Sequence[int]) -> bool:
        """Whether an assignment to a value has all of its entries."""
        if not shape:
            return True
        inames = insn.within_inames - {self.loop}
        extents = {i: self.kernel.get_constant_iname_length(i) for i in inames}
        places = [strides_of(i, inames) for i in insn.assignee.index_tuple]
        used = [i for place in places if place for i in place.inames]
        return (
            all(place is not None for place in places)
            and len(set(used)) == len(used)
            and all(are_distinct_places(place, extents) for place in places if place)
            and prod(extents[i] for i in used) == prod(shape)
        )


def _without(expression: Expression, part: Expression) -> Any:
    """An expression without the places where a part of it stands; the subscripts of a
    part, of itself.
    """
    if expression is part:
        return getattr(part, "index_tuple", ())
    return _Replacing({part: 0})(expression)


class _Replacing(IdentityMapper):  # type: ignore[misc]
    """Puts other expressions in place of some."""

    def __init__(self, known: Mapping[Expression, Expression]) -> None:
        super().__init__()
        self.known = known

    def map_subscript(self, expr: p.Subscript, /) -> Expression:
        if expr in self.known:
            return self.known[expr]
        return super().map_subscript(expr)

    def map_variable(self, expr: p.Variable, /) -> Expression:
        return self.known.get(expr, expr)
