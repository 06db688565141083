"""What is evaluated: the entries of the suites, their arrays and references.

Source: paper, sections 8.1 (operators of discontinuous Galerkin methods) and 8.2
(the contractions of TCCG, with operands that are not in memory).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import opt_einsum

import feinsum
from benchmarks.experiments.drawn import drawn_entries, drawn_entry
from benchmarks.experiments.functions import (
    Affine,
    Average,
    Function,
    Plain,
    Shape,
    Stack,
)
from feinsum.measure import count_operations
from feinsum.suites import EVERYDAY, SuiteEntry, read_suite, scale_sizes

_DG_FUNCTIONS: dict[str | None, Callable[[str], Function]] = {
    "0.5*(flux_n+flux_p)": Average,
    "stack([u,v,w]) along x": Stack,
    None: Plain,
}


@dataclass(frozen=True)
class Entry:
    """A batched einsum whose operands are functions.

    Attributes:
        group: the part of its suite: a category of TCCG, an operator of DG.
        rows: for each row the functions of its operands.
        sizes: the extent of every index.
        parametric: indices whose extents the kernel gets at run time.
        dtype: of all arrays.
    """

    suite: str
    name: str
    group: str
    subscripts: str
    rows: tuple[tuple[Function, ...], ...]
    sizes: Mapping[str, int]
    parametric: tuple[str, ...] = ()
    dtype: str = "float64"

    @property
    def terms(self) -> list[str]:
        return self.subscripts.partition("->")[0].split(",")

    @property
    def output(self) -> str:
        return self.subscripts.partition("->")[2]

    @property
    def outputs(self) -> list[str]:
        return [f"out{k}" for k in range(len(self.rows))]

    @property
    def operands(self) -> dict[Function, str]:
        """Every function once, with the indices of its axes."""
        return {
            function: term
            for row in self.rows
            for function, term in zip(row, self.terms, strict=True)
        }

    @property
    def arrays(self) -> dict[str, Shape]:
        """The arrays in memory."""
        return {
            name: shape
            for function, term in self.operands.items()
            for name, shape in function.shapes(self.shape(term)).items()
        }

    @property
    def scalars(self) -> dict[str, float]:
        return {k: v for f in self.operands for k, v in f.scalars.items()}

    def shape(self, term: str) -> Shape:
        return tuple(self.sizes[index] for index in term)

    @property
    def n_points(self) -> int:
        """Points of the loop nest, which is what the untransformed kernel visits."""
        return len(self.rows) * prod(self.sizes.values())

    @property
    def n_terms(self) -> int:
        """Products that are summed for one entry of a result."""
        return prod(n for index, n in self.sizes.items() if index not in self.output)

    @property
    def flops(self) -> int:
        """``2*prod(extents)`` for a contraction of two operands, as TCCG counts; else
        the operations of the cheapest order of contraction, row by row. The functions
        of the operands are not counted.
        """
        if len(self.terms) == 2:
            return 2 * self.n_points
        return sum(count_operations(self.einsum(), self.parameters).values())

    @property
    def footprint_bytes(self) -> int:
        """Bytes of every array that is read and of every result, each once."""
        n_results = len(self.rows) * prod(self.shape(self.output))
        itemsize = np.dtype(self.dtype).itemsize
        return itemsize * (sum(map(prod, self.arrays.values())) + n_results)

    @property
    def parameters(self) -> dict[str, int]:
        """The run-time sizes, which are named after their indices."""
        return {f"N{index}": self.sizes[index] for index in self.parametric}

    @property
    def extents(self) -> dict[str, int | str]:
        """The extent of every index: a number, or the name of a run-time size."""
        named = {index: f"N{index}" for index in self.parametric}
        return {**self.sizes, **named}

    def einsum(self, dtype: str | None = None) -> feinsum.BatchedEinsum:
        """The idealized einsum: every operand an array.

        Args:
            dtype: of all arrays; by default that of the entry.
        """
        dtype = dtype or self.dtype
        extents = self.extents
        rows = [
            [
                feinsum.array(function.name, tuple(extents[i] for i in term), dtype)
                for function, term in zip(row, self.terms, strict=True)
            ]
            for row in self.rows
        ]
        return feinsum.batched_einsum(self.subscripts, rows)

    def values(self, seed: int = 0) -> dict[str, Any]:
        """Arrays, uniform in 0.5 to 1.5 or whole numbers, and scalars, by name."""
        rng = np.random.default_rng(seed)
        drawn = {
            name: _drawn(rng, shape, np.dtype(self.dtype))
            for name, shape in self.arrays.items()
        }
        return {**drawn, **self.scalars}

    def reference(self, values: Mapping[str, Any]) -> list[np.ndarray]:
        """The results, from operands in memory, by numpy along the best path."""
        return [
            np.asarray(
                opt_einsum.contract(
                    self.subscripts, *(f.fresh(np, values) for f in row)
                )
            )
            for row in self.rows
        ]


def _drawn(rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.kind in "iub":
        return rng.integers(0, 4, shape).astype(dtype)
    values = rng.random(shape)
    values += 0.5
    if dtype.kind == "c":
        return values.astype(dtype) * dtype.type(1 + 0.5j)
    return values.astype(dtype, copy=False)


def scaled_to(entry: Entry, max_gflop: float) -> Entry:
    """The entry with all its extents multiplied by one factor, if it is too large.

    >>> matmul = Entry("", "", "", "ac,cb->ab", ((Plain("A"), Plain("B")),),
    ...                {"a": 5136, "b": 5120, "c": 5136})
    >>> dict(scaled_to(matmul, 20).sizes)
    {'a': 2152, 'b': 2144, 'c': 2152}
    """
    return replace(entry, sizes=scale_sizes(entry.sizes, entry.flops, max_gflop * 1e9))


def with_elements(entry: Entry, scale: float) -> Entry:
    """The operator on a smaller or larger mesh; other extents stay."""
    sizes = {
        index: max(1, round(scale * n)) if index in entry.parametric else n
        for index, n in entry.sizes.items()
    }
    return replace(entry, sizes=sizes)


def tccg() -> list[Entry]:
    """The 48 contractions, of ``alpha*A + beta`` and ``gamma*B + delta``."""
    operands = (
        Affine("A", "alpha", "beta", (1.5, 0.25)),
        Affine("B", "gamma", "delta", (-0.5, 2.0)),
    )
    return [
        Entry("tccg", e.name, e.group, e.subscripts, (operands,), e.sizes)
        for e in read_suite("tccg")
    ]


def dgfem() -> list[Entry]:
    """The 40 operators; the last operand of a row is the function."""
    return [
        Entry(
            "dgfem",
            e.name,
            e.group,
            e.subscripts,
            tuple(
                (*map(Plain, row[:-1]), _DG_FUNCTIONS[e.functional_operand](row[-1]))
                for row in e.rows
            ),
            e.sizes,
            e.parametric,
        )
        for e in read_suite("dgfem")
    ]


def both_suites(
    names: str = "", *, max_gflop: float, elements_scale: float = 1.0
) -> list[Entry]:
    """Operators on a mesh of a size, and contractions of so many operations at most.

    Args:
        names: a regular expression.

    >>> [e.name for e in both_suites("^abc-bda|_b1_Ni4$", max_gflop=1)]
    ['divergence_b1_Ni4', 'gradient_b1_Ni4', 'abc-bda-dc']
    """
    entries = [
        *(with_elements(entry, elements_scale) for entry in dgfem()),
        *(scaled_to(entry, max_gflop) for entry in tccg()),
    ]
    return [entry for entry in entries if re.search(names, entry.name)]


def everyday() -> list[Entry]:
    """What public packages contract: operands are arrays, as a call gets them."""
    return list(map(_of_arrays, read_suite(EVERYDAY)))


HALVES: dict[str, tuple[str, dict[str, int]]] = {
    "product": ("ij,jk->ik", {"i": 4096, "j": 4096, "k": 4096}),
    "product of a transpose": ("ij,kj->ik", {"i": 4096, "j": 2048, "k": 4096}),
    "product of a stack": (
        "bij,bjk->bik",
        {"b": 64, "i": 1024, "j": 512, "k": 1024},
    ),
    "scores of attention": (
        "bqhd,bkhd->bhqk",
        {"b": 4, "q": 2048, "h": 16, "d": 128, "k": 2048},
    ),
    "values of attention": (
        "bhqk,bkhd->bqhd",
        {"b": 4, "h": 16, "q": 2048, "k": 2048, "d": 128},
    ),
    "grouped queries": (
        "bqgrd,bkgd->bgrqk",
        {"b": 4, "q": 1024, "g": 8, "r": 4, "d": 128, "k": 1024},
    ),
    "projection to heads": (
        "bsd,dhe->bhse",
        {"b": 8, "s": 1024, "d": 2048, "h": 16, "e": 128},
    ),
    "projection from heads": (
        "bhse,hed->bsd",
        {"b": 8, "h": 16, "s": 1024, "e": 128, "d": 2048},
    ),
    "experts": ("ecd,edf->ecf", {"e": 16, "c": 1024, "d": 1024, "f": 4096}),
    "mixture of experts": (
        "te,td,edf->tf",
        {"t": 1024, "e": 4, "d": 1024, "f": 1024},
    ),
    "bilinear form": ("bi,oij,bj->bo", {"b": 4096, "i": 256, "o": 64, "j": 256}),
    "scores of pairs": ("bi,ij,bj->b", {"b": 65536, "i": 512, "j": 512}),
    "low-rank update": (
        "bsd,dr,re->bse",
        {"b": 8, "s": 2048, "d": 4096, "r": 16, "e": 4096},
    ),
    "dot products of rows": ("bsd,bsd->bs", {"b": 64, "s": 2048, "d": 1024}),
    "outer products": ("bi,bj->bij", {"b": 512, "i": 512, "j": 512}),
    "transpose": ("bshd->bhsd", {"b": 32, "s": 1024, "h": 32, "d": 128}),
}
"""Subscripts and sizes of what models compute in half precision."""


def halves() -> list[Entry]:
    """Large calls in half precision, of either type."""
    return [
        Entry(
            "halves",
            f"{name} of {dtype}",
            "large",
            subscripts,
            (tuple(Plain(f"a{k}") for k in range(subscripts.count(",") + 1)),),
            sizes,
            dtype=dtype,
        )
        for name, (subscripts, sizes) in HALVES.items()
        for dtype in ("float16", "bfloat16")
    ]


def drawn(seed: int) -> list[Entry]:
    """Einsums of arrays that are drawn at random, in place of :func:`everyday`."""
    return list(map(_of_arrays, drawn_entries(seed)))


def _of_arrays(entry: SuiteEntry) -> Entry:
    return Entry(
        entry.suite,
        entry.name,
        entry.group,
        entry.subscripts,
        tuple(tuple(map(Plain, row)) for row in entry.rows),
        entry.sizes,
        dtype=entry.dtype,
    )


SUITES: dict[str, Callable[[], list[Entry]]] = {
    "tccg": tccg,
    "dgfem": dgfem,
    EVERYDAY: everyday,
}


def entry_at(suite: str, name: str, sizes: Mapping[str, int]) -> Entry:
    """The entry of that name, at other sizes."""
    if found := drawn_entry(name):
        entry = _of_arrays(found)
    else:
        (entry,) = [entry for entry in SUITES[suite]() if entry.name == name]
    return replace(entry, sizes=dict(sizes))
