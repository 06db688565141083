"""The reference interpreter of nests: one product at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from feinsum.nests import (
    Factor,
    Multiply,
    Nest,
    NestStatement,
    Repeat,
    Reset,
    Sizes,
    lower_nest,
    measure_sizes,
)
from feinsum.sparse import CSF

Array: TypeAlias = npt.NDArray[Any]


class Outcome(NamedTuple):
    """The result, and the number of multiplications and additions.

    A sparse result has the values for the entries of the sparse operand, in its order.
    """

    result: Array
    n_operations: int


def interpret(nest: Nest, operands: Sequence[Array | CSF]) -> Outcome:
    """Execute a nest literally. It is slow: for small operands only.

    Args:
        nest: the nest to execute.
        operands: one for each input; the sparse one is a tree.

    Raises:
        InvalidEinsumError: with the rule ``shape``, if operands do not fit the
            parse_network, or the levels of the tree have other axes.

    >>> from feinsum.nests import parse_network, build_path
    >>> from feinsum.sparse import COO, to_csf
    >>> spmv = parse_network("ij,j->i")
    >>> nest = Nest(spmv, build_path(spmv, [(0, 1)]), (("i", "j"),))
    >>> matrix = to_csf(COO((2, 3), ([0, 1, 1], [2, 0, 2]), [5.0, 6.0, 7.0]))
    >>> interpret(nest, [matrix, np.array([1.0, 2.0, 3.0])])
    Outcome(result=array([15., 27.]), n_operations=6)
    """
    sizes = measure_sizes(nest.network, operands)
    state = _State(nest, operands, sizes)
    state.run(lower_nest(nest))
    return Outcome(state.output, state.n_operations)


@dataclass
class _State:
    """The operands, the buffers, the result, and the place in all loops."""

    nest: Nest
    operands: Sequence[Array | CSF]
    sizes: Sizes
    n_operations: int = 0
    at: dict[str, int] = field(default_factory=dict)
    node: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        network, extents = self.nest.network, self.sizes.extents
        held = [o.values if isinstance(o, CSF) else o for o in self.operands]
        dtype = np.result_type(*held)
        self.buffers = {
            buffer.producer: np.zeros([extents[i] for i in buffer.indices], dtype)
            for buffer in self.nest.buffers
        }
        self.axes = {buffer.producer: buffer.indices for buffer in self.nest.buffers}
        self.makers: Mapping[frozenset[int], int] = {
            term.result.inputs: number for number, term in enumerate(self.nest.path)
        }
        shape = (
            [self.sizes.nodes[-1]]
            if network.has_sparse_output
            else [extents[i] for i in network.output]
        )
        self.output = np.zeros(shape, dtype)

    def run(self, steps: tuple[NestStatement, ...]) -> None:
        for step in steps:
            match step:
                case Reset(term):
                    self.buffers[term][...] = 0
                case Multiply(term, is_assigned):
                    self.multiply(term, is_assigned)
                case Repeat(index, level, body):
                    for value in self.values(index, level):
                        self.at[index] = value
                        self.run(body)

    def values(self, index: str, level: int | None) -> Iterator[int]:
        """Values of a loop's index; the node of the tree moves along."""
        if level is None:
            yield from range(self.sizes.extents[index])
            return
        tree = self.operands[self.nest.network.sparse or 0]
        assert isinstance(tree, CSF)
        first, last = 0, len(tree.indices[0])
        if level:
            above = self.node[level - 1]
            first, last = map(int, tree.pointers[level - 1][above : above + 2])
        for node in range(first, last):
            self.node[level] = node
            yield int(tree.indices[level][node])

    def multiply(self, number: int, is_assigned: bool) -> None:
        term = self.nest.path[number]
        product = self.read(term.left) * self.read(term.right)
        self.n_operations += 2
        target, place = self.target(number)
        target[place] = product if is_assigned else target[place] + product

    def read(self, tensor: Factor) -> Any:
        if len(tensor.inputs) > 1:
            number = self.makers[tensor.inputs]
            return self.buffers[number][self.place(self.axes[number])]
        (position,) = tensor.inputs
        operand = self.operands[position]
        if isinstance(operand, CSF):
            return operand.values[self.node[operand.order - 1]]
        return operand[self.place(self.nest.network.inputs[position])]

    def target(self, number: int) -> tuple[Array, tuple[int, ...]]:
        if number in self.buffers:
            return self.buffers[number], self.place(self.axes[number])
        if self.nest.network.has_sparse_output:
            return self.output, (self.node[len(self.sizes.nodes) - 1],)
        return self.output, self.place(self.nest.network.output)

    def place(self, indices: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.at[index] for index in indices)
