"""Sparse tensors on many processes, distributed cyclically over their axes.

Process ``q`` of a grid over the axes of the tensor holds the entries whose index along
every axis is ``q`` modulo the processes there, which spreads dense and empty parts
evenly. ``y[i] = A[i,j] * x[j]`` with a sparse 4 x 6 matrix on a grid of 2 x 2::

                x   j = 0 1 2 3 4 5
                        0 1 0 1 0 1     ranks 0 and 2 have x[0::2], 1 and 3 x[1::2]
    y               A
    i = 0: 0 + 1        0 1 0 1 0 1     rank of each entry of A
    i = 1: 2 + 3        2 3 2 3 2 3
    i = 2: 0 + 1        0 1 0 1 0 1     ranks 0 and 1 have partial sums of y[0::2]
    i = 3: 2 + 3        2 3 2 3 2 3

Entries never move. A dense factor is distributed cyclically along the axes that it
shares with the tensor, and is whole along all others; processes that need the same part
hold copies. Results are summed over the processes that hold the same part of them.

Source: Kanakagiri and Solomonik 2024 (SpTTN-Cyclops), on distributed tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
from constantdict import constantdict
from numpy.typing import NDArray

from feinsum.distributed.grids import largest_grids
from feinsum.distributed.local import tuned_leaf
from feinsum.distributed.mpi import abort_on_error, agree, world, wrong_size
from feinsum.distributed.plans import read_document
from feinsum.errors import PlanError
from feinsum.records.document import STRICT, content_id, to_json
from feinsum.sparse import COO, SparseArray, to_coo
from feinsum.words import counted

SparseLeaf: TypeAlias = Callable[..., Any]
"""From subscripts, a sparse array and dense ones to their einsum."""


@dataclass(frozen=True)
class CyclicCounts:
    """Elements of all processes together; entries of the sparse tensor never move.

    Attributes:
        resident: elements of dense factors on all processes.
        fetched: those beyond one copy of each factor.
        partial: elements of results before they are summed.
        reduced: those that pass between processes.
    """

    resident: int
    fetched: int
    partial: int
    reduced: int

    @property
    def moved(self) -> int:
        return self.fetched + self.reduced


@dataclass(frozen=True)
class CyclicPlan:
    """An einsum whose first operand is sparse, on a grid over that operand's axes.

    Args:
        subscripts: with a letter for each index.
        extents: of every index.
        grid: processes along each axis of the sparse operand.

    >>> mttkrp = CyclicPlan("ijk,ja,ka->ia", dict(i=8, j=8, k=8, a=4), (2, 2, 2))
    >>> mttkrp.counts
    CyclicCounts(resident=256, fetched=192, partial=128, reduced=96)
    """

    __pydantic_config__ = STRICT

    subscripts: str
    extents: Mapping[str, int]
    grid: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "extents", constantdict(sorted(self.extents.items())))
        object.__setattr__(self, "grid", tuple(self.grid))
        problem = _plan_problem(self)
        if problem is not None:
            raise PlanError(problem, rules=("sparse",))

    @property
    def processes(self) -> int:
        return prod(self.grid)

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """Indices of the sparse operand, of each factor, and of the result."""
        return tuple(self.subscripts.replace("->", ",").split(","))

    @cached_property
    def coordinates(self) -> NDArray[np.int64]:
        """Coordinates of every rank along every axis of the grid, row-major."""
        ranks = np.arange(self.processes)
        return np.stack(np.unravel_index(ranks, self.grid), axis=1)

    def part(self, term: str, rank: int) -> tuple[slice, ...]:
        """Return the part of a dense tensor on a rank: strided slices."""
        axes = {index: axis for axis, index in enumerate(self.terms[0])}
        return tuple(
            slice(int(self.coordinates[rank, axes[i]]), None, self.grid[axes[i]])
            if i in axes
            else slice(None)
            for i in term
        )

    def shape(self, term: str, rank: int) -> tuple[int, ...]:
        """Return the shape of that part."""
        pairs = zip(term, self.part(term, rank), strict=True)
        return tuple(len(range(self.extents[i])[part]) for i, part in pairs)

    @cached_property
    def counts(self) -> CyclicCounts:
        """Exact sums over all ranks."""
        *factors, output = self.terms[1:]
        ranks = range(self.processes)

        def resident(term: str) -> int:
            return sum(prod(self.shape(term, rank)) for rank in ranks)

        def size(term: str) -> int:
            return prod(self.extents[i] for i in term)

        # each copy beyond the first was fetched; each partial sum beyond one per
        # element moves
        copies, once = sum(map(resident, factors)), sum(map(size, factors))
        partial = resident(output)
        return CyclicCounts(copies, copies - once, partial, partial - size(output))

    def split(self, array: SparseArray) -> tuple[COO, ...]:
        """Return the entries of every rank, with rank-local indices."""
        entries = to_coo(array)
        if entries.shape != tuple(self.extents[i] for i in self.terms[0]):
            raise PlanError(
                f"the sparse operand has shape {entries.shape}; expected "
                f"{tuple(self.extents[i] for i in self.terms[0])}",
                rules=("blocks",),
            )
        pairs = list(zip(entries.indices, self.grid, strict=True))
        # the row-major rank of the coordinates modulo the grid
        owner = np.zeros(entries.nnz, np.int64)
        for indices, n in pairs:
            owner = owner * n + indices % n
        # stable, so that a rank adds up entries in the order in which they were given
        order = np.argsort(owner, kind="stable")
        ends = np.searchsorted(owner[order], np.arange(self.processes + 1))
        parts = []
        for rank in range(self.processes):
            mine = order[ends[rank] : ends[rank + 1]]
            local = tuple(indices[mine] // n for indices, n in pairs)
            shape = self.shape(self.terms[0], rank)
            parts.append(COO(shape, local, entries.values[mine]))
        return tuple(parts)

    def simulate(
        self,
        array: SparseArray,
        factors: Sequence[Any],
        *,
        leaf: SparseLeaf | None = None,
    ) -> NDArray[Any]:
        """Compute the whole result by all ranks, one after another.

        Raises:
            PlanError: with the rule ``blocks``, if an operand has the wrong shape.
        """
        dense = [np.asarray(factor) for factor in factors]
        *terms, output = self.terms[1:]
        for term, factor in zip(terms, dense, strict=True):
            expected = tuple(self.extents[i] for i in term)
            if factor.shape != expected:
                raise PlanError(
                    f"the factor {term} has shape {factor.shape}; expected {expected}",
                    rules=("blocks",),
                )
        dtype = np.result_type(to_coo(array).values, *dense)
        result = np.zeros([self.extents[i] for i in output], dtype)
        work = leaf or sparse_leaf
        for rank, entries in enumerate(self.split(array)):
            blocks = [f[self.part(t, rank)] for t, f in zip(terms, dense, strict=True)]
            result[self.part(output, rank)] += work(self.subscripts, entries, *blocks)
        return result

    def run(
        self,
        entries: COO,
        blocks: Sequence[Any],
        comm: Any = None,
        *,
        leaf: SparseLeaf | None = None,
    ) -> NDArray[Any] | None:
        """Compute this rank's part of the result, together with all other ranks.

        Uses a Cartesian communicator with the plan's grid; a collective on each of its
        subgrids sums partial results.

        Args:
            entries: the entries of this rank, as returned by :meth:`split`.
            blocks: this rank's :meth:`part` of every factor.
            comm: an mpi4py communicator; by default ``COMM_WORLD``.
            leaf: function that computes a block; by default
                :func:`feinsum.call_einsum`.

        Returns:
            The :meth:`part` of the result on the first rank that has it, and None on
            the others.

        Raises:
            PlanError: on all ranks, with the rule ``mpi``, ``digest`` or ``blocks``.
        """
        comm = world() if comm is None else comm
        refusal = wrong_size(self, comm)
        if refusal is None:
            refusal = self._wrong_blocks(entries, blocks, comm.Get_rank())
        # no rank begins if another one cannot: it would wait for ever
        agree(self, comm, refusal)
        results: list[NDArray[Any] | None] = []
        abort_on_error(
            comm, lambda: results.append(self._reduce(entries, blocks, comm, leaf))
        )
        return results[0]

    def _wrong_blocks(
        self, entries: COO, blocks: Sequence[Any], rank: int
    ) -> PlanError | None:
        shapes = [entries.shape, *(np.shape(block) for block in blocks)]
        expected = [self.shape(term, rank) for term in self.terms[:-1]]
        if shapes == expected:
            return None
        return PlanError(
            f"rank {rank} has blocks of shapes {shapes}; expected {expected}",
            rules=("blocks",),
        )

    def _reduce(
        self, entries: COO, blocks: Sequence[Any], comm: Any, leaf: SparseLeaf | None
    ) -> NDArray[Any] | None:
        output = self.terms[-1]
        work = leaf or tuned_leaf()
        partial = np.ascontiguousarray(work(self.subscripts, entries, *blocks))
        # without reordering, for ranks have their blocks already
        grid = comm.Create_cart(self.grid)
        same = grid.Sub([index not in output for index in self.terms[0]])
        # the first of the ranks that have partial sums of one part
        is_first = same.Get_rank() == 0
        total = np.empty_like(partial) if is_first else None
        same.Reduce(partial, total, root=0)
        same.Free()
        grid.Free()
        return total

    @cached_property
    def id(self) -> str:
        """SHA-256 of the document."""
        return content_id(self)

    def to_json(self) -> str:
        """Return the plan as a document."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> CyclicPlan:
        """Read and check a document written by :meth:`to_json`."""
        return read_document(cls, text, "cyclic plan")


def plan_cyclic(
    subscripts: str, extents: Mapping[str, int], *, processes: int
) -> CyclicPlan:
    """Choose the grid over the sparse operand's axes that moves the fewest elements.

    Considers all grids with no more processes along an axis than it has values; ties go
    to the most even grid.

    Args:
        subscripts: with a letter for each index; the first operand is sparse.
        extents: of every index.
        processes: number of processes; fewer are used if there is no grid of this size.

    >>> plan_cyclic("ijk,ja,ka->ia", dict(i=64, j=64, k=8, a=4), processes=8).grid
    (2, 4, 1)
    """
    modes = subscripts.partition(",")[0].partition("->")[0]
    # checks the arguments once
    whole = CyclicPlan(subscripts, extents, (1,) * len(modes))
    grids = largest_grids(processes, modes, whole.extents).tolist()
    plans = [CyclicPlan(subscripts, extents, tuple(grid)) for grid in grids]
    return min(plans, key=lambda plan: (plan.counts.moved, max(plan.grid)))


def sparse_leaf(
    subscripts: str, array: SparseArray, *blocks: NDArray[Any]
) -> NDArray[Any]:
    """Compute the reference: numpy, entry by entry.

    The indices of the sparse operand become one index ``Z`` over its entries.

    >>> rows = COO((2, 3), ([0, 1, 1], [2, 0, 2]), [5.0, 6.0, 7.0])
    >>> sparse_leaf("ij,ja->ia", rows, np.ones((3, 2))).tolist()
    [[5.0, 5.0], [13.0, 13.0]]
    """
    *terms, output = subscripts.replace("->", ",").split(",")
    entries = to_coo(array)
    modes, rows = terms[0], dict(zip(terms[0], entries.indices, strict=True))
    left, arrays = ["Z"], [entries.values]
    extents = dict(zip(modes, entries.shape, strict=True))
    for term, block in zip(terms[1:], blocks, strict=True):
        extents.update(zip(term, block.shape, strict=True))
        shared = [i for i in term if i in rows]
        rest = [i for i in term if i not in rows]
        transposed = block.transpose([term.index(i) for i in (*shared, *rest)])
        left.append(("Z" if shared else "") + "".join(rest))
        selected = tuple(rows[i] for i in shared)
        arrays.append(transposed[selected] if shared else transposed)
    sparse_indices = [i for i in output if i in rows]
    others = [i for i in output if i not in rows]
    text = f"{','.join(left)}->{'Z' if sparse_indices else ''}{''.join(others)}"
    values: NDArray[Any] = np.einsum(text, *arrays)
    if not sparse_indices:
        return values
    order = (*sparse_indices, *others)
    result = np.zeros([extents[i] for i in order], values.dtype)
    np.add.at(result, tuple(rows[i] for i in sparse_indices), values)
    return np.array(result.transpose([order.index(i) for i in output]), order="C")


def _plan_problem(plan: CyclicPlan) -> str | None:
    terms = plan.subscripts.replace("->", ",").split(",")
    if plan.subscripts.count("->") != 1 or len(terms) < 3 or "Z" in plan.subscripts:
        return (
            f"{plan.subscripts!r}; expected a sparse operand, dense ones and a result, "
            "such as 'ijk,ja,ka->ia', and no index called Z"
        )
    if any(len(set(term)) != len(term) or not term.isalpha() for term in terms[:-1]):
        return f"{plan.subscripts} has an index twice in one term, or an empty term"
    used = set("".join(terms[:-1]))
    if missing := sorted(
        set("".join(terms)) ^ set(plan.extents) | set(terms[-1]) - used
    ):
        return (
            f"{', '.join(missing)}: an index without an extent, or of the result only"
        )
    if set(terms[0]) <= set(terms[-1]):
        return (
            f"the result of {plan.subscripts} has all indices of the sparse operand; "
            "its entries stay where they are, and no plan is needed"
        )
    if len(plan.grid) != len(terms[0]) or min(plan.grid) < 1:
        return (
            f"grid {plan.grid} for {counted(len(terms[0]), 'axis')}; "
            "expected numbers from 1"
        )
    return None
