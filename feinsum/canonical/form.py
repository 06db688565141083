"""The canonical form of a batched einsum, its key, and relabelings between einsums.

Source: paper, sections 5 (isomorphic batched einsums) and 6 (algorithm 3).
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from textwrap import shorten
from typing import NamedTuple, NewType

from constantdict import constantdict

from feinsum.canonical.graph import InducedGraph, build_induced_graph
from feinsum.canonical.invariants import first_difference
from feinsum.canonical.labelling import CANONICALIZER, compute_places
from feinsum.errors import CanonicalizationError, InvalidEinsumError
from feinsum.ir import (
    BatchedEinsum,
    IndexList,
    Operand,
    SizeParam,
    require_einsum,
)
from feinsum.ir.operand import format_operand
from feinsum.ir.text import join_text
from feinsum.words import format_brief

FORM_VERSION = "fe2"
"""Version of the canonical form; part of every workload key."""

CACHE_SIZE = 1024
"""Number of cached canonical forms."""

WorkloadKey = NewType("WorkloadKey", str)
"""The name of a class of isomorphic batched einsums: version, canonicalizer, digest."""


@dataclass(frozen=True)
class CanonicalForm:
    """The normal form of a class of isomorphic batched einsums.

    Attributes:
        source: the einsum that was canonicalized.
        order: the canonical order of its parts.
    """

    source: BatchedEinsum
    order: CanonicalOrder

    @cached_property
    def relabeling(self) -> Relabeling:
        """The isomorphism from :attr:`source` to :attr:`einsum`."""
        return build_relabeling(self.order)

    @cached_property
    def einsum(self) -> BatchedEinsum:
        """The canonical einsum; equal for isomorphic einsums."""
        return self.relabeling.apply(self.source)

    @cached_property
    def text(self) -> str:
        """The canonical einsum as text: what the key digests."""
        return write_canonical_text(self.source, self.order)

    @cached_property
    def key(self) -> WorkloadKey:
        return WorkloadKey(
            f"{FORM_VERSION}-{CANONICALIZER}-{compute_digest(self.text)}"
        )

    def __repr__(self) -> str:
        return format_brief(self, f"{self.key}: {self.text}")


KEY_DIGITS = 40
"""Hexadecimal digits at the end of a key.

160 bits keep keys short; texts are compared at every hit, so a collision does no harm.
"""


def compute_digest(text: str) -> str:
    """Return the last part of a workload's key, given its canonical text."""
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def canonicalize(
    einsum: BatchedEinsum, *, time_limit_s: float | None = None
) -> CanonicalForm:
    """Compute the canonical form of ``einsum``.

    Einsums that differ only in names, in the order of rows or in the order of the
    operands of each row have equal canonical forms; all others have different ones. The
    last :data:`CACHE_SIZE` forms are cached.

    Args:
        einsum: the einsum to canonicalize.
        time_limit_s: time limit for nauty's search in large graphs; by default 10
            seconds.

    Raises:
        CanonicalizationError: naming the einsum, if the search takes longer.

    Complexity: O(n log n) in the length of the notation and the rows if color
    refinement leaves only interchangeable parts; exponential at worst.

    Source: paper, section 6, algorithm 3.

    >>> from feinsum.ir import array, einsum
    >>> A, B = array("A", (3, 4)), array("B", (4, 5))
    >>> first, second = einsum("ij,jk", A, B), einsum("zw,Yz->Yw", B, A)
    >>> canonicalize(first).key == canonicalize(second).key
    True
    """
    return _kept_form(require_einsum(einsum), time_limit_s)


def compute_form(
    einsum: BatchedEinsum, time_limit_s: float | None = None
) -> CanonicalForm:
    """Compute the result of :func:`canonicalize`, bypassing its cache."""
    graph = build_induced_graph(einsum)
    try:
        ranks = compute_places(graph.colors, graph.edges, time_limit_s)
    except CanonicalizationError as error:
        raise CanonicalizationError(
            f"einsum {shorten(str(einsum), 200)} cannot be canonicalized: {error}"
        ) from None
    return CanonicalForm(einsum, compute_order(einsum, graph, ranks))


# lru_cache stores no exceptions, so a search that took too long is tried again
_kept_form = lru_cache(CACHE_SIZE)(compute_form)


def canonicalize_einsum(einsum: BatchedEinsum) -> BatchedEinsum:
    """Compute the canonical einsum; the function is named as in the paper.

    >>> from feinsum.ir import array, einsum
    >>> print(canonicalize_einsum(einsum("pq->q", array("M", (3, 4)))).subscripts)
    ba->a
    """
    return canonicalize(einsum).einsum


def isomorphism(a: BatchedEinsum, b: BatchedEinsum) -> Relabeling | None:
    """Find a relabeling of ``a`` to ``b``; None if they are not isomorphic.

    The relabeling composes that of ``a`` to the canonical form with the inverse of that
    of ``b``. It is checked on ``a`` before it is returned.

    >>> from feinsum.ir import array, einsum
    >>> a = einsum("ij,j->i", array("A", (3, 4)), array("x", 4))
    >>> b = einsum("p,qp->q", array("v", 4), array("M", (3, 4)))
    >>> dict(isomorphism(a, b).operands)
    {'A': 'M', 'x': 'v'}
    >>> isomorphism(a, einsum("ij->i", array("A", (3, 4)))) is None
    True
    """
    if first_difference(a, b) is not None:
        return None  # invariants take microseconds, canonical forms milliseconds
    form_of_a, back = canonicalize(a), canonicalize(b)
    if form_of_a.einsum != back.einsum:
        return None
    relabeling = form_of_a.relabeling.then(back.relabeling.inverse())
    if relabeling.apply(a) != b:
        raise CanonicalizationError(
            f"the bijection from {a} does not lead to {b}; this is a defect of the "
            "canonical form, please report it"
        )
    return relabeling


class CanonicalOrder(NamedTuple):
    """The order of the parts of an einsum in its canonical form.

    Attributes:
        rows: numbers of rows, in canonical order.
        positions: for each of these rows the positions of its operands.
        indices, operands, size_params: in the order of first use.
    """

    rows: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]
    indices: IndexList
    operands: tuple[Operand, ...]
    size_params: tuple[SizeParam, ...]


def compute_order(
    einsum: BatchedEinsum, graph: InducedGraph, ranks: Sequence[int]
) -> CanonicalOrder:
    """Order rows by their vertices, and the operands of a row by terms and uses."""
    rows = list(range(einsum.batch_size))
    if graph.row_vertices:
        rows.sort(key=lambda row: ranks[graph.row_vertices[row]])
    positions = _order_positions(einsum, graph, ranks, rows)
    # positions are sorted by term first, so all rows have the same terms here
    terms = [einsum.inputs[p] for p in positions[0]]
    indices = tuple(dict.fromkeys(chain(einsum.output, *terms)))
    operands: dict[str, Operand] = {}
    for row, order in zip(rows, positions, strict=True):
        factors = einsum.rows[row]
        for p in order:
            operands.setdefault(factors[p].name, factors[p])
    extents = [einsum.extents[i] for i in indices] if graph.param_vertices else []
    return CanonicalOrder(
        tuple(rows),
        positions,
        indices,
        tuple(operands.values()),
        tuple(dict.fromkeys([n for n in extents if isinstance(n, SizeParam)])),
    )


def _order_positions(
    einsum: BatchedEinsum,
    graph: InducedGraph,
    ranks: Sequence[int],
    rows: Sequence[int],
) -> tuple[tuple[int, ...], ...]:
    """Order the positions of each row by the place of the term, then of the use.

    In a batch, a sparse operand precedes dense operands with the same term, so that it
    has one position in all rows.
    """
    inputs = einsum.inputs
    term_rank = [ranks[graph.term_vertices[term]] for term in inputs]
    by_term = tuple(sorted(range(len(inputs)), key=term_rank.__getitem__))
    if len(graph.term_vertices) == len(inputs):
        return (by_term,) * len(rows)

    def order_by_term_and_use(row: int) -> tuple[int, ...]:
        operands = einsum.rows[row]
        names = [operand.name for operand in operands]
        uses = [graph.use_vertices[use] for use in zip(names, inputs, strict=True)]
        is_late = [len(rows) > 1 and not operand.storage for operand in operands]
        return tuple(
            sorted(by_term, key=lambda p: (term_rank[p], is_late[p], ranks[uses[p]]))
        )

    return tuple([order_by_term_and_use(row) for row in rows])


def build_relabeling(order: CanonicalOrder) -> Relabeling:
    """Build the relabeling that puts an einsum into its canonical order and names."""
    names = _choose_names(order)
    indices, operands, size_params = map(constantdict, names)
    return Relabeling(indices, operands, size_params, order.rows, order.positions)


def write_canonical_text(einsum: BatchedEinsum, order: CanonicalOrder) -> str:
    """Write the text of the canonical einsum, without building the einsum."""
    index, array, param = _choose_names(order)
    operands = [
        format_operand(
            array[operand.name],
            [
                param[n.name] if isinstance(n, SizeParam) else str(n)
                for n in operand.shape
            ],
            operand.dtype,
            operand.storage,
        )
        for operand in order.operands
    ]
    return join_text(
        [[index[i] for i in einsum.inputs[p]] for p in order.positions[0]],
        [index[i] for i in einsum.output],
        operands,
        [
            [array[einsum.rows[row][p].name] for p in positions]
            for row, positions in zip(order.rows, order.positions, strict=True)
        ],
    )


def _choose_names(
    order: CanonicalOrder,
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the new names of indices, operands and size parameters."""
    # letters for up to 26 indices keep the text of common einsums short
    n, letters = len(order.indices), string.ascii_lowercase
    indices = letters[:n] if n <= len(letters) else [f"i{k}" for k in range(n)]
    return (
        dict(zip(order.indices, indices, strict=True)),
        {operand.name: f"A{k}" for k, operand in enumerate(order.operands)},
        {param.name: f"N{k}" for k, param in enumerate(order.size_params)},
    )


@dataclass(frozen=True)
class Relabeling:
    """Bijections on names, and permutations of rows and of each row's operands.

    Attributes:
        indices, operands, size_params: the new name for each present name.
        rows: ``rows[k]`` is the present number of the row that becomes row ``k``.
        positions: ``positions[k][p]`` is the present position of the operand that moves
            to position ``p`` of the new row ``k``.
    """

    indices: constantdict[str, str]
    operands: constantdict[str, str]
    size_params: constantdict[str, str]
    rows: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for kind, names in (
            ("indices", self.indices),
            ("operands", self.operands),
            ("size_params", self.size_params),
        ):
            if len(set(names.values())) != len(names):
                raise _make_bijection_error(kind, dict(names))
        for order in (self.rows, *dict.fromkeys(self.positions)):
            if sorted(order) != list(range(len(order))):
                raise _make_bijection_error("rows or positions", order)

    def apply(self, einsum: BatchedEinsum) -> BatchedEinsum:
        """Relabel an einsum.

        Raises:
            InvalidEinsumError: if this is not a relabeling of ``einsum``: names or rows
                are missing, or the operands of two rows have different terms.

        >>> from feinsum.ir import array, einsum
        >>> from feinsum.canonical.form import canonicalize
        >>> e = einsum("zy,y->z", array("q", (3, 4)), array("w", 4))
        >>> form = canonicalize(e)
        >>> form.relabeling.apply(e) == form.einsum
        True
        """
        self._check_rows(einsum)
        try:
            return self._apply_names(einsum)
        except KeyError as error:
            raise _make_misfit_error("names", f"without {error}", str(einsum)) from None

    def _apply_names(self, einsum: BatchedEinsum) -> BatchedEinsum:
        indices, rows = self.indices, einsum.rows
        operands = {op.name: self._rename_operand(op) for op in einsum.operands}
        return BatchedEinsum(
            _rename(einsum.output, indices),
            tuple([_rename(einsum.inputs[p], indices) for p in self.positions[0]]),
            tuple(
                [
                    tuple([operands[rows[row][p].name] for p in positions])
                    for row, positions in zip(self.rows, self.positions, strict=True)
                ]
            ),
        )

    def _check_rows(self, einsum: BatchedEinsum) -> None:
        """Check that rows and positions fit the einsum, and that rows share terms."""
        orders = dict.fromkeys(self.positions)
        sizes = [len(self.rows), *{len(order) for order in orders}]
        if sizes != [einsum.batch_size, einsum.n_operands]:
            raise _make_misfit_error("rows and positions", sizes, str(einsum))
        if len({tuple([einsum.inputs[p] for p in order]) for order in orders}) > 1:
            raise _make_misfit_error("positions", list(orders), einsum.subscripts)

    def inverse(self) -> Relabeling:
        """Return the inverse relabeling."""
        names = self.indices, self.operands, self.size_params
        indices, operands, size_params = (
            constantdict({new: old for old, new in x.items()}) for x in names
        )
        order = _invert_permutation(self.rows)
        return Relabeling(
            indices,
            operands,
            size_params,
            order,
            tuple(_invert_permutation(self.positions[position]) for position in order),
        )

    def then(self, other: Relabeling) -> Relabeling:
        """Compose this relabeling with ``other``, which applies afterwards.

        Raises:
            InvalidEinsumError: if names or rows of ``other`` do not match.

        >>> from feinsum.ir import array, einsum
        >>> from feinsum.canonical.form import canonicalize
        >>> there = canonicalize(einsum("zy,y->z", array("q", (3, 4)), array("w", 4)))
        >>> back = there.relabeling.inverse()
        >>> dict(there.relabeling.then(back).indices)
        {'z': 'z', 'y': 'y'}
        """
        if len(self.rows) != len(other.rows):
            raise _make_misfit_error("rows", len(self.rows), len(other.rows))
        return Relabeling(
            _compose("indices", self.indices, other.indices),
            _compose("operands", self.operands, other.operands),
            _compose("size_params", self.size_params, other.size_params),
            tuple(self.rows[row] for row in other.rows),
            tuple(
                tuple(self.positions[row][p] for p in positions)
                for row, positions in zip(other.rows, other.positions, strict=True)
            ),
        )

    def _rename_operand(self, operand: Operand) -> Operand:
        params = self.size_params
        shape = tuple(
            SizeParam(params[n.name]) if isinstance(n, SizeParam) else n
            for n in operand.shape
        )
        return replace(operand, name=self.operands[operand.name], shape=shape)


def _rename(term: IndexList, names: Mapping[str, str]) -> IndexList:
    return tuple([names[index] for index in term])


def _compose(
    kind: str, first: constantdict[str, str], second: constantdict[str, str]
) -> constantdict[str, str]:
    if set(first.values()) != set(second):
        raise _make_misfit_error(kind, sorted(first.values()), sorted(second))
    return constantdict({name: second[between] for name, between in first.items()})


def _make_bijection_error(kind: str, mapping: object) -> InvalidEinsumError:
    return InvalidEinsumError(
        f"relabeling of {kind} is not a bijection: {mapping}", rules=("relabeling",)
    )


def _make_misfit_error(kind: str, actual: object, wanted: object) -> InvalidEinsumError:
    return InvalidEinsumError(
        f"the {kind} {actual} of a relabeling do not fit {wanted}",
        rules=("relabeling",),
    )


def _invert_permutation(permutation: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))
