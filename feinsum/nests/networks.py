"""Networks, products of at most one sparse tensor and dense ones, and their paths.

Like a batched einsum, a network may have several rows: products of the same sparse
tensor by different dense ones. One nest computes all of them. It has the loops of one
row, and executes each statement for every row in turn.

A path is the order in which pairs of tensors are multiplied. In ``ijk,ja,ka->ia``, the
pairs (0, 2) and (3, 1) multiply T and C first, and then this term, number 3, and B::

    T[i,j,k]   C[k,a]   B[j,a]
        +---------+        |
       term 0: ija         |
            +--------------+
                term 1: ia

Source: Kanakagiri and Solomonik 2024 (SpTTN), sections 4.1.1 and 4.2.1, definition 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy.typing as npt

from feinsum.contraction.paths import list_postorders as all_postorders
from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum, IndexList, get_nodes, parse_subscripts
from feinsum.sparse import CSF
from feinsum.words import describe_type, format_count

MAX_OPERANDS = 8
"""Most operands for which all paths are enumerated; nine have 6,055,560."""


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
            _refuse(f"{format_count(self.n_rows, 'row')}; expected one or more")
        if not 2 <= n <= MAX_OPERANDS:
            _refuse(f"{format_count(n, 'operand')} given; expected 2 to {MAX_OPERANDS}")
        for term in (*self.inputs, self.output):
            if len(set(term)) < len(term):
                _refuse(
                    f"an index is repeated in {' '.join(term)}; take the diagonal first"
                )
        bound = {index for term in self.inputs for index in term}
        if not bound >= {*self.output}:
            _refuse(f"the output has {sorted({*self.output} - bound)} and no term has")
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

    def get_level(self, ancestors: frozenset[str], index: str) -> int | None:
        """Return the level of the tree over whose nodes a loop iterates.

        Args:
            ancestors: indices of the loops around it.
            index: index of the loop.

        Returns:
            The level; None if the loop runs over the extent, because the tree lacks the
            index, or because a loop over a level above is missing.

        >>> mttkrp = parse_network("ijk,ja,ka->ia")
        >>> mttkrp.get_level(frozenset("i"), "j")
        1
        >>> mttkrp.get_level(frozenset("i"), "k")
        """
        level = self.level_of.get(index)
        # children are stored for each parent: without a loop over the parents, there is
        # no range of nodes
        if level is None or not ancestors.issuperset(self.levels[:level]):
            return None
        return level


def parse_network(
    subscripts: str,
    *,
    sparse: int | None = 0,
    levels: str | IndexList | None = None,
    has_sparse_output: bool = False,
) -> Network:
    """Build a network from subscripts.

    Args:
        subscripts: as for :func:`feinsum.einsum`.
        sparse: position of the sparse operand; None if all are dense.
        levels: its indices from the root; by default as in the subscripts.
        has_sparse_output: whether the result has its pattern.

    Raises:
        InvalidEinsumError: if there is no such network.

    >>> parse_network("ijk,ja,ka->ia", levels="kij").levels
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
        nodes: the profile of the sparse operand: number of nodes at each level of its
            tree.
    """

    extents: Mapping[str, int]
    nodes: tuple[int, ...] = ()

    def children(self, level: int) -> float:
        """Return the mean number of children of a node of the level above."""
        above = self.nodes[level - 1] if level else 1
        return self.nodes[level] / above if above else 0.0


def build_network(einsum: BatchedEinsum) -> Network:
    """Build the network of an einsum; a single operand gets a factor 1.

    Raises:
        InvalidEinsumError: with the rule ``network``, if there is none: also for rows
            of several dtypes.

    >>> from feinsum.ir import array, einsum, sparse_array
    >>> spmv = einsum("ij,j->i", sparse_array("A", ("M", "N")), array("x", "N"))
    >>> build_network(spmv) == parse_network("ij,j->i")
    True
    """
    if len(set(einsum.output_dtypes)) > 1:
        dtypes = [dtype.name for dtype in einsum.output_dtypes]
        _refuse(f"rows of the dtypes {dtypes}; expected one: convert operands")
    position, n_rows = einsum.sparse_position, einsum.batch_size
    # terms are products of two tensors, so a single operand is multiplied by 1
    inputs = einsum.inputs if einsum.n_operands > 1 else (*einsum.inputs, ())
    if position is None:
        return Network(inputs, einsum.output, n_rows=n_rows)
    is_kept = einsum.rows[0][position].storage == "csf="
    levels = einsum.inputs[position]
    return Network(inputs, einsum.output, position, levels, is_kept, n_rows)


def get_sizes(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Sizes:
    """Return the extents and the profile of an einsum, given its sizes by name.

    >>> from feinsum.ir import array, einsum, sparse_array
    >>> spmv = einsum("ij,j->i", sparse_array("A", ("M", 9)), array("x", 9))
    >>> get_sizes(spmv, {"M": 8, "nodes.0": 7, "nodes.1": 20})
    Sizes(extents={'i': 8, 'j': 9}, nodes=(7, 20))
    """
    return Sizes(einsum.extents_at(sizes), get_nodes(einsum, sizes))


def measure_sizes(
    network: Network, operands: Sequence[npt.NDArray[Any] | CSF]
) -> Sizes:
    """Return the extents of the operands and the profile of the tree among them.

    Raises:
        InvalidEinsumError: with the rule ``shape``.
    """
    if len(operands) != len(network.inputs):
        _refuse_operands(
            f"{format_count(len(operands), 'operand')} for "
            f"{format_count(len(network.inputs), 'term')}"
        )
    extents: dict[str, int] = {}
    nodes: tuple[int, ...] = ()
    for position, (operand, term) in enumerate(
        zip(operands, network.inputs, strict=True)
    ):
        if isinstance(operand, CSF) != (position == network.sparse):
            _refuse_operands(
                f"operand {position} is {describe_type(operand)}; the sparse "
                f"operand is number {network.sparse}"
            )
        if len(operand.shape) != len(term):
            _refuse_operands(
                f"operand {position} has "
                f"{format_count(len(operand.shape), 'axis')}, its term {term}"
            )
        for index, extent in zip(term, operand.shape, strict=True):
            if extents.setdefault(index, extent) != extent:
                _refuse_operands(
                    f"index {index!r} has extent {extent} on operand {position} and "
                    f"extent {extents[index]} before"
                )
        if isinstance(operand, CSF):
            levels = tuple(term[axis] for axis in operand.axes)
            if levels != network.levels:
                _refuse_operands(
                    f"the levels of the tree hold {levels}, not {network.levels}"
                )
            nodes = operand.profile
    return Sizes(extents, nodes)


def _refuse_operands(message: str) -> None:
    raise InvalidEinsumError(
        f"the operands do not match the subscripts: {message}", rules=("shape",)
    )


def _refuse(message: str) -> None:
    raise InvalidEinsumError(f"invalid network: {message}", rules=("network",))


@dataclass(frozen=True)
class Factor:
    """An operand, or the product of several.

    Attributes:
        inputs: positions of its operands.
        indices: its indices.
    """

    inputs: frozenset[int]
    indices: frozenset[str]


@dataclass(frozen=True)
class FactorProduct:
    """A product of two tensors, summed over the indices that no other tensor has."""

    left: Factor
    right: Factor
    result: Factor

    @cached_property
    def indices(self) -> frozenset[str]:
        """The indices of the term's loops."""
        return self.left.indices | self.right.indices

    @property
    def tensors(self) -> tuple[Factor, Factor, Factor]:
        return (self.left, self.right, self.result)


Path: TypeAlias = tuple[FactorProduct, ...]
"""Terms in the order of computation; the last one computes the result."""


def find_consumers(path: Path) -> tuple[int | None, ...]:
    """Return the term that reads each term's result; None for results of the path.

    >>> from feinsum.nests.networks import parse_network
    >>> find_consumers(build_path(parse_network("ij,jk,kl->il"), [(0, 1), (3, 2)]))
    (1, None)
    """
    consumer_of = {t.inputs: k for k, term in enumerate(path) for t in term.tensors[:2]}
    return tuple(consumer_of.get(term.result.inputs) for term in path)


def list_paths(network: Network) -> Iterator[Path]:
    """Yield every path that is a depth-first postorder of a binary operand tree.

    >>> from feinsum.nests.networks import parse_network
    >>> len(list(list_paths(parse_network("ijk,ja,ka->ia"))))
    3
    """
    terms = _Maker(network)
    for order in all_postorders(len(network.inputs)):
        yield tuple(terms.term(left, right) for left, right in order)


def build_path(
    network: Network, pairs: list[tuple[int, int]], *, late: bool = False
) -> Path:
    """Build a path from pairs of operands.

    Operands are numbered by position, and the result of term t is n + t, for n
    operands.

    Args:
        network: the network to compute.
        pairs: the factors of each term.
        late: whether only the last term sums. Then one loop over all indices can
            contain all terms: the unfactorized nest.

    >>> from feinsum.nests.networks import parse_network
    >>> path = build_path(parse_network("ijk,ja,ka->ia"), [(0, 2), (3, 1)])
    >>> sorted(path[0].result.indices)
    ['a', 'i', 'j']
    """
    terms = _Maker(network, late=late)
    tensors = [terms.tensor(frozenset({k})) for k in range(len(network.inputs))]
    path = []
    for left, right in pairs:
        path.append(terms.term(tensors[left].inputs, tensors[right].inputs))
        tensors.append(path[-1].result)
    return tuple(path)


class _Maker:
    """The tensors and terms of a network, each created once."""

    def __init__(self, network: Network, *, late: bool = False) -> None:
        self._network, self._late = network, late
        self.tensor = cache(self._make_tensor)
        self.term = cache(self._make_term)

    def _make_tensor(self, inputs: frozenset[int]) -> Factor:
        terms = enumerate(self._network.inputs)
        inside, outside = set[str](), set(self._network.output)
        for position, term in terms:
            (inside if position in inputs else outside).update(term)
        # operands keep all their indices; so do products that do not sum yet
        is_last = len(inputs) == len(self._network.inputs)
        if len(inputs) == 1 or (self._late and not is_last):
            return Factor(inputs, frozenset(inside))
        return Factor(inputs, frozenset(inside & outside))

    def _make_term(self, left: frozenset[int], right: frozenset[int]) -> FactorProduct:
        return FactorProduct(*map(self.tensor, (left, right, left | right)))
