"""Statements: einsums over given operands and results of earlier einsums.

A contraction path splits one einsum into such statements. Others have several results,
and results that several statements read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from constantdict import constantdict

from feinsum.distributed.groups import Access, Group
from feinsum.errors import PlanError
from feinsum.ir.operand import Violation
from feinsum.records.document import STRICT


@dataclass(frozen=True)
class Statements:
    """A directed acyclic graph of einsums, in an order in which they can be computed.

    Args:
        groups: the einsums, each with its own result.
        extents: extent of every index; a name has one extent across all statements.
        dtypes: dtype of every given tensor, as numpy writes it.
        outputs: results to keep; all others are dropped after their last use.
    """

    __pydantic_config__ = STRICT

    groups: tuple[Group, ...]
    extents: Mapping[str, int]
    dtypes: Mapping[str, str]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        object.__setattr__(self, "extents", constantdict(sorted(self.extents.items())))
        object.__setattr__(self, "dtypes", constantdict(sorted(self.dtypes.items())))
        object.__setattr__(self, "outputs", tuple(self.outputs))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of all results."""
        return np.result_type(*self.dtypes.values())

    def check(self) -> Statements:
        """The statements themselves.

        Raises:
            PlanError: naming every rule that is broken.
        """
        broken = list(statement_violations(self))
        if broken:
            text = "; ".join(v.message for v in broken)
            rules = tuple(dict.fromkeys(v.rule for v in broken))
            raise PlanError(f"ill-formed statements: {text}", rules=rules)
        return self

    def __str__(self) -> str:
        return "\n".join(map(str, self.groups))


def statements(
    lines: Sequence[str], shapes: Mapping[str, Sequence[int]], *,
    dtype: Any = "f8", outputs: Sequence[str] | None = None,
) -> Statements:  # fmt: skip
    """Parse statements from lines such as ``"T[i,k] = A[i,j] * B[j,k]"``.

    Args:
        lines: one statement each; indices missing on the left side are summed.
        shapes: shape of every given tensor.
        dtype: dtype of these tensors.
        outputs: results to keep; by default those that no statement reads.

    Raises:
        PlanError: with the rule ``statements`` for lines that cannot be parsed or are
            wrong.

    >>> both = statements(
    ...     ["Q[s,h] = X[s,a] * V[a,h]", "K[s,h] = X[s,a] * W[a,h]"],
    ...     {"X": (6, 4), "V": (4, 3), "W": (4, 3)},
    ... )
    >>> both.outputs, both.extents["h"]
    (('Q', 'K'), 3)
    """
    groups = tuple(_group(line) for line in lines)
    made = {group.output.tensor for group in groups}
    read = {access.tensor for group in groups for access in group.inputs}
    extents: dict[str, int] = {}
    for group in groups:
        for access in group.inputs:
            if access.tensor in shapes:
                pairs = zip(access.indices, shapes[access.tensor], strict=False)
                for index, extent in pairs:
                    extents.setdefault(index, extent)
    wanted = [g.output.tensor for g in groups if g.output.tensor not in read]
    dtypes = {t: np.dtype(dtype).str for t in shapes}
    found = Statements(
        groups, extents, dtypes, tuple(wanted if outputs is None else outputs)
    ).check()
    for tensor in sorted(read - made):
        _require_shape(found, tensor, shapes[tensor])
    return found


def _group(line: str) -> Group:
    left, equals, right = line.partition("=")
    terms = [_access(term, line) for term in right.split("*")]
    if not equals:
        raise _unreadable(line)
    return Group(tuple(terms), _access(left, line))


def _access(term: str, line: str) -> Access:
    name, bracket, rest = term.strip().partition("[")
    indices = [i.strip() for i in rest.rstrip("]").split(",")] if bracket else []
    is_read = name.isidentifier() and rest.endswith("]") == bool(bracket)
    if indices == [""]:
        indices = []
    if not is_read or not all(i.isidentifier() for i in indices):
        raise _unreadable(line)
    return Access(name, tuple(indices))


def _unreadable(line: str) -> PlanError:
    return PlanError(
        f"statement {line!r}; expected such as 'T[i,k] = A[i,j] * B[j,k]'",
        rules=("statements",),
    )


def _require_shape(found: Statements, tensor: str, shape: Sequence[int]) -> None:
    for group in found.groups:
        for access in group.inputs:
            if access.tensor == tensor:
                expected = tuple(found.extents[i] for i in access.indices)
                if expected != tuple(shape):
                    raise PlanError(
                        f"{access} has shape {expected} by its indices; the shape of "
                        f"{tensor} is {tuple(shape)}",
                        rules=("statements",),
                    )


def statement_violations(found: Statements) -> Iterator[Violation]:
    """Every violation; all have the rule ``statements``."""
    for message in _wrong(found):
        yield Violation("statements", message)


def _wrong(found: Statements) -> Iterator[str]:
    if not found.groups or not found.dtypes:
        yield "there are none, or no tensors are given; expected one statement or more"
        return
    shapes: dict[str, tuple[int | None, ...]] = {}
    made: set[str] = set()
    later = {group.output.tensor for group in found.groups}
    for tensor, dtype in found.dtypes.items():
        if not _is_dtype(dtype):
            yield f"{tensor} has dtype {dtype!r}; expected one of numpy's numbers"
    for index, extent in found.extents.items():
        if extent < 0:
            yield f"index {index} has extent {extent}; expected an integer from 0"
    for group in found.groups:
        name = group.output.tensor
        if not group.inputs:
            yield f"{name} is of no tensors"
        for access in group.inputs:
            if access.tensor not in found.dtypes and access.tensor not in made:
                when = "only made later" if access.tensor in later else "not there"
                yield f"{name} reads {access.tensor}, which is {when}"
        for access in (*group.inputs, group.output):
            yield from _wrong_access(access, found.extents, shapes)
        read = {i for access in group.inputs for i in access.indices}
        for index in sorted(set(group.output.indices) - read):
            yield f"{name} has index {index}, which no tensor that it reads has"
        if name in made or name in found.dtypes:
            yield f"{name} is made, or given, more than once"
        made.add(name)
    read = {access.tensor for group in found.groups for access in group.inputs}
    for name in found.outputs:
        if name not in made:
            yield f"{name} is wanted, and no statement makes it"
    for name in sorted(made - read - set(found.outputs)):
        yield f"{name} is neither read nor wanted"
    for name in sorted(set(found.dtypes) - read):
        yield f"{name} is given, and no statement reads it"


def _wrong_access(
    access: Access, extents: Mapping[str, int], shapes: dict[str, Any]
) -> Iterator[str]:
    if len(set(access.indices)) != len(access.indices):
        yield f"{access} has an index twice; take the diagonal before"
    if missing := sorted(set(access.indices) - set(extents)):
        yield f"there is no extent of {', '.join(missing)}"
    shape = tuple(extents.get(i) for i in access.indices)
    if shapes.setdefault(access.tensor, shape) != shape:
        yield f"{access} has shape {shape}; it was {shapes[access.tensor]} before"


def _is_dtype(text: str) -> bool:
    try:
        return np.dtype(text).kind in "fciub"
    except (TypeError, ValueError):
        return False
