"""Choose the cheapest partition of each statement of a program, by EinDecomp's costs.

There are three methods: exact elimination over all partitions; EinDecomp's dynamic
program, if every result has one reader; and its linearization along longest paths. The
last two are for comparison.

Source: EinDecomp, section 7 (dynamic program and linearization).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import comb, prod
from typing import TypeAlias

import numpy as np
from constantdict import constantdict
from numpy.typing import NDArray

from feinsum.distributed.elimination import Table, least_sum
from feinsum.distributed.grids import (
    build_cost_tables,
    compute_aggregation,
    compute_repartition,
    compute_statement_costs,
    find_largest_grids,
    order_by_first_use,
)
from feinsum.distributed.groups import Group
from feinsum.distributed.program_plan import build_statements, qualify_index
from feinsum.errors import ProgramError
from feinsum.ir.program import Program
from feinsum.programs.stages import find_equal_indices

Partition: TypeAlias = constantdict[str, int]
"""Parts of each index of a statement: one kernel call per combination of parts."""
Grids = NDArray[np.int64]
"""Parts of each index of a statement, with a row for each partition."""
Choices = Mapping[str, Grids]
"""Candidate partitions of each statement, by its result."""
Edge = tuple[str, str, int]
"""Producer, consumer, and the consumer's operand."""


def count_partitions(n_indices: int, p: int) -> int:
    """Count the partitions with exactly ``p`` calls, in powers of two.

    Raises:
        ProgramError: if ``p`` is not a power of two.

    Source: EinDecomp, section 8.1; the list for p = 8 in section 8.2 lacks two of them.

    >>> count_partitions(6, 1024), count_partitions(3, 8)
    (3003, 10)
    """
    if p < 1 or p & (p - 1):
        raise ProgramError(f"partitions are counted for powers of two, got {p}")
    # stars and bars: the exponents of the parts add up to that of p
    exponent = p.bit_length() - 1
    return comb(exponent + n_indices - 1, exponent)


class Model:
    """EinDecomp's cost model of one program, in elements.

    Raises:
        ProgramError: if a size parameter has no value.
    """

    def __init__(self, program: Program, sizes: Mapping[str, int]) -> None:
        self.program = program
        statements = build_statements(program, sizes)
        self.extents = statements.extents
        self._groups = {group.output.tensor: group for group in statements.groups}
        self._indices = {
            n: order_by_first_use(group) for n, group in self._groups.items()
        }

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Return every operand that is the result of a statement."""
        producers = self.program.producers
        return tuple(
            (name, statement.result, position)
            for statement in self.program.statements
            for position, name in enumerate(statement.operands)
            if name in producers
        )

    def list_choices(self, processes: int) -> dict[str, Grids]:
        """Return each statement's partitions with this many calls, or with the most."""
        return {
            name: find_largest_grids(processes, indices, self.extents)
            for name, indices in self._indices.items()
        }

    def build_tables(
        self,
        choices: Choices,
        makers: Mapping[str, Collection[str]] | None = None,
    ) -> list[Table]:
        """Return the cost tables of statements; see
        :func:`feinsum.distributed.grids`.
        """
        groups = [self._groups[name] for name in choices]
        return build_cost_tables(groups, self.extents, choices, makers)

    def compute_statement_cost(self, name: str, grids: Grids) -> NDArray[np.float64]:
        """Return the cost of a statement, whatever the partition of its operands."""
        group, indices = self._groups[name], self._indices[name]
        return compute_statement_costs(group, indices, grids, self.extents)

    def compute_aggregation(self, name: str, grids: Grids) -> NDArray[np.float64]:
        """Return the part of it that is reduced elsewhere."""
        group = self._groups[name]
        output = self._get_columns(name, grids, group.output.indices)
        lengths = np.array([self.extents[i] for i in group.output.indices], float)
        summed = self._get_columns(name, grids, group.summed)
        return compute_aggregation(grids, summed, (lengths / output).prod(axis=-1))

    def compute_repartition(
        self, edge: Edge, producer: Grids, consumer: Grids
    ) -> NDArray[np.float64]:
        """Return the cost of an edge: rows for producers, columns for consumers."""
        source, target, position = edge
        output: Group = self._groups[source]
        access = self._groups[target].inputs[position]
        produced = self._get_columns(source, producer, output.output.indices)
        consumed = self._get_columns(target, consumer, access.indices)
        extents = [self.extents[i] for i in output.output.indices]
        return compute_repartition(consumed[None, :, :], produced[:, None, :], extents)

    def read_partition(self, name: str, grid: Sequence[int]) -> Partition:
        """Return a row of grids, by the statement's own indices."""
        parts = dict(zip(self._indices[name], map(int, grid), strict=True))
        statement = self.program.producers[name]
        return constantdict(
            {i: parts[qualify_index(name, i)] for i in statement.indices}
        )

    def write_grid(self, name: str, partition: Partition) -> Grids:
        """Return the inverse of :meth:`read_partition`: a grid of one row."""
        parts = {qualify_index(name, i): n for i, n in partition.items()}
        return np.array([[parts[i] for i in self._indices[name]]], np.int64)

    def _get_columns(self, name: str, grids: Grids, indices: Sequence[str]) -> Grids:
        return grids[:, [self._indices[name].index(i) for i in indices]]


@dataclass(frozen=True)
class Decomposition:
    """The partitions of all statements of a program.

    Attributes:
        sizes: values of the size parameters.
        partitions: partition of each statement, by its result.
    """

    program: Program
    sizes: Mapping[str, int]
    partitions: Mapping[str, Partition]

    @cached_property
    def _model(self) -> Model:
        return Model(self.program, self.sizes)

    @cached_property
    def _grids(self) -> Mapping[str, Grids]:
        return {
            n: self._model.write_grid(n, parts) for n, parts in self.partitions.items()
        }

    @property
    def join(self) -> float:
        """Return the elements of all blocks that kernel calls read."""
        total = sum(
            self._model.compute_statement_cost(n, grid)[0]
            for n, grid in self._grids.items()
        )
        # the statement's cost is the sum of both
        return float(total) - self.aggregation

    @property
    def aggregation(self) -> float:
        """Return the elements of partial results that are reduced elsewhere."""
        costs = (
            self._model.compute_aggregation(n, g)[0] for n, g in self._grids.items()
        )
        return float(sum(costs))

    @property
    def repartition(self) -> float:
        """Return the elements that move because readers partition arrays
        differently.
        """
        return float(
            sum(
                self._model.compute_repartition(
                    edge, *(self._grids[n] for n in edge[:2])
                )[0, 0]
                for edge in self._model.edges
            )
        )

    @property
    def cost(self) -> float:
        return self.join + self.aggregation + self.repartition

    @property
    def calls(self) -> Mapping[str, int]:
        """Return the number of kernel calls of each statement."""
        return {name: prod(parts.values()) for name, parts in self.partitions.items()}

    def __str__(self) -> str:
        total = (
            f"{self.cost:,.0f} elements at most: join {self.join:,.0f}, aggregation "
            f"{self.aggregation:,.0f}, repartition {self.repartition:,.0f}"
        )
        lines = [total]
        for statement in self.program.statements:
            parts = self.partitions[statement.result]
            cut = " ".join(f"{i}/{n}" for i, n in parts.items() if n > 1) or "whole"
            lines.append(f"  {statement.result}[{','.join(statement.output)}]: {cut}")
        return "\n".join(lines)


def decompose(
    program: Program,
    processes: int,
    *,
    sizes: Mapping[str, int] | None = None,
    method: str = "exact",
) -> Decomposition:
    """Partition a program for a number of processes, minimizing EinDecomp's costs.

    Args:
        sizes: values of the size parameters.
        method: one of :data:`METHODS`: ``exact``, ``tree`` (only if every result has at
            most one reader) or ``linear``.

    Raises:
        ProgramError: if the program cannot be partitioned this way.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.einsum("ij,jk->ik", array("A", (8, 8)), array("B", (8, 8)), name="C")
    >>> print(decompose(p.build(), 16))
    448 elements at most: join 384, aggregation 64, repartition 0
      C[i,k]: i/2 k/4 j/2
    """
    if processes < 1:
        raise ProgramError(
            f"a program is partitioned for at least 1 process, got {processes}"
        )
    if method not in METHODS:
        raise ProgramError(
            f"there is no method {method!r}; expected one of {', '.join(METHODS)}"
        )
    model = Model(program, sizes or {})
    choices = model.list_choices(processes)
    chosen = METHODS[method](model, choices)
    # back from the unique names of indices in plans to the program's own
    partitions = {n: model.read_partition(n, choices[n][k]) for n, k in chosen.items()}
    return Decomposition(program, constantdict(sizes or {}), constantdict(partitions))


def split_along(
    program: Program,
    processes: int,
    array: str,
    axis: int,
    *,
    also: Sequence[tuple[str, int]] = (),
    sizes: Mapping[str, int] | None = None,
) -> Decomposition:
    """Partition every statement along one axis of an array, as is done by hand.

    Along the tokens of a batch this is data parallelism; along the heads of an
    attention, a split by heads. A statement without such an index is partitioned along
    its first index that is long enough.

    Args:
        also: more axes of arrays, for statements that lack the first. Attention heads
            and the hidden features of the layers after them give Megatron's plan.

    Raises:
        ProgramError: if nothing reads that array.

    >>> from feinsum.programs.builder import program
    >>> from feinsum.programs.macros import multi_head_attention
    >>> p = program()
    >>> _ = multi_head_attention(p, p.input("X", (16, 16)), heads=4, entries=4)
    >>> heads = split_along(p.build(), 4, "WQ", 1)
    >>> heads.partitions["r9"]["h"], heads.cost >= decompose(p.build(), 4).cost
    (4, True)
    """
    model = Model(program, sizes or {})
    same = find_equal_indices(program.statements)
    # indices that run along the axis, in any statement, by equal positions
    seeds = {
        same[statement.result, term[k]]
        for statement in program.statements
        for name, term in zip(statement.operands, statement.inputs, strict=True)
        for name_of_array, k in ((array, axis), *also)
        if name == name_of_array and -len(term) <= k < len(term)
    }
    read = {
        (name, k)
        for statement in program.statements
        for name, term in zip(statement.operands, statement.inputs, strict=True)
        for k in range(-len(term), len(term))
    }
    for name_of_array, k in ((array, axis), *also):
        if (name_of_array, k) not in read:
            raise ProgramError(
                f"no statement reads axis {k} of an array {name_of_array!r}"
            )
    chosen = {}
    for statement in program.statements:
        extents = {
            i: model.extents[qualify_index(statement.result, i)]
            for i in statement.indices
        }
        chosen_indices = [
            i for i in statement.indices if same[statement.result, i] in seeds
        ]
        # an index that is too short would leave processes without work
        long = [i for i in statement.indices if extents[i] >= processes]
        cut = (chosen_indices or long or list(statement.indices))[0]
        parts = {
            i: min(processes, extents[i]) if i == cut else 1 for i in statement.indices
        }
        chosen[statement.result] = constantdict(parts)
    return Decomposition(program, constantdict(sizes or {}), constantdict(chosen))


def _choose_exactly(model: Model, choices: Choices) -> dict[str, int]:
    return _minimize(choices, model.build_tables(choices))


def _minimize(choices: Choices, tables: Sequence[Table]) -> dict[str, int]:
    """Return the choice of each statement; tables have internal variables, too."""
    _, values = least_sum(tables)
    return {name: values[name] for name in choices}


def _choose_on_tree(model: Model, choices: Choices) -> dict[str, int]:
    """Minimize bottom-up: the cost of each partition of a result, with all below it."""
    for name in choices:
        if len(readers := model.program.readers(name)) > 1:
            raise ProgramError(
                f"result {name!r} has {len(readers)} readers, and the dynamic program "
                "requires a tree; use method='exact'"
            )
    least: dict[str, NDArray[np.float64]] = {}
    behind: dict[str, dict[str, NDArray[np.int64]]] = {}
    for name, grids in choices.items():  # in the order of dataflow
        least[name], behind[name] = model.compute_statement_cost(name, grids), {}
        edges = [edge for edge in model.edges if edge[1] == name]
        for producer in dict.fromkeys(edge[0] for edge in edges):
            costs = least[producer][:, None] + sum(
                model.compute_repartition(edge, choices[producer], grids)
                for edge in edges
                if edge[0] == producer
            )
            least[name] = least[name] + costs.min(axis=0)
            # for each partition of the reader, the best one of the producer
            behind[name][producer] = costs.argmin(axis=0)
    # the tree may be a forest: several outputs
    roots = [name for name in choices if not model.program.readers(name)]
    chosen: dict[str, int] = {}
    todo = [(root, int(least[root].argmin())) for root in roots]
    while todo:
        name, k = todo.pop()
        chosen[name] = k
        todo += [(producer, int(best[k])) for producer, best in behind[name].items()]
    return chosen


def _choose_linearly(model: Model, choices: Choices) -> dict[str, int]:
    """Minimize along one longest path after another, ignoring costs off the path."""
    chosen: dict[str, int] = {}
    while left := [name for name in choices if name not in chosen]:
        path = _find_longest_path(model, left)
        # costs count between neighbors on the path alone
        before = {name: [producer] for producer, name in pairwise(path)} | {path[0]: []}
        on_path = {name: choices[name] for name in path}
        chosen |= _minimize(on_path, model.build_tables(on_path, before))
    return chosen


def _find_longest_path(model: Model, left: Sequence[str]) -> list[str]:
    among = set(left)
    longest: dict[str, list[str]] = {}
    for name in left:  # in the order of dataflow
        before = [e[0] for e in model.edges if e[1] == name and e[0] in among]
        best = max((longest[producer] for producer in before), key=len, default=[])
        longest[name] = [*best, name]
    return max(longest.values(), key=len)


METHODS: Mapping[str, Callable[[Model, Choices], dict[str, int]]] = {
    "exact": _choose_exactly,
    "tree": _choose_on_tree,
    "linear": _choose_linearly,
}
"""Methods of minimization, by name."""
