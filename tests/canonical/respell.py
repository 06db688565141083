"""Random spellings of an einsum, from a seed and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from constantdict import constantdict

from feinsum.canonical import Relabeling
from feinsum.ir import BatchedEinsum, IndexList

__all__ = ["random_relabeling", "respelled"]


def respelled(einsum: BatchedEinsum, seed: int = 0) -> BatchedEinsum:
    """An isomorphic einsum: other names, rows and factors in another order."""
    return random_relabeling(einsum, Random(seed)).apply(einsum)


def random_relabeling(einsum: BatchedEinsum, rng: Random) -> Relabeling:
    """Any names, any order of the rows, and of the operands of each row."""
    rows = _shuffled(range(einsum.batch_size), rng)
    first = _shuffled(range(einsum.n_operands), rng)
    others = [_among_equal_terms(einsum.inputs, first, rng) for _ in rows[1:]]
    return Relabeling(
        _renaming(einsum.indices, "pqi", rng),
        _renaming([operand.name for operand in einsum.operands], "xAi", rng),
        _renaming([param.name for param in einsum.size_params], "nN", rng),
        rows,
        (first, *others),
    )


def _among_equal_terms(
    inputs: Sequence[IndexList], positions: tuple[int, ...], rng: Random
) -> tuple[int, ...]:
    """``positions``, in another order where their terms are equal."""
    of_term: dict[IndexList, list[int]] = {}
    for p in _shuffled(positions, rng):
        of_term.setdefault(inputs[p], []).append(p)
    return tuple(of_term[inputs[p]].pop() for p in positions)


def _renaming(
    names: Sequence[str], letters: str, rng: Random
) -> constantdict[str, str]:
    pool = [f"{letter}{k}" for letter in letters for k in range(len(names))]
    return constantdict(zip(names, rng.sample(pool, len(names)), strict=True))


def _shuffled(items: Sequence[int], rng: Random) -> tuple[int, ...]:
    return tuple(rng.sample(items, len(items)))
