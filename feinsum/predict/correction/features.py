"""Features of a correction: numbers of a recipe, and numbers of its workload.

Only differences between recipes of one workload matter, so features of workload and
machine alone would order nothing. They decide how the numbers of a recipe count:
see :mod:`feinsum.predict.correction.model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from feinsum.bounds import MemoryLevel, bound_at
from feinsum.errors import BoundError
from feinsum.ir import BatchedEinsum
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.ranking import Costed

Values: TypeAlias = npt.NDArray[np.float64]


class ParameterFeatures(NamedTuple):
    """The parameters of a family that become features.

    Attributes:
        numbers: their logarithms count.
        words: with the value that counts.
        indices: the logarithms of their extents count.
    """

    numbers: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    indices: tuple[str, ...] = ()


FAMILIES: Mapping[str, ParameterFeatures] = {
    "contraction_path": ParameterFeatures(
        ("depth", "lanes", "side"), (("steps", "packed"),)
    ),
    "generic": ParameterFeatures(
        ("block", "step", "width"), (("vectors", "widest"),), ("parallel", "vector")
    ),
    "library_contraction": ParameterFeatures(),
    "library_path": ParameterFeatures(),
    "packed_contraction": ParameterFeatures(
        ("depth", "height", "lanes", "rows", "vectors", "width"),
        (("inside", "rows"), ("stores", "streamed")),
        ("register", "vector"),
    ),
    "rowwise": ParameterFeatures(
        ("block",), (("sums", "any_order"), ("vectors", "widest")), ("index",)
    ),
    "split_sum": ParameterFeatures(("parts",), (), ("index",)),
    "turned": ParameterFeatures(
        ("height", "lanes", "width"), (("stores", "streamed"),), ("vector",)
    ),
    "unroll_and_jam": ParameterFeatures(
        ("block", "rows"), (("vectors", "widest"),), ("index", "inner", "parallel")
    ),
}
"""The families of this project that have a cost, by name."""

RECIPE_FEATURES = (
    "cost",
    "is contiguous",
    *FAMILIES,
    *(
        f"{family}.{name}"
        for family, parameters in FAMILIES.items()
        for name in (
            *parameters.numbers,
            *(f"{name}={word}" for name, word in parameters.words),
            *(f"extent of {name}" for name in parameters.indices),
        )
    ),
)
"""Their names. Beside the recipe itself there are its analytic cost, and whether its
vectors run along the last axis of an array."""

CONTEXT_FEATURES = (
    "any",
    "operations per byte",
    "bytes over L2",
    "bytes over L3",
    "points",
    "contiguous results",
    "contiguous entries",
    "operands",
    "output indices",
    "summed indices",
    "itemsize",
    "is complex",
    "cores",
    "vector bytes",
    "least bytes beyond L2",
    "least bytes beyond L3",
)
"""Their names; all but numbers of operands and indices are logarithms to base 2.

The last ones are what passes the memory beyond a cache at the least, see
:mod:`feinsum.bounds`, over the bytes of all arrays: 0 where a cache is no limit.
"""

_AT = {name: k for k, name in enumerate(RECIPE_FEATURES)}
_POSITIONS = {
    family: (
        _AT[family],
        tuple((name, _AT[f"{family}.{name}"]) for name in parameters.numbers),
        tuple((name, w, _AT[f"{family}.{name}={w}"]) for name, w in parameters.words),
        tuple((name, _AT[f"{family}.extent of {name}"]) for name in parameters.indices),
    )
    for family, parameters in FAMILIES.items()
}
"""For each family its own column, and those of its parameters."""

BOUNDED_OPERANDS, BOUNDED_ROWS = 4, 16
"""Bounds of larger einsums take longer than a prediction should."""

LEAST, MOST = 1e-30, 1e30
"""Limits of plausible extents and times."""


def recipe_features(einsum: BatchedEinsum, recipes: Sequence[Costed]) -> Values:
    """Return a row for each recipe, with a column for each recipe feature.

    Args:
        einsum: with numbers for all extents.
        recipes: with their analytic costs.
    """
    extents = {index: _log(extent) for index, extent in einsum.extents.items()}
    ends = {term[-1] for term in (einsum.output, *einsum.inputs) if term}
    rows = [_row(recipe, extents, ends) for recipe in recipes]
    return np.array(rows, dtype=np.float64).reshape(-1, len(RECIPE_FEATURES))


def _row(recipe: Costed, extents: Mapping[str, float], ends: set[str]) -> list[float]:
    row = [0.0] * len(RECIPE_FEATURES)
    parameters: Mapping[str, Any] = recipe.spec.parameters
    row[0] = _log(recipe.seconds)
    # whether vectors can be loaded whole
    row[1] = float(parameters.get("vector") in ends)
    if recipe.spec.name not in _POSITIONS:
        return row
    family, numbers, words, indices = _POSITIONS[recipe.spec.name]
    row[family] = 1.0
    for name, k in numbers:
        value = parameters.get(name)
        row[k] = _log(value) if type(value) is int else 0.0
    for name, word, k in words:
        row[k] = float(parameters.get(name) == word)
    for name, k in indices:
        row[k] = extents.get(parameters.get(name, ""), 0.0)
    return row


def context_features(einsum: BatchedEinsum, machine: Machine) -> Values:
    """Return a number for each of :data:`CONTEXT_FEATURES`.

    >>> from feinsum.ir import array, einsum
    >>> product = einsum("ij,jk->ik", array("A", (64, 64)), array("B", (64, 64)))
    >>> found = dict(zip(CONTEXT_FEATURES, context_features(product, Machine())))
    >>> float(found["points"]), float(found["operands"])
    (18.0, 2.0)
    """
    n_points = einsum.batch_size * points(einsum, einsum.indices)
    n_bytes = sum(distinct_bytes(einsum))
    first = einsum.inputs[0]
    dtype = einsum.operands[0].dtype
    values = (
        1.0,
        _log(n_points) - _log(n_bytes),
        _log(n_bytes) - _log(machine.n_cores * machine.cache_bytes.get("L2", 1)),
        _log(n_bytes) - _log(machine.cache_bytes.get("L3", 1)),
        _log(n_points),
        _log(points(einsum, einsum.output[-1:])),
        _log(points(einsum, first[-1:])),
        float(einsum.n_operands),
        float(len(einsum.output)),
        float(len(einsum.summation_indices)),
        _log(dtype.itemsize),
        float(dtype.kind == "c"),
        _log(machine.n_cores),
        _log(machine.vector_bytes),
        *_beyond_caches(einsum, machine),
    )
    return np.array(values)


@lru_cache(maxsize=256)
def _beyond_caches(einsum: BatchedEinsum, machine: Machine) -> tuple[float, float]:
    """Bound how often all arrays pass beyond L2 and L3; 0 if it is not known."""
    if einsum.n_operands > BOUNDED_OPERANDS or einsum.batch_size > BOUNDED_ROWS:
        return 0.0, 0.0
    sizes = machine.cache_bytes
    levels = [
        MemoryLevel("L2", sizes.get("L2", 1), machine.n_cores),
        MemoryLevel("L3", sizes.get("L3", 1)),
        MemoryLevel("DRAM", None),
    ]
    try:
        bound = bound_at(einsum, {}, levels)
    except BoundError:  # a cache that cannot hold one step
        return 0.0, 0.0
    every = max(bound.compulsory_bytes, 1)
    near, far = (_log(level.n_bytes / every) for level in bound.levels)
    return near, far


def _log(value: Any) -> float:
    """Return the logarithm to base 2 of a number, which may be far out."""
    return log2(value) if LEAST < value < MOST else log2(MOST if value > 1 else LEAST)
