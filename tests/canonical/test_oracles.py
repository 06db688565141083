"""The canonical form against an oracle that shares no code with it."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from random import Random

import pytest
from hypothesis import Phase, find, given, settings

from feinsum.canonical import canonicalize
from feinsum.ir import BatchedEinsum, SizeParam
from tests.strategies import counts, near_pairs

SMALL = {"n_indices": 4, "n_terms": 3, "n_rows": 2}


def is_isomorphic(e: BatchedEinsum, f: BatchedEinsum) -> bool:
    """Try every bijection of the indices and of the operands (the definition)."""
    if len(e.indices) != len(f.indices) or len(e.operands) != len(f.operands):
        return False
    rows_of_f = _rows(f, {}, {})
    for image in permutations(f.indices):
        indices = dict(zip(e.indices, image, strict=True))
        if not _keeps_output_and_extents(e, f, indices):
            continue
        for targets in permutations(f.operands):
            pairs = list(zip(e.operands, targets, strict=True))
            if any(old.dtype != new.dtype for old, new in pairs):
                continue
            operands = {old.name: new.name for old, new in pairs}
            if _rows(e, indices, operands) == rows_of_f:
                return True
    return False


def _keeps_output_and_extents(
    e: BatchedEinsum, f: BatchedEinsum, indices: dict[str, str]
) -> bool:
    if tuple(indices[i] for i in e.output) != f.output:
        return False
    params = set()
    for old, new in indices.items():
        extents = e.extents[old], f.extents[new]
        if all(isinstance(x, SizeParam) for x in extents):
            params.add(extents)
        elif extents[0] != extents[1]:
            return False
    olds, news = {old for old, _ in params}, {new for _, new in params}
    return len(params) == len(olds) == len(news)


def _rows(
    e: BatchedEinsum, indices: dict[str, str], operands: dict[str, str]
) -> Counter[frozenset]:
    """Rows as a multiset of products: their order and that of factors is gone."""
    return Counter(
        frozenset(
            Counter(
                (operands.get(op.name, op.name), tuple(indices.get(i, i) for i in term))
                for op, term in zip(row, e.inputs, strict=True)
            ).items()
        )
        for row in e.rows
    )


@counts(300, 20_000)
@given(pair=near_pairs(**SMALL))
def test_one_key_exactly_if_isomorphic(
    pair: tuple[BatchedEinsum, BatchedEinsum],
) -> None:
    """Two einsums have one key exactly if the search finds an isomorphism."""
    e, f = pair
    assert (canonicalize(e).key == canonicalize(f).key) == is_isomorphic(e, f)


@pytest.mark.parametrize("answer", [True, False])
def test_pairs_of_both_kinds_occur(answer: bool) -> None:
    """The law above is not empty: some near pairs are isomorphic, some are not."""

    def is_so(pair: tuple[BatchedEinsum, BatchedEinsum]) -> bool:
        return pair[0].batch_size > 1 and is_isomorphic(*pair) == answer

    unshrunk = settings(phases=[Phase.generate], database=None)
    assert find(near_pairs(**SMALL), is_so, settings=unshrunk, random=Random(0))
