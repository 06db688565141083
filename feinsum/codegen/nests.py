"""The Loopy translation unit of a loop nest over a sparse tensor.

The loops of a nest stay as they are: an iname for each, the nodes of a tree between
bounds that are read from its pointers. Nothing is optimized.

Source: Kanakagiri and Solomonik 2024 (SpTTN), section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import loopy as lp
import numpy as np
from numpy.typing import DTypeLike
from pytools import UniqueNameGenerator

from feinsum.errors import InvalidEinsumError
from feinsum.nests import (
    Multiply,
    Nest,
    Network,
    Repeat,
    Reset,
    Sizes,
    Step,
    lower,
    sizes_of,
)
from feinsum.nests.paths import Tensor
from feinsum.sparse import CSF
from feinsum.targets.host.code import HostCTarget

__all__ = ["generate_nest", "nest_arguments", "nest_index_dtype"]

MOST_PRIVATE = 512
"""Entries of a buffer that is private to the kernel; a larger one is an argument."""


def generate_nest(
    nest: Nest,
    extents: Mapping[str, int],
    *,
    dtype: DTypeLike = np.float64,
    index_dtype: DTypeLike = np.int32,
    name: str = "feinsum_nest",
    target: Any = None,
) -> lp.TranslationUnit:
    """A Loopy kernel that executes a nest, nothing optimized.

    Its arguments are those of :func:`nest_arguments`: the dense operands ``T0``, ``T1``
    and so on, by position; the tree as ``indices0``, ``pointers0`` and so on, by level,
    and ``values``; the result ``out``, to which is added what is computed; and a
    buffer ``X3`` of term 3 that is too large to be private.

    Args:
        nest: what is computed.
        extents: of the indices that the tree does not have, or of all.
        dtype: of operands, buffers and result.
        index_dtype: of indices and pointers, and of subscripts; that of
            :func:`nest_index_dtype`.
        name: of the kernel.
        target: one of Loopy's; by default that of the host.

    Raises:
        InvalidEinsumError: with the rule ``size``, if an extent is missing.

    >>> from feinsum.nests import network, path_from_pairs
    >>> spmv = network("ij,j->i")
    >>> nest = Nest(spmv, path_from_pairs(spmv, [(0, 1)]), (("i", "j"),))
    >>> for instruction in generate_nest(nest, {}).default_entrypoint.instructions:
    ...     print(instruction.assignee, "=", instruction.expression)
    i_0 = indices0[node0]
    begin1 = pointers0[node0]
    end1 = pointers0[node0 + 1]
    j_0 = indices1[node1]
    out[i_0] = out[i_0] + values[node1]*T1[j_0]
    """
    network = nest.network
    dense = network.indices.difference(network.levels)
    missing = sorted(dense.difference(extents))
    if missing:
        raise InvalidEinsumError(
            f"no extent is given of {missing}; the kernel of a nest needs those of all "
            "indices that the tree does not have",
            rules=("size",),
        )
    known = {index: int(extents[index]) for index in sorted(dense)}
    writer = _Writer(nest, known)
    writer.write(lower(nest), 0, {}, {})
    return lp.make_kernel(
        writer.domains or ["{ : }"],
        "\n".join(writer.lines),
        _arguments(nest, known, np.dtype(dtype), np.dtype(index_dtype)),
        name=name,
        lang_version=(2018, 2),
        seq_dependencies=True,
        index_dtype=np.dtype(index_dtype),
        target=target or HostCTarget(),
    )


def nest_arguments(
    nest: Nest, operands: Sequence[Any], *, dtype: DTypeLike = np.float64
) -> dict[str, Any]:
    """The arguments of the kernel of a nest, with a result of zeros.

    Args:
        nest: that the kernel executes.
        operands: one for each input; the sparse one is a tree.
        dtype: to which dense operands and values are converted where they have
            another one.

    Raises:
        InvalidEinsumError: with the rule ``shape``, if operands do not fit.
    """
    network = nest.network
    sizes = sizes_of(network, operands)
    index_dtype = nest_index_dtype(nest, sizes)
    found: dict[str, Any] = {}
    for position, operand in enumerate(operands):
        if not isinstance(operand, CSF):
            found[f"T{position}"] = np.asarray(operand, dtype, order="C")
            continue
        found["values"] = np.asarray(operand.values, dtype, order="C")
        for level, array in enumerate(operand.indices):
            found[f"indices{level}"] = np.asarray(array, index_dtype, order="C")
            found[f"nodes{level}"] = len(array)
        for level, array in enumerate(operand.pointers):
            found[f"pointers{level}"] = np.asarray(array, index_dtype, order="C")
    for index in network.levels:
        found[f"extent_{index}"] = sizes.extents[index]
    shape = [sizes.extents[i] for i in network.output]
    if network.has_sparse_output:
        shape = [sizes.nodes[-1]]
    found["out"] = np.zeros(shape, dtype)
    dense = {i: n for i, n in sizes.extents.items() if i not in network.level_of}
    for buffer in nest.buffers:
        if not _is_private(buffer.indices, dense):
            axes = [sizes.extents[i] for i in buffer.indices]
            found[f"X{buffer.producer}"] = np.zeros(axes, dtype)
    return found


def nest_index_dtype(nest: Nest, sizes: Sizes) -> np.dtype[Any]:
    """int32, or int64 where a subscript of an array does not fit.

    >>> from feinsum.nests import network, path_from_pairs
    >>> spmm = network("ij,jk->ik")
    >>> nest = Nest(spmm, path_from_pairs(spmm, [(0, 1)]), (("i", "j", "k"),))
    >>> sizes = Sizes({"i": 100, "j": 10**8, "k": 32}, (100, 500))
    >>> nest_index_dtype(nest, sizes)
    dtype('int64')
    """
    network = nest.network
    arrays = [term for p, term in enumerate(network.inputs) if p != network.sparse]
    arrays += [buffer.indices for buffer in nest.buffers]
    if not network.has_sparse_output:
        arrays.append(network.output)
    entries = [prod(sizes.extents[i] for i in indices) for indices in arrays]
    largest = max(*entries, *sizes.nodes, *sizes.extents.values())
    return np.dtype(np.int32 if largest < 2**31 - 1 else np.int64)


def _is_private(indices: tuple[str, ...], dense: Mapping[str, int]) -> bool:
    """Whether a buffer is small, whatever the tree."""
    is_fixed = all(index in dense for index in indices)
    return is_fixed and prod(dense[i] for i in indices) <= MOST_PRIVATE


def _arguments(
    nest: Nest,
    dense: Mapping[str, int],
    dtype: np.dtype[Any],
    index_dtype: np.dtype[Any],
) -> list[Any]:
    network = nest.network

    def shape(indices: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(dense.get(index, f"extent_{index}")) for index in indices)

    last = len(network.levels) - 1
    made: list[Any] = [
        lp.GlobalArg(f"T{position}", dtype, shape=shape(term))
        for position, term in enumerate(network.inputs)
        if position != network.sparse
    ]
    for level in range(last + 1):
        nodes = f"nodes{level}"
        made.append(lp.GlobalArg(f"indices{level}", index_dtype, shape=(nodes,)))
        made.append(lp.ValueArg(nodes, index_dtype))
        if level < last:
            above = (f"{nodes} + 1",)
            made.append(lp.GlobalArg(f"pointers{level}", index_dtype, shape=above))
    if network.levels:
        made.append(lp.GlobalArg("values", dtype, shape=(f"nodes{last}",)))
    made += [lp.ValueArg(f"extent_{i}", index_dtype) for i in network.levels]
    is_sparse = network.has_sparse_output
    out = (f"nodes{last}",) if is_sparse else shape(network.output)
    made.append(lp.GlobalArg("out", dtype, shape=out))
    for buffer in nest.buffers:
        is_private = _is_private(buffer.indices, dense)
        kind = lp.TemporaryVariable if is_private else lp.GlobalArg
        held = shape(buffer.indices)
        made.append(kind(f"X{buffer.producer}", dtype=dtype, shape=held))
    return made


@dataclass
class _Writer:
    """The domains and the lines of a kernel."""

    nest: Nest
    dense: Mapping[str, int]
    domains: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.unique = UniqueNameGenerator()
        self.axes = {b.producer: b.indices for b in self.nest.buffers}
        self.makers = {
            term.result.inputs: number for number, term in enumerate(self.nest.path)
        }

    def write(
        self,
        steps: tuple[Step, ...],
        depth: int,
        at: dict[str, str],
        node: dict[int, str],
    ) -> None:
        """Write statements.

        Args:
            steps: to write.
            depth: of the loops around them.
            at: the value of the index of each of these loops.
            node: the number of the node at each level of these loops.
        """
        for step in steps:
            match step:
                case Reset(term):
                    self._reset(term, depth, at)
                case Multiply(term, is_assigned):
                    target, value = self._product(term, at, node)
                    value = value if is_assigned else f"{target} + {value}"
                    self._line(depth, f"{target} = {value}")
                case Repeat(index, None, body):
                    iname = self._loop(index, "0", self._extent(index), depth)
                    self.write(body, depth + 1, at | {index: iname}, node)
                    self._line(depth, "end")
                case Repeat(index, int(level), body):
                    self._walk(index, level, body, depth, at, node)

    def _walk(
        self,
        index: str,
        level: int,
        body: tuple[Step, ...],
        depth: int,
        at: dict[str, str],
        node: dict[int, str],
    ) -> None:
        """A loop over the nodes of a level below a node of the level above."""
        begin, end = "0", "nodes0"
        if level:
            begin, end = self.unique(f"begin{level}"), self.unique(f"end{level}")
            pointers, above = f"pointers{level - 1}", node[level - 1]
            self._line(depth, f"<> {begin} = {pointers}[{above}]")
            self._line(depth, f"<> {end} = {pointers}[{above} + 1]")
        iname = self._loop(f"node{level}", begin, end, depth)
        value = self.unique(f"{index}_0")
        self._line(depth + 1, f"<> {value} = indices{level}[{iname}]")
        inside = at | {index: value}
        self.write(body, depth + 1, inside, node | {level: iname})
        self._line(depth, "end")

    def _loop(self, name: str, begin: str, end: str, depth: int) -> str:
        iname: str = self.unique(name)
        self.domains.append(f"{{[{iname}]: {begin} <= {iname} < {end}}}")
        self._line(depth, f"for {iname}")
        return iname

    def _reset(self, term: int, depth: int, at: dict[str, str]) -> None:
        for count, index in enumerate(self.axes[term]):
            iname = self._loop(index, "0", self._extent(index), depth + count)
            at = at | {index: iname}
        inside = depth + len(self.axes[term])
        self._line(inside, f"{self._place(f'X{term}', self.axes[term], at)} = 0")
        for count in reversed(range(len(self.axes[term]))):
            self._line(depth + count, "end")

    def _product(
        self, number: int, at: dict[str, str], node: dict[int, str]
    ) -> tuple[str, str]:
        """Where the product of a term goes, and the product."""
        term, network = self.nest.path[number], self.nest.network
        value = f"{self._read(term.left, at, node)}*{self._read(term.right, at, node)}"
        if number in self.axes:
            return self._place(f"X{number}", self.axes[number], at), value
        if network.has_sparse_output:
            return f"out[{node[len(network.levels) - 1]}]", value
        return self._place("out", network.output, at), value

    def _read(self, tensor: Tensor, at: dict[str, str], node: dict[int, str]) -> str:
        network: Network = self.nest.network
        if len(tensor.inputs) > 1:
            number = self.makers[tensor.inputs]
            return self._place(f"X{number}", self.axes[number], at)
        (position,) = tensor.inputs
        if position == network.sparse:
            return f"values[{node[len(network.levels) - 1]}]"
        return self._place(f"T{position}", network.inputs[position], at)

    def _place(self, name: str, indices: tuple[str, ...], at: dict[str, str]) -> str:
        if not indices:
            return name
        return f"{name}[{', '.join(at[index] for index in indices)}]"

    def _extent(self, index: str) -> str:
        return str(self.dense.get(index, f"extent_{index}"))

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)
