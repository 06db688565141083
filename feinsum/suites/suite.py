"""A reader of the suites, which are JSON files next to this module.

``tccg`` and ``dgfem`` are the suites of the paper. ``everyday`` has einsums from the
sources of public packages, at three sizes, and some of other classes and dtypes. No
cost model is fitted to its einsums ``held-out-...``.

Source: paper, sections 8.1 (operators of discontinuous Galerkin methods) and 8.2
(the contractions of TCCG).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from constantdict import constantdict

from feinsum.ir import BatchedEinsum, array, batched_einsum

NAMES = ("tccg", "dgfem")
"""The suites of the paper."""
EVERYDAY = "everyday"
"""The suite of contractions in public packages: ``read_suite(EVERYDAY)``."""
MULTIPLE = 8
"""Scaled extents are multiples of this number."""


@dataclass(frozen=True)
class SuiteEntry:
    """A workload of a suite.

    Attributes:
        suite: name of the suite.
        name: name of the entry.
        group: the group in its suite: a category of TCCG, an operator of DG, a size.
        subscripts: subscripts of the einsum.
        rows: the names of the operands of each row.
        sizes: the extent of every index.
        parametric: indices whose extents a kernel gets at run time.
        functional_operand: a description of the function that the last operand is.
        dtype: dtype of all operands.
    """

    suite: str
    name: str
    group: str
    subscripts: str
    rows: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]
    parametric: tuple[str, ...] = ()
    functional_operand: str | None = None
    dtype: str = "float64"

    @property
    def parameters(self) -> dict[str, int]:
        """The run-time sizes, which are named after their indices."""
        return {f"N{index}": self.sizes[index] for index in self.parametric}

    def einsum(self, dtype: str | None = None) -> BatchedEinsum:
        """Build the idealized einsum, in which every operand is an array.

        Args:
            dtype: dtype of all operands; by default that of the entry.
        """
        dtype = dtype or self.dtype
        named = {index: f"N{index}" for index in self.parametric}
        extents: dict[str, int | str] = {**self.sizes, **named}
        terms = self.subscripts.partition("->")[0].split(",")
        shapes = [tuple(extents[index] for index in term) for term in terms]
        rows = [
            [array(name, shape, dtype) for name, shape in zip(row, shapes, strict=True)]
            for row in self.rows
        ]
        return batched_einsum(self.subscripts, rows)


@cache
def read_suite(name: str) -> tuple[SuiteEntry, ...]:
    """Read the entries of a suite, in the order of its file.

    >>> [len(read_suite(name)) for name in NAMES]
    [48, 40]
    """
    return tuple(_make_entry(name, document) for document in read_suite_documents(name))


def read_suite_documents(name: str) -> list[dict[str, Any]]:
    """Read the entries of a suite as JSON documents."""
    text = (files("feinsum.suites") / f"{name}.json").read_text("utf-8")
    entries: list[dict[str, Any]] = json.loads(text)
    return entries


def scale_sizes(
    sizes: Mapping[str, int], operations: float, most: float
) -> dict[str, int]:
    """Scale all extents by one factor, to about ``most`` operations at most.

    The factor is the n-th root of ``most / operations``, for n indices. Extents are
    rounded down to multiples of 8, but not below 8. They do not change if there are
    fewer operations.

    >>> scale_sizes({"a": 5136, "b": 5120, "c": 5136}, 2 * 5136**2 * 5120, 20e9)
    {'a': 2152, 'b': 2144, 'c': 2152}
    """
    if operations <= most:
        return dict(sizes)
    factor = (most / operations) ** (1 / len(sizes))
    return {
        index: max(MULTIPLE, int(factor * n) // MULTIPLE * MULTIPLE)
        for index, n in sizes.items()
    }


_GROUPS = {"tccg": "category", "dgfem": "kind", EVERYDAY: "size"}


def _make_entry(suite: str, document: Mapping[str, Any]) -> SuiteEntry:
    n_operands = document["subscripts"].partition("->")[0].count(",") + 1
    usual = [[f"A{k}" for k in range(n_operands)] if suite == EVERYDAY else ["A", "B"]]
    return SuiteEntry(
        suite,
        document["name"],
        document[_GROUPS[suite]],
        document["subscripts"],
        tuple(map(tuple, document.get("args", usual))),
        constantdict(document["sizes"]),
        tuple(document.get("parametric", ())),
        document.get("functional_operand"),
        document.get("dtype", "float64"),
    )
