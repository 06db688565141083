"""Networks: products of at most one sparse tensor and dense ones.

A network may have several rows, as a batched einsum has: products of the same sparse
tensor with other dense ones. One nest computes them all: its loops are those of one
row, and each of its statements is executed for every row in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum, IndexList, nodes_of, parse_subscripts
from feinsum.words import counted

__all__ = [
    "MAX_OPERANDS",
    "Network",
    "Sizes",
    "network",
    "network_of",
    "sizes_at",
]

MAX_OPERANDS = 8
"""Maximum number of operands for enumerating all paths; nine have 6,055,560."""


@dataclass(frozen=True)
class Network:
    """An einsum with at most one operand stored as a tree.

    Attributes:
        inputs: the index list of each operand.
        output: the index list of the result.
        sparse: position of the sparse operand, or None.
        levels: the indices of the sparse operand, from the root of its tree.
        has_sparse_output: whether the result has the pattern of the sparse operand.
        n_rows: number of rows, which have the sparse operand in common.

    Raises:
        InvalidEinsumError: with the rule ``network``.

    Source: Kanakagiri and Solomonik 2024 (SpTTN), section 3.
    """

    inputs: tuple[IndexList, ...]
    output: IndexList
    sparse: int | None = None
    levels: IndexList = ()
    has_sparse_output: bool = False
    n_rows: int = 1

    def __post_init__(self) -> None:
        n = len(self.inputs)
        if self.n_rows < 1:
            _refuse(f"{counted(self.n_rows, 'row')}; expected one or more")
        if not 2 <= n <= MAX_OPERANDS:
            _refuse(f"{n} operands are given; expected 2 to {MAX_OPERANDS}")
        for term in (*self.inputs, self.output):
            if len(set(term)) < len(term):
                _refuse(
                    f"an index is repeated in {' '.join(term)}; take the diagonal first"
                )
        known = {index for term in self.inputs for index in term}
        if not known >= {*self.output}:
            _refuse(f"the output has {sorted({*self.output} - known)} and no term has")
        if self.sparse is not None and not 0 <= self.sparse < n:
            _refuse(f"the sparse operand has position {self.sparse}; there are {n}")
        stored = () if self.sparse is None else self.inputs[self.sparse]
        if sorted(stored) != sorted(self.levels):
            _refuse(f"the levels are {self.levels}; expected an order of {stored}")
        if self.has_sparse_output and (
            self.sparse is None or sorted(self.output) != sorted(self.levels)
        ):
            _refuse(
                "a sparse output must have exactly the indices of the sparse operand"
            )

    @cached_property
    def indices(self) -> frozenset[str]:
        return frozenset(index for term in self.inputs for index in term)

    @cached_property
    def level_of(self) -> Mapping[str, int]:
        """The level of each index of the sparse operand."""
        return {index: level for level, index in enumerate(self.levels)}

    def level_within(self, ancestors: frozenset[str], index: str) -> int | None:
        """The level whose nodes a loop within these loops runs over.

        None if it runs over the extent: of an index that the tree lacks, or outside a
        loop over a level above.

        >>> mttkrp = network("ijk,ja,ka->ia")
        >>> mttkrp.level_within(frozenset("i"), "j")
        1
        >>> mttkrp.level_within(frozenset("i"), "k")
        """
        level = self.level_of.get(index)
        if level is None or not ancestors.issuperset(self.levels[:level]):
            return None
        return level


def network(
    subscripts: str,
    *,
    sparse: int | None = 0,
    levels: str | IndexList | None = None,
    has_sparse_output: bool = False,
) -> Network:
    """A network from subscripts.

    Args:
        subscripts: as for :func:`feinsum.einsum`.
        sparse: position of the sparse operand; None if all are dense.
        levels: its indices from the root; by default as in the subscripts.
        has_sparse_output: whether the result has its pattern.

    Raises:
        InvalidEinsumError: if there is no such network.

    >>> network("ijk,ja,ka->ia", levels="kij").levels
    ('k', 'i', 'j')
    """
    inputs, output = parse_subscripts(subscripts)
    if sparse is not None and not 0 <= sparse < len(inputs):
        _refuse(f"the sparse operand has position {sparse}; there are {len(inputs)}")
    stored = () if sparse is None else inputs[sparse]
    chosen = stored if levels is None else tuple(levels)
    return Network(inputs, output, sparse, chosen, has_sparse_output)


@dataclass(frozen=True)
class Sizes:
    """The sizes by which nests are compared.

    Attributes:
        extents: of every index.
        nodes: the profile of the sparse operand: nodes at each level of its tree.
    """

    extents: Mapping[str, int]
    nodes: tuple[int, ...] = ()

    def children(self, level: int) -> float:
        """The mean number of children of a node of the level above."""
        above = self.nodes[level - 1] if level else 1
        return self.nodes[level] / above if above else 0.0


def network_of(einsum: BatchedEinsum) -> Network:
    """The network of an einsum; a single operand gets a factor 1.

    Raises:
        InvalidEinsumError: with the rule ``network``, if there is none: also for rows
            of several dtypes.

    >>> from feinsum.ir import array, einsum, sparse_array
    >>> spmv = einsum("ij,j->i", sparse_array("A", ("M", "N")), array("x", "N"))
    >>> network_of(spmv) == network("ij,j->i")
    True
    """
    if len(set(einsum.output_dtypes)) > 1:
        dtypes = [dtype.name for dtype in einsum.output_dtypes]
        _refuse(f"rows of the dtypes {dtypes}; expected one: convert operands")
    position, n_rows = einsum.sparse_position, einsum.batch_size
    inputs = einsum.inputs if einsum.n_operands > 1 else (*einsum.inputs, ())
    if position is None:
        return Network(inputs, einsum.output, n_rows=n_rows)
    is_kept = einsum.rows[0][position].storage == "csf="
    levels = einsum.inputs[position]
    return Network(inputs, einsum.output, position, levels, is_kept, n_rows)


def sizes_at(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Sizes:
    """The extents and the profile of an einsum, by the names of its sizes.

    >>> from feinsum.ir import array, einsum, sparse_array
    >>> spmv = einsum("ij,j->i", sparse_array("A", ("M", 9)), array("x", 9))
    >>> sizes_at(spmv, {"M": 8, "nodes.0": 7, "nodes.1": 20})
    Sizes(extents={'i': 8, 'j': 9}, nodes=(7, 20))
    """
    return Sizes(einsum.extents_at(sizes), nodes_of(einsum, sizes))


def _refuse(message: str) -> None:
    raise InvalidEinsumError(f"invalid network: {message}", rules=("network",))
