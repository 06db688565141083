"""Cyclic distributions of operands and results of a plan, as in ScaLAPACK.

An einsum does not depend on the order of an index's values. Ordered by the process that
owns them, the values of each process are a block, and the plan runs unchanged. Its
blocks must have the sizes of the cyclic parts; otherwise uncounted elements would move.

Source: Blackford et al., *ScaLAPACK Users' Guide*, section 4.3 (block-cyclic
distribution).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.errors import PlanError
from feinsum.plans.distribution import Distribution
from feinsum.plans.plan import Plan

__all__ = ["cyclic_entries"]

Indices = NDArray[np.int64]

_Piece: TypeAlias = tuple[int, int, int]
"""The number of a part, and the bounds of its values."""


def cyclic_entries(
    plan: Plan, tensor: str, rank: int, block_sizes: Mapping[str, int]
) -> tuple[Indices, ...] | None:
    """The entries of a tensor in the block of a rank, for cyclic distributions.

    Of P parts of an index, part p has the values x with ``x // block_size % P == p``,
    in ascending order. A rank that passes ``A[np.ix_(*cyclic_entries(plan, "A", rank,
    ...))]`` for each operand gets those entries of the result.

    Args:
        tensor: an operand, or a result.
        block_sizes: the block size of every cyclic index; 1 is purely cyclic. All other
            indices are in blocks.

    Returns:
        For each axis the values of its index; None if the rank has no block. An index
        that the tensor does not partition has all its values, part by part.

    Raises:
        PlanError: with the rule ``cyclic``, if the parts are not as long as the blocks
            of the plan, if tensors partition an index differently, or if an axis is
            read under two names.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (7, 4)), feinsum.array("B", (4, 4))
    >>> made = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=2)
    >>> made.starts["A"].notation("ij")
    'ij->i'
    >>> [cyclic_entries(made, "A", rank, {"i": 1})[0].tolist() for rank in (0, 1)]
    [[0, 2, 4, 6], [1, 3, 5]]
    """
    for index, size in block_sizes.items():
        if index not in plan.extents or type(size) is not int or size < 1:
            raise _wrong(
                f"block size {size!r} of {index}; expected a positive integer for an "
                f"index of {', '.join(plan.extents)}"
            )
    held, terms = _held(plan), _terms(plan)
    if tensor not in held:
        raise _wrong(f"no tensor {tensor}; there are {', '.join(held)}")
    _check_names(plan, block_sizes)
    box = held[tensor].boxes(plan.shape(tensor), plan.processes).box(rank)
    if box is None:
        return None
    orders = {i: _order(plan, i, size) for i, size in block_sizes.items()}
    return tuple(
        orders.get(index, np.arange(plan.extents[index]))[first:end]
        for index, (first, end) in zip(terms[tensor], box, strict=True)
    )


def _held(plan: Plan) -> dict[str, Distribution]:
    """Where operands start and results end."""
    pairs = zip(plan.groups, plan.schedules, strict=True)
    ends = {group.output.tensor: schedule.result for group, schedule in pairs}
    return {**plan.starts, **{name: ends[name] for name in plan.outputs}}


def _terms(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {a.tensor: a.indices for g in plan.groups for a in (*g.inputs, g.output)}


def _check_names(plan: Plan, dealt: Mapping[str, int]) -> None:
    terms = _terms(plan)
    for group in plan.groups:
        for access in (*group.inputs, group.output):
            for one, other in zip(access.indices, terms[access.tensor], strict=True):
                if one != other and {one, other} & set(dealt):
                    raise _wrong(
                        f"an axis of {access.tensor} is {one} and {other}; leave both "
                        "in blocks"
                    )


def _order(plan: Plan, index: str, block_size: int) -> Indices:
    """The values of an index by the part that owns them."""
    extent = plan.extents[index]
    pieces = list(_pieces(plan, index))
    n_parts = max((n for _, n, _ in pieces), default=1)
    part = np.arange(extent) // block_size % n_parts
    ends = np.cumsum(np.bincount(part, minlength=n_parts)).tolist()
    dealt = {(p, *ab) for p, ab in enumerate(pairwise([0, *ends])) if ab[0] < ab[1]}
    for name, n, blocks in pieces:
        if n != n_parts:
            raise _wrong(
                f"{index} is in {n} parts in {name} and in {n_parts} elsewhere; deal "
                "out indices that all tensors partition alike, as in the plan of a "
                "named schedule such as summa"
            )
        if blocks != dealt:
            raise _wrong(
                f"{extent} values of {index}, dealt out in blocks of {block_size} to "
                f"{n_parts} parts, have parts of {_lengths(dealt)}; {name} has blocks "
                f"of {_lengths(blocks)}. Pass blocks, or choose sizes that divide"
            )
    return np.argsort(part, kind="stable")


def _pieces(plan: Plan, index: str) -> Iterator[tuple[str, int, set[_Piece]]]:
    """The partitions of an index by tensors: number of parts, and each rank's part."""
    terms = _terms(plan)
    for name, held in _held(plan).items():
        axis = terms[name].index(index) if index in terms[name] else -1
        cuts = list(held.cuts[axis]) if axis >= 0 else []
        sizes = [held.machine.sizes[k] for k in cuts]
        if prod(sizes) == 1:
            continue
        boxes = held.boxes(plan.shape(name), plan.processes)
        places = held.machine.coordinates(plan.processes)[:, cuts]
        parts = np.ravel_multi_index(tuple(places.T), sizes)
        rows = np.stack([parts, boxes.first[:, axis], boxes.end[:, axis]], axis=1)
        pieces = {tuple(row) for row in rows[boxes.is_there].tolist()}
        yield name, prod(sizes), pieces


def _lengths(pieces: set[_Piece]) -> str:
    return ", ".join(str(end - first) for _, first, end in sorted(pieces))


def _wrong(message: str) -> PlanError:
    return PlanError(message, rules=("cyclic",))
