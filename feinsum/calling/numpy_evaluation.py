"""Calls that numpy evaluates: the first ones, and those that have no kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feinsum.calling.reading import Reading
from feinsum.paths import Path, find_path

__all__ = ["evaluate_by_numpy", "extents_of", "follow_path_by_numpy"]

Arrays = Sequence[Any]


def evaluate_by_numpy(reading: Reading, arrays: Arrays) -> Any:
    """The result of numpy for any call of host arrays: a view where numpy gives one."""
    einsum, extents = reading.einsum, extents_of(reading)
    if len(einsum.inputs) == 1 and {*einsum.inputs[0]} == {*einsum.output}:
        (feed,), (term,) = reading.feeds, einsum.inputs
        array = np.asarray(arrays[feed.position], reading.dtype).reshape(feed.shape)
        number = {index: k for k, index in enumerate(dict.fromkeys(term))}
        numbers = [[number[index] for index in part] for part in (term, einsum.output)]
        return np.einsum(array, *numbers)
    path = find_path(einsum.inputs, einsum.output, extents)
    return follow_path_by_numpy(reading, path, arrays)


def extents_of(reading: Reading) -> dict[str, int]:
    """The extent of each index, as a number."""
    return {
        index: n if isinstance(n, int) else reading.sizes[n.name]
        for index, n in reading.einsum.extents.items()
    }


def follow_path_by_numpy(reading: Reading, path: Path, arrays: Arrays) -> Any:
    """A new array in C order, with at most 52 indices."""
    einsum = reading.einsum
    number = {index: k for k, index in enumerate(einsum.extents)}
    given = {
        feed.name: np.asarray(arrays[feed.position], reading.dtype).reshape(feed.shape)
        for feed in reading.feeds
    }
    (row,) = einsum.rows
    parts: list[Any] = []
    for operand, term in zip(row, einsum.inputs, strict=True):
        parts += [given[operand.name], [number[index] for index in term]]
    result = np.einsum(
        *parts,
        [number[index] for index in einsum.output],
        optimize=["einsum_path", *path],
    )
    return np.array(result, order="C", copy=result.ndim == 0 or None)
