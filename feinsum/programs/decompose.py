"""Decompositions: a partition for each statement of a program, of the least cost.

Three ways: exactly, by elimination over all partitions; by EinDecomp's dynamic program,
where every result has one reader; and by its linearization, one longest path after the
other. The last two are what the first is compared with.

Source: EinDecomp, section 7 (dynamic program and linearization).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from constantdict import constantdict

from feinsum.errors import ProgramError
from feinsum.ir import SizeParam
from feinsum.plans.elimination import Table, least_sum
from feinsum.programs.partition import (
    Partition,
    aggregation_cost,
    join_cost,
    n_calls,
    repartition_cost,
    viable_partitions,
)
from feinsum.programs.places import same_places
from feinsum.programs.program import Program
from feinsum.programs.statement import Statement

__all__ = ["METHODS", "Decomposition", "Model", "decompose", "split_along"]


@dataclass(frozen=True)
class Decomposition:
    """How every statement of a program is cut.

    Attributes:
        sizes: of the size parameters.
        partitions: of each statement, by its result.
    """

    program: Program
    sizes: Mapping[str, int]
    partitions: Mapping[str, Partition]

    @cached_property
    def _model(self) -> Model:
        return Model(self.program, self.sizes)

    @property
    def join(self) -> int:
        """Elements of all blocks that calls read."""
        costs = (join_cost(*self._cut(one)) for one in self.program.statements)
        return sum(costs)

    @property
    def aggregation(self) -> int:
        """Elements of partial results that are reduced elsewhere."""
        costs = (aggregation_cost(*self._cut(one)) for one in self.program.statements)
        return sum(costs)

    @property
    def repartition(self) -> int:
        """Elements that move because a reader cuts an array in another way."""
        return sum(
            self._model.repartition(edge, *(self.partitions[r] for r in edge[:2]))
            for edge in self._model.edges
        )

    @property
    def cost(self) -> int:
        return self.join + self.aggregation + self.repartition

    @property
    def calls(self) -> Mapping[str, int]:
        """Kernel calls of each statement."""
        return {name: n_calls(parts) for name, parts in self.partitions.items()}

    def _cut(self, one: Statement) -> tuple[Statement, Partition, Mapping[str, int]]:
        return one, self.partitions[one.result], self._model.extents(one)

    def __str__(self) -> str:
        total = (
            f"{self.cost:,} elements at most: join {self.join:,}, aggregation "
            f"{self.aggregation:,}, repartition {self.repartition:,}"
        )
        lines = [total]
        for one in self.program.statements:
            parts = self.partitions[one.result]
            cut = " ".join(f"{i}/{n}" for i, n in parts.items() if n > 1) or "whole"
            lines.append(f"  {one.result}[{','.join(one.output)}]: {cut}")
        return "\n".join(lines)


Edge = tuple[str, str, int]
"""Producer, consumer, and the consumer's operand."""


class Model:
    """EinDecomp's costs of one program."""

    def __init__(self, program: Program, sizes: Mapping[str, int]) -> None:
        self.program = program
        self._sizes = sizes
        self._extents: dict[str, Mapping[str, int]] = {}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every operand that is a result."""
        producers = self.program.producers
        return tuple(
            (name, one.result, position)
            for one in self.program.statements
            for position, name in enumerate(one.operands)
            if name in producers
        )

    def extents(self, one: Statement) -> Mapping[str, int]:
        """
        Raises:
            ProgramError: if the value of a size parameter is not known.
        """
        if one.result not in self._extents:
            self._extents[one.result] = {
                index: self._value(extent)
                for index, extent in self.program.extents(one).items()
            }
        return self._extents[one.result]

    def _value(self, extent: int | SizeParam) -> int:
        if isinstance(extent, int):
            return extent
        if extent.name not in self._sizes:
            raise ProgramError(f"size {extent} is not known; give sizes={{...}}")
        return self._sizes[extent.name]

    def own(self, one: Statement, parts: Partition) -> int:
        """What a statement costs however its operands are cut."""
        extents = self.extents(one)
        return join_cost(one, parts, extents) + aggregation_cost(one, parts, extents)

    def repartition(self, edge: Edge, producer: Partition, consumer: Partition) -> int:
        made, read, position = edge
        maker, reader = self.program.producers[made], self.program.producers[read]
        extents = self.extents(maker)
        return repartition_cost(
            [consumer[index] for index in reader.inputs[position]],
            [producer[index] for index in maker.output],
            [extents[index] for index in maker.output],
        )


def decompose(
    program: Program,
    processes: int,
    *,
    sizes: Mapping[str, int] | None = None,
    method: str = "exact",
) -> Decomposition:
    """Cut a program for a number of processes, at the least cost of EinDecomp's model.

    Args:
        processes: a power of two.
        sizes: of the size parameters.
        method: one of :data:`METHODS`: ``exact``, ``tree`` (only if every result has at
            most one reader) or ``linear``.

    Raises:
        ProgramError: if the program cannot be cut so.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.einsum("ij,jk->ik", array("A", (8, 8)), array("B", (8, 8)), name="C")
    >>> print(decompose(p.build(), 16))
    448 elements at most: join 256, aggregation 192, repartition 0
      C[i,k]: i/2 k/2 j/4
    """
    if method not in METHODS:
        raise ProgramError(
            f"there is no method {method!r}; take one of {', '.join(METHODS)}"
        )
    model = Model(program, sizes or {})
    choices = {
        one.result: viable_partitions(one, model.extents(one), processes)
        for one in program.statements
    }
    chosen = METHODS[method](model, choices)
    return Decomposition(program, constantdict(sizes or {}), constantdict(chosen))


def split_along(
    program: Program,
    processes: int,
    array: str,
    axis: int,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Decomposition:
    """Cut every statement along one axis of an array, as people do it by hand.

    Of the tokens of a batch that is data parallelism, of the heads of an attention a
    split by heads. A statement that has no such index is cut along the first index that
    is long enough.

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
    same = same_places(program.statements)
    seeds = {
        same[one.result, term[axis]]
        for one in program.statements
        for name, term in zip(one.operands, one.inputs, strict=True)
        if name == array and -len(term) <= axis < len(term)
    }
    if not seeds:
        raise ProgramError(f"no statement reads axis {axis} of an array {array!r}")
    chosen = {}
    for one in program.statements:
        extents = model.extents(one)
        own = [i for i in one.indices if same[one.result, i] in seeds]
        long = [i for i in one.indices if extents[i] >= processes]
        cut = (own or long or list(one.indices))[0]
        parts = {i: min(processes, extents[i]) if i == cut else 1 for i in one.indices}
        chosen[one.result] = constantdict(parts)
    return Decomposition(program, constantdict(sizes or {}), constantdict(chosen))


Choices = Mapping[str, Sequence[Partition]]


def tables_of(model: Model, choices: Choices, edges: Sequence[Edge]) -> Iterator[Table]:
    """One for each statement, and one for each edge."""
    producers = model.program.producers
    for name, options in choices.items():
        own = [model.own(producers[name], parts) for parts in options]
        yield Table((name,), np.array(own, np.float64))
    for edge in edges:
        made, read, _ = edge
        costs = [
            [model.repartition(edge, producer, consumer) for consumer in choices[read]]
            for producer in choices[made]
        ]
        yield Table((made, read), np.array(costs, np.float64))


def _exact(model: Model, choices: Choices) -> dict[str, Partition]:
    _, found = least_sum([*tables_of(model, choices, model.edges)])
    return {name: choices[name][k] for name, k in found.items()}


def _tree(model: Model, choices: Choices) -> dict[str, Partition]:
    for name in choices:
        if len(readers := model.program.readers(name)) > 1:
            raise ProgramError(
                f"result {name!r} has {len(readers)} readers, and the dynamic program "
                "is for trees; take method='exact'"
            )
    found: dict[str, Partition] = {}
    producers = model.program.producers
    roots = [name for name in choices if not model.program.readers(name)]
    best: dict[str, list[tuple[int, dict[str, int]]]] = {}
    for name in choices:  # in the order of dataflow
        edges = [edge for edge in model.edges if edge[1] == name]
        best[name] = [
            _with_operands(model, choices, best, parts, producers[name], edges)
            for parts in choices[name]
        ]
    for root in roots:
        costs = [cost for cost, _ in best[root]]
        todo = [(root, costs.index(min(costs)))]
        while todo:
            name, k = todo.pop()
            found[name] = choices[name][k]
            todo += best[name][k][1].items()
    return found


def _with_operands(
    model: Model,
    choices: Choices,
    best: Mapping[str, Sequence[tuple[int, Mapping[str, int]]]],
    parts: Partition,
    one: Statement,
    edges: Sequence[Edge],
) -> tuple[int, dict[str, int]]:
    """The least cost of a statement with this partition and of all behind it."""
    total, chosen = model.own(one, parts), dict[str, int]()
    for made in dict.fromkeys(edge[0] for edge in edges):
        uses = [edge for edge in edges if edge[0] == made]
        costs = [
            below[0] + sum(model.repartition(edge, cut, parts) for edge in uses)
            for cut, below in zip(choices[made], best[made], strict=True)
        ]
        chosen[made] = costs.index(min(costs))
        total += min(costs)
    return total, chosen


def _linear(model: Model, choices: Choices) -> dict[str, Partition]:
    """One longest path after the other; what is off the path counts for nothing."""
    found: dict[str, Partition] = {}
    while left := [name for name in choices if name not in found]:
        path = _longest_path(model, left)
        found |= _along(model, choices, path)
    return found


def _longest_path(model: Model, left: Sequence[str]) -> list[str]:
    among = set(left)
    longest: dict[str, list[str]] = {}
    for name in left:  # in the order of dataflow
        before = [e[0] for e in model.edges if e[1] == name and e[0] in among]
        best = max((longest[one] for one in before), key=len, default=[])
        longest[name] = [*best, name]
    return max(longest.values(), key=len)


def _along(model: Model, choices: Choices, path: Sequence[str]) -> dict[str, Partition]:
    on_path = set(pairwise(path))
    edges = [edge for edge in model.edges if edge[:2] in on_path]
    _, chosen = least_sum([*tables_of(model, {n: choices[n] for n in path}, edges)])
    return {name: choices[name][k] for name, k in chosen.items()}


METHODS: Mapping[str, Callable[[Model, Choices], dict[str, Partition]]] = {
    "exact": _exact,
    "tree": _tree,
    "linear": _linear,
}
"""The ways to choose, by name."""
