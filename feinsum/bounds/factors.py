"""Factors that an einsum accesses: operands, products of some of them, results.

In ``ij,jk,kl->il`` with the operands A, B and C, the step ``(A*B) * C`` has the factors
``A*B`` with the indices ``i k``, and ``C`` with ``k l``. A functional operand counts
with the arrays that its function certainly reads: reads under a condition may never
happen.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from math import factorial, prod

import numpy as np

from feinsum.bounds.soap import SoapAccess, SoapStatement
from feinsum.errors import BoundError
from feinsum.ir import (
    BatchedEinsum,
    FunctionalBatchedEinsum,
    IndexList,
    Operand,
    SizeParam,
)
from feinsum.ir.functional import OperandFunction

Positions = tuple[int, ...]
"""Operand positions, ascending, whose product is taken."""


@dataclass(frozen=True)
class Factors:
    """An einsum with known extents, reduced to what its bounds need.

    Attributes:
        einsum: the einsum.
        extents: the extent of each index.
        reads: for each operand, the arrays behind it, each with the number of entries
            that are certainly read. A plain operand is its own array.
        entry_bytes: for each operand, the bytes that count for an entry at one
            position.
    """

    einsum: BatchedEinsum
    extents: Mapping[str, int]
    reads: Mapping[str, Mapping[str, int]]
    entry_bytes: Mapping[str, Fraction]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is computed, because an extent is 0."""
        return not prod(self.extents.values())

    @cached_property
    def compulsory_bytes(self) -> int:
        """Bytes of every array read and every result, each once."""
        arrays: dict[str, int] = {}
        for name, n_entries_of in self.reads.items():
            itemsize = self._operands[name].dtype.itemsize
            for array, n_entries in n_entries_of.items():
                n_bytes = 0 if self.is_empty else n_entries * itemsize
                # two operands may read the same part of one array
                arrays[array] = max(arrays.get(array, 0), n_bytes)
        n_results = self._count_tuples(self.einsum.output)
        results = sum(n_results * dtype.itemsize for dtype in self.einsum.output_dtypes)
        return sum(arrays.values()) + results

    @property
    def step_bytes(self) -> int:
        """Bytes of one entry of each array, for the row with the largest entries."""
        pairs = zip(self.einsum.rows, self.einsum.output_dtypes, strict=True)
        return max(
            sum(op.dtype.itemsize for op in set(row)) + dtype.itemsize
            for row, dtype in pairs
        )

    def indices(self, positions: Iterable[int]) -> frozenset[str]:
        """Return the indices of a product, after all possible sums."""
        block = set(positions)
        terms = enumerate(self.einsum.inputs)
        inside, outside = set[str](), set(self.einsum.output)
        for p, term in terms:
            (inside if p in block else outside).update(term)
        return frozenset(inside & outside)

    def statement(self, blocks: tuple[Positions, ...]) -> SoapStatement:
        """Build the statement that multiplies factors: operands or earlier products."""
        positions = tuple(sorted(p for block in blocks for p in block))
        # rows that multiply the same arrays may be computed only once
        instances = {self._make_key(row, positions): row for row in self.einsum.rows}
        rows = tuple(instances.values())
        accesses = [self._make_access(block, rows) for block in blocks]
        indices = frozenset[str]().union(*(access.indices for access in accesses))
        order = [index for index in self.einsum.indices if index in indices]
        return SoapStatement(
            (*accesses, self._make_result_access(positions, rows)),
            {index: self.extents[index] for index in order},
            len(rows),
            max(self._count_symmetries(row, positions) for row in rows),
        )

    def _make_access(self, block: Positions, rows: tuple[Row, ...]) -> SoapAccess:
        if len(block) > 1:
            return self._make_product_access(block, rows)
        (position,) = block
        counts = Counter(row[position].name for row in rows)
        # an array at several positions is loaded once for all of them, so each position
        # counts only a part of its bytes
        n_positions = {name: self._count_positions(name) for name in counts}
        return SoapAccess(
            " ".join(counts),
            self._order_indices(block, self.einsum.inputs[position]),
            min(self.entry_bytes[name] / n for name, n in n_positions.items()),
            sum(
                (
                    Fraction(self._count_operand_bytes(name, position), n)
                    for name, n in n_positions.items()
                ),
                Fraction(0),
            ),
            max(counts.values()),
        )

    def _make_product_access(
        self, block: Positions, rows: tuple[Row, ...]
    ) -> SoapAccess:
        counts = Counter(self._make_key(row, block) for row in rows)
        itemsizes = {
            self._make_key(row, block): _get_itemsize(row, block) for row in rows
        }
        terms = chain.from_iterable(self.einsum.inputs[p] for p in block)
        indices = self._order_indices(block, terms)
        return SoapAccess(
            "*".join(rows[0][p].name for p in block),
            indices,
            Fraction(min(itemsizes.values())),
            Fraction(sum(itemsizes.values()) * self._count_tuples(indices)),
            max(counts.values()),
        )

    def _make_result_access(
        self, positions: Positions, rows: tuple[Row, ...]
    ) -> SoapAccess:
        is_last = len(positions) == self.einsum.n_operands
        if not is_last:
            return self._make_product_access(positions, rows)
        itemsizes = [dtype.itemsize for dtype in self.einsum.output_dtypes]
        indices = self.einsum.output
        total = Fraction(sum(itemsizes) * self._count_tuples(indices))
        return SoapAccess("out", indices, Fraction(min(itemsizes)), total)

    def _order_indices(self, block: Positions, order: Iterable[str]) -> tuple[str, ...]:
        indices = self.indices(block)
        return tuple(index for index in dict.fromkeys(order) if index in indices)

    def _make_key(self, row: Row, positions: Positions) -> tuple[str, ...]:
        """Return a key of a product: products with equal keys may be computed once."""
        return tuple(sorted(row[p].name for p in positions))

    def _count_symmetries(self, row: Row, positions: Positions) -> int:
        """Count the permutations of operands that are the same array."""
        counts = Counter(row[p].name for p in positions)
        return prod(factorial(n) for n in counts.values())

    def _count_positions(self, name: str) -> int:
        """Return the number of positions at which an operand's arrays are accessed."""
        positions = set(self._positions_of[name])
        return len(
            positions.union(*(self._positions_of[array] for array in self.reads[name]))
        )

    @cached_property
    def _positions_of(self) -> dict[str, set[int]]:
        """The positions of every operand, and of every array behind one."""
        positions: dict[str, set[int]] = {}
        for position in range(self.einsum.n_operands):
            for name in {row[position].name for row in self.einsum.rows}:
                for array in (name, *self.reads[name]):
                    positions.setdefault(array, set()).add(position)
        return positions

    def _count_operand_bytes(self, name: str, position: int) -> int:
        """Return the bytes of an operand or of the arrays behind it: the larger."""
        itemsize = self._operands[name].dtype.itemsize
        n_entries = self._count_tuples(set(self.einsum.inputs[position]))
        return itemsize * max(n_entries, sum(self.reads[name].values()))

    @cached_property
    def _operands(self) -> dict[str, Operand]:
        return {operand.name: operand for operand in self.einsum.operands}

    def _count_tuples(self, indices: Iterable[str]) -> int:
        return prod(self.extents[index] for index in indices)


Row = tuple[Operand, ...]


def build_factors(
    einsum: BatchedEinsum | FunctionalBatchedEinsum, sizes: Mapping[str, int]
) -> Factors:
    """Build the factors of an einsum at the given sizes.

    Raises:
        BoundError: if a size has no value, or an invalid one.
    """
    plain = einsum.einsum if isinstance(einsum, FunctionalBatchedEinsum) else einsum
    extents = {index: get_extent_value(x, sizes) for index, x in plain.extents.items()}
    reads: dict[str, Mapping[str, int]] = {}
    entry_bytes: dict[str, Fraction] = {}
    for operand in plain.operands:
        terms = plain.operand_indices(operand.name)
        function = None
        if isinstance(einsum, FunctionalBatchedEinsum):
            function = einsum.functions[operand.name]
        reads[operand.name], is_whole = _count_reads(operand, terms, extents, function)
        entry_bytes[operand.name] = Fraction(operand.dtype.itemsize * is_whole)
    return Factors(plain, extents, reads, entry_bytes)


def _count_reads(
    operand: Operand,
    terms: Sequence[IndexList],
    extents: Mapping[str, int],
    function: OperandFunction | None,
) -> tuple[dict[str, int], bool]:
    """Count the entries that are read of each array behind an operand.

    Args:
        operand: the operand.
        terms: the index lists with which it is accessed.
        extents: the extent of each index.
        function: the operand's function; None for a plain operand.

    Returns:
        The number of entries by array, and whether an array is read at all indices.
    """
    axes = range(operand.rank)
    reads: Mapping[str, Collection[int]] = {operand.name: axes}
    if function is not None:
        reads = _find_certain_reads(function)
    counts: dict[str, int] = {}
    is_whole = False
    for array, read in reads.items():
        for term in terms:
            chosen = {index for axis, index in enumerate(term) if axis in read}
            n_entries = prod(extents[index] for index in chosen)
            counts[array] = max(counts.get(array, 0), n_entries)
            is_whole = is_whole or chosen == set(term)
    return counts, is_whole


def _find_certain_reads(function: OperandFunction) -> dict[str, set[int]]:
    """Return the arrays that are certainly read, with the operand's axes as subscripts.

    Reads under a condition may never happen, and computed subscripts may be constant;
    neither counts.
    """
    axes = {name: axis for axis, name in enumerate(function.parameters)}
    reads: dict[str, set[int]] = {}
    for node in list_always_evaluated(
        ast.parse(function.body.strip(), mode="eval").body
    ):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            slice_node = node.slice
            subscripts = (
                slice_node.elts if isinstance(slice_node, ast.Tuple) else [slice_node]
            )
            names = {
                subscript.id
                for subscript in subscripts
                if isinstance(subscript, ast.Name)
            }
            read_axes = {axes[name] for name in names.intersection(axes)}
            reads.setdefault(node.value.id, set()).update(read_axes)
    return reads


def list_always_evaluated(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.IfExp):
        yield from list_always_evaluated(node.test)
        return
    if isinstance(node, ast.BoolOp):
        yield from list_always_evaluated(node.values[0])
        return
    for child in ast.iter_child_nodes(node):
        yield from list_always_evaluated(child)


def _get_itemsize(row: Row, positions: Positions) -> int:
    return np.result_type(*(row[p].dtype for p in positions)).itemsize


def get_extent_value(extent: object, sizes: Mapping[str, int]) -> int:
    if not isinstance(extent, SizeParam):
        assert isinstance(extent, int)
        return extent
    value = sizes.get(extent.name)
    if value is None:
        raise BoundError(
            f"the size {extent.name!r} has no value; given are {dict(sizes)}, expected "
            f"such as sizes={{{extent.name!r}: 1000}}"
        )
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
        raise BoundError(f"the size {extent.name!r} is {value!r}; expected an int >= 0")
    return int(value)
