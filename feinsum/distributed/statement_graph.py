"""Statements: the graph of groups that a plan computes, dense and sparse.

A contraction path and a program are graphs of groups, whose results several other
groups may read. Entries of a sparse operand never move: all groups that walk them are
computed where they are. A result with exactly its indices has its pattern, and is
stored like it::

    S[j,i] = T[i,j] * U[i,a] * V[j,a]    walks T[i,j]; S has the pattern of T
    O[i,b] = S[j,i] * W[j,b]             walks T[i,j], too, and O is dense
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Annotated, Any

import numpy as np
from constantdict import constantdict
from pydantic import Field

from feinsum.distributed.distribution import make_notation_error, name_violations
from feinsum.distributed.groups import Access, Group, get_shape
from feinsum.errors import PlanError
from feinsum.ir.operand import Violation
from feinsum.records.document import Part


@dataclass(frozen=True)
class Statements(Part):
    """A directed acyclic graph of einsums, in an order in which they can be computed.

    Args:
        groups: the einsums, each with its own result.
        extents: extent of every index; a name has one extent across all statements.
        dtypes: dtype of every given tensor, as numpy writes it.
        outputs: results to keep; all others are dropped after their last use.
        nonzeros: entries of every sparse operand, which :meth:`check` requires to be
            known; other operands are dense.
    """

    groups: tuple[Group, ...]
    extents: Mapping[str, int]
    dtypes: Mapping[str, str]
    outputs: tuple[str, ...]
    nonzeros: Annotated[Mapping[str, int | None], Field(exclude_if=operator.not_)] = (
        constantdict()
    )

    sequences = ("groups", "outputs")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("extents", "dtypes", "nonzeros"):
            pairs = sorted(getattr(self, name).items())
            object.__setattr__(self, name, constantdict(pairs))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of all results."""
        return np.result_type(*self.dtypes.values())

    @cached_property
    def last_use(self) -> dict[str, int]:
        """The number of the last group that reads each tensor."""
        return {
            a.tensor: k for k, group in enumerate(self.groups) for a in group.inputs
        }

    @cached_property
    def patterns(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """For each sparse tensor, the operand with its pattern, and its axes.

        These are, for each axis of the operand, the matching axis of the tensor.
        """
        patterns: dict[str, tuple[str, tuple[int, ...]]] = {}
        for group in self.groups:
            output = group.output
            for access in group.inputs:
                if access.tensor in self.nonzeros:
                    patterns[access.tensor] = (
                        access.tensor,
                        (*range(len(access.indices)),),
                    )
                has_pattern = sorted(access.indices) == sorted(output.indices)
                if access.tensor in patterns and has_pattern:
                    operand, axes = patterns[access.tensor]
                    transposed = (output.indices.index(access.indices[k]) for k in axes)
                    patterns[output.tensor] = operand, tuple(transposed)
        return patterns

    @cached_property
    def walked(self) -> tuple[Access | None, ...]:
        """For each group the sparse operand whose entries it walks, if it does."""

        def find_walked(group: Group) -> Access | None:
            for access in group.inputs:
                if access.tensor in self.patterns:
                    operand, axes = self.patterns[access.tensor]
                    return Access(operand, tuple(access.indices[k] for k in axes))
            return None

        return tuple(map(find_walked, self.groups))

    @cached_property
    def density(self) -> Mapping[str, Fraction]:
        """The share of entries that each sparse tensor stores."""
        shares = {
            access.tensor: Fraction(
                self.nonzeros[access.tensor] or 0,
                max(1, prod(get_shape(access, self.extents))),
            )
            for access in self.walked
            if access is not None
        }
        return {name: shares[operand] for name, (operand, _) in self.patterns.items()}

    def check(self) -> Statements:
        """Return the statements themselves.

        Raises:
            PlanError: naming every rule that is broken.
        """
        broken = list(find_statement_violations(self))
        # sparse operands have sizes only in statements that fit together
        if broken := broken or list(find_sparse_violations(self)):
            text = "; ".join(v.message for v in broken)
            rules = tuple(dict.fromkeys(v.rule for v in broken))
            raise PlanError(f"ill-formed statements: {text}", rules=rules)
        return self

    def __str__(self) -> str:
        return "\n".join(map(str, self.groups))


def statements(
    lines: Sequence[str], shapes: Mapping[str, Sequence[int]], *,
    dtype: Any = "f8", outputs: Sequence[str] | None = None,
    nonzeros: Mapping[str, int] | None = None,
) -> Statements:  # fmt: skip
    """Parse statements from lines such as ``"T[i,k] = A[i,j] * B[j,k]"``.

    Args:
        lines: one statement each; indices missing on the left side are summed.
        shapes: shape of every given tensor.
        dtype: dtype of these tensors.
        outputs: results to keep; by default those that no statement reads.
        nonzeros: entries of every sparse tensor, by name. These are stored as for
            :func:`feinsum.plan`, and the given array has any sparse format.

    Raises:
        PlanError: with the rule ``statements`` for lines that cannot be parsed or are
            wrong; with ``sparse`` for an impossible number of entries, or a statement
            that reads two sparse tensors.

    >>> both = statements(
    ...     ["Q[s,h] = X[s,a] * V[a,h]", "K[s,h] = X[s,a] * W[a,h]"],
    ...     {"X": (6, 4), "V": (4, 3), "W": (4, 3)},
    ... )
    >>> both.outputs, both.extents["h"]
    (('Q', 'K'), 3)
    """
    groups = tuple(map(_parse_group, lines))
    results = [group.output.tensor for group in groups]
    reads = [access for group in groups for access in group.inputs]
    extents: dict[str, int] = {}
    for access in reads:
        # a shape of another length is reported below, with its statement
        axes = zip(access.indices, shapes.get(access.tensor, ()), strict=False)
        for index, extent in axes:
            extents.setdefault(index, extent)
    read = {access.tensor for access in reads}
    unread = [tensor for tensor in results if tensor not in read]
    dtypes = {t: np.dtype(dtype).str for t in shapes}
    wanted = tuple(unread if outputs is None else outputs)
    parsed = Statements(
        groups, extents, dtypes, wanted, read_nonzeros(nonzeros)
    ).check()
    for tensor in sorted(read - {*results}):
        _require_shape(parsed, tensor, shapes[tensor])
    return parsed


def read_nonzeros(nonzeros: object) -> Mapping[str, int]:
    """Return numbers of entries by operand; none by default.

    Raises:
        PlanError: with the rule ``sparse``, for anything else.
    """
    if nonzeros is None:
        return {}
    if isinstance(nonzeros, Mapping):
        return {name: as_count(n_entries) for name, n_entries in nonzeros.items()}
    raise PlanError(
        f"nonzeros={nonzeros!r:.80} of statements; expected numbers by operand, such "
        "as {'T': 3000}",
        rules=("sparse",),
    )


def as_count(value: Any) -> Any:
    """Return an integer of any type as Python's; anything else as it is, for checks.

    >>> as_count(np.int64(3000)), as_count("3000")
    (3000, '3000')
    """
    return operator.index(value) if isinstance(value, np.integer) else value


def _parse_group(line: str) -> Group:
    output_text, equals, product_text = line.partition("=")
    inputs = tuple(_parse_access(term, line) for term in product_text.split("*"))
    if not equals:
        raise _make_parse_error(line)
    return Group(inputs, _parse_access(output_text, line))


def _parse_access(term: str, line: str) -> Access:
    name, bracket, index_text = term.strip().partition("[")
    indices = [i.strip() for i in index_text.rstrip("]").split(",")] if bracket else []
    if indices == [""]:
        indices = []
    is_closed = index_text.endswith("]") == bool(bracket)
    if not (name.isidentifier() and is_closed and all(map(str.isidentifier, indices))):
        raise _make_parse_error(line)
    return Access(name, tuple(indices))


def _make_parse_error(line: str) -> PlanError:
    expected = "such as 'T[i,k] = A[i,j] * B[j,k]'"
    return make_notation_error("statement", line, expected, rules=("statements",))


def _require_shape(parsed: Statements, tensor: str, shape: Sequence[int]) -> None:
    for group in parsed.groups:
        for access in group.inputs:
            expected = get_shape(access, parsed.extents)
            if access.tensor == tensor and expected != tuple(shape):
                raise PlanError(
                    f"{access} has shape {expected} by its indices; the shape of "
                    f"{tensor} is {tuple(shape)}",
                    rules=("statements",),
                )


def find_statement_violations(graph: Statements) -> Iterator[Violation]:
    """Yield every violation; all have the rule ``statements``."""
    return name_violations("statements", _find_statement_problems(graph))


def _find_statement_problems(graph: Statements) -> Iterator[str]:
    # the other rules, and the dtype of results, need at least one of each
    if not graph.groups or not graph.dtypes:
        yield "there are none, or no tensors are given; expected one statement or more"
        return
    for tensor, dtype in graph.dtypes.items():
        if not _is_dtype(dtype):
            yield f"{tensor} has dtype {dtype!r}; expected one of numpy's numbers"
    for index, extent in graph.extents.items():
        if extent < 0:
            yield f"index {index} has extent {extent}; expected an integer from 0"
    shapes: dict[str, tuple[int | None, ...]] = {}
    computed: set[str] = set()
    results = {group.output.tensor for group in graph.groups}
    for group in graph.groups:
        name = group.output.tensor
        if not group.inputs:
            yield f"{name} is of no tensors"
        for access in group.inputs:
            if access.tensor not in graph.dtypes and access.tensor not in computed:
                when = "only made later" if access.tensor in results else "not there"
                yield f"{name} reads {access.tensor}, which is {when}"
        for access in group.accesses:
            yield from _find_access_problems(access, graph.extents, shapes)
        inputs = {i for access in group.inputs for i in access.indices}
        for index in sorted(set(group.output.indices) - inputs):
            yield f"{name} has index {index}, which no tensor that it reads has"
        if name in computed or name in graph.dtypes:
            yield f"{name} is made, or given, more than once"
        computed.add(name)
    read = {access.tensor for group in graph.groups for access in group.inputs}
    for name in graph.outputs:
        if name not in computed:
            yield f"{name} is wanted, and no statement makes it"
    for name in sorted(computed - read - set(graph.outputs)):
        yield f"{name} is neither read nor wanted"
    for name in sorted(set(graph.dtypes) - read):
        yield f"{name} is given, and no statement reads it"


def _find_access_problems(
    access: Access, extents: Mapping[str, int], shapes: dict[str, Any]
) -> Iterator[str]:
    """Yield the problems of one access; ``shapes`` collects the shapes seen so far."""
    if len(set(access.indices)) != len(access.indices):
        yield f"{access} has an index twice; take the diagonal before"
    if missing := sorted(set(access.indices) - set(extents)):
        yield f"there is no extent of {', '.join(missing)}"
    shape = tuple(extents.get(i) for i in access.indices)
    if shapes.setdefault(access.tensor, shape) != shape:
        yield f"{access} has shape {shape}; it was {shapes[access.tensor]} before"


def find_sparse_violations(graph: Statements) -> Iterator[Violation]:
    """Yield the violations of sparse operands; all have the rule ``sparse``."""
    return name_violations("sparse", _find_sparse_problems(graph))


def _find_sparse_problems(graph: Statements) -> Iterator[str]:
    reads = {access.tensor: access for g in graph.groups for access in g.inputs}
    for tensor, nonzeros in graph.nonzeros.items():
        if tensor not in graph.dtypes:
            yield f"nonzeros of {tensor}; the operands are {', '.join(graph.dtypes)}"
            continue
        size = prod(get_shape(reads[tensor], graph.extents))
        if not isinstance(nonzeros, int) or not 0 <= nonzeros <= size:
            yield (
                f"{tensor} is sparse, with nonzeros={nonzeros!r:.80}; expected its "
                f"number of entries, from 0 to {size}"
            )
    for group in graph.groups:
        read = [a.tensor for a in group.inputs if a.tensor in graph.patterns]
        if len(read) > 1:
            yield (
                f"{group.output} reads {' and '.join(read)}, which are sparse; "
                "expected one sparse tensor: pass others as dense arrays"
            )


def _is_dtype(text: str) -> bool:
    try:
        return np.dtype(text).kind in "fciub"
    except (TypeError, ValueError):
        return False
