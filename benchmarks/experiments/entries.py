"""The entries of the suites, with their operands and reference results.

Source: paper, sections 8.1 (operators of discontinuous Galerkin methods) and 8.2
(contractions of TCCG whose operands are expressions).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, prod
from random import Random
from typing import Any

import numpy as np
import opt_einsum

import feinsum
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
    """A batched einsum whose operands are functions of arrays.

    Attributes:
        group: category of TCCG, or operator of DG.
        rows: the operands of each row, as functions.
        sizes: the extent of every index.
        parametric: indices whose extents are run-time arguments of the kernel.
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
        """Return every function once, with the indices of its axes."""
        return {
            function: term
            for row in self.rows
            for function, term in zip(row, self.terms, strict=True)
        }

    @property
    def arrays(self) -> dict[str, Shape]:
        """Return the shapes of the arrays in memory."""
        return {
            name: shape
            for function, term in self.operands.items()
            for name, shape in function.list_shapes(self.get_shape(term)).items()
        }

    @property
    def scalars(self) -> dict[str, float]:
        return {k: v for f in self.operands for k, v in f.scalars.items()}

    def get_shape(self, term: str) -> Shape:
        return tuple(self.sizes[index] for index in term)

    @property
    def n_points(self) -> int:
        """Return the number of points of the loop nest that the untransformed kernel
        has.
        """
        return len(self.rows) * prod(self.sizes.values())

    @property
    def n_terms(self) -> int:
        """Return the number of products that are summed for one entry of a result."""
        return prod(n for index, n in self.sizes.items() if index not in self.output)

    @property
    def flops(self) -> int:
        """Return ``2*prod(extents)`` for a contraction of two operands, as TCCG counts.

        For others, these are the operations of the cheapest contraction path, row by
        row. Functions of operands are not counted.
        """
        if len(self.terms) == 2:
            return 2 * self.n_points
        return sum(count_operations(self.make_einsum(), self.parameters).values())

    @property
    def footprint_bytes(self) -> int:
        """Return the bytes of all arrays that are read, and of all results, each
        once.
        """
        n_results = len(self.rows) * prod(self.get_shape(self.output))
        itemsize = np.dtype(self.dtype).itemsize
        return itemsize * (sum(map(prod, self.arrays.values())) + n_results)

    @property
    def parameters(self) -> dict[str, int]:
        """Return the run-time sizes, which are named after their indices."""
        return {f"N{index}": self.sizes[index] for index in self.parametric}

    @property
    def extents(self) -> dict[str, int | str]:
        """Return the extent of every index: a number, or the name of a run-time
        size.
        """
        named = {index: f"N{index}" for index in self.parametric}
        return {**self.sizes, **named}

    def make_einsum(self, dtype: str | None = None) -> feinsum.BatchedEinsum:
        """Return the idealized einsum, whose operands are arrays.

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

    def draw_values(self, seed: int = 0) -> dict[str, Any]:
        """Draw all arrays, uniform in 0.5 to 1.5 or integers, and return scalars,
        too.
        """
        rng = np.random.default_rng(seed)
        arrays = {
            name: _draw_array(rng, shape, np.dtype(self.dtype))
            for name, shape in self.arrays.items()
        }
        return {**arrays, **self.scalars}

    def compute_reference(self, values: Mapping[str, Any]) -> list[np.ndarray]:
        """Compute the results with opt_einsum and numpy from evaluated operands."""
        return [
            np.asarray(
                opt_einsum.contract(
                    self.subscripts, *(f.evaluate(np, values) for f in row)
                )
            )
            for row in self.rows
        ]


def _draw_array(
    rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any]
) -> np.ndarray:
    if dtype.kind in "iub":
        return rng.integers(0, 4, shape).astype(dtype)
    values = rng.random(shape)
    values += 0.5
    if dtype.kind == "c":
        return values.astype(dtype) * dtype.type(1 + 0.5j)
    return values.astype(dtype, copy=False)


def limit_operations(entry: Entry, max_gflop: float) -> Entry:
    """Shrink all extents by the same factor if the entry has too many operations.

    >>> matmul = Entry("", "", "", "ac,cb->ab", ((Plain("A"), Plain("B")),),
    ...                {"a": 5136, "b": 5120, "c": 5136})
    >>> dict(limit_operations(matmul, 20).sizes)
    {'a': 2152, 'b': 2144, 'c': 2152}
    """
    return replace(entry, sizes=scale_sizes(entry.sizes, entry.flops, max_gflop * 1e9))


def scale_elements(entry: Entry, scale: float) -> Entry:
    """Return the operator on a mesh with more or fewer elements."""
    sizes = {
        index: max(1, round(scale * n)) if index in entry.parametric else n
        for index, n in entry.sizes.items()
    }
    return replace(entry, sizes=sizes)


def list_tccg() -> list[Entry]:
    """Return the 48 contractions of ``alpha*A + beta`` and ``gamma*B + delta``."""
    operands = (
        Affine("A", "alpha", "beta", (1.5, 0.25)),
        Affine("B", "gamma", "delta", (-0.5, 2.0)),
    )
    return [
        Entry("tccg", e.name, e.group, e.subscripts, (operands,), e.sizes)
        for e in read_suite("tccg")
    ]


def list_dgfem() -> list[Entry]:
    """Return the 40 operators; the last operand of each row is a function."""
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


def list_both_suites(
    names: str = "", *, max_gflop: float, elements_scale: float = 1.0
) -> list[Entry]:
    """Return operators and contractions at the given sizes.

    Args:
        names: a regular expression.

    >>> [e.name for e in list_both_suites("^abc-bda|_b1_Ni4$", max_gflop=1)]
    ['divergence_b1_Ni4', 'gradient_b1_Ni4', 'abc-bda-dc']
    """
    entries = [
        *(scale_elements(entry, elements_scale) for entry in list_dgfem()),
        *(limit_operations(entry, max_gflop) for entry in list_tccg()),
    ]
    return [entry for entry in entries if re.search(names, entry.name)]


def list_everyday() -> list[Entry]:
    """Return einsums that public packages compute, on plain arrays."""
    return list(map(_convert_entry, read_suite(EVERYDAY)))


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
"""Subscripts and sizes of typical einsums of models in half precision."""


def list_halves() -> list[Entry]:
    """Return large einsums in both half-precision types."""
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


def list_drawn(seed: int) -> list[Entry]:
    """Return random einsums, instead of :func:`list_everyday`."""
    return list(map(_convert_entry, draw_entries(seed)))


def _convert_entry(entry: SuiteEntry) -> Entry:
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
    "tccg": list_tccg,
    "dgfem": list_dgfem,
    EVERYDAY: list_everyday,
}


def find_entry(suite: str, name: str, sizes: Mapping[str, int]) -> Entry:
    """Return the entry of that name at other sizes."""
    if random_entry := find_drawn_entry(name):
        entry = _convert_entry(random_entry)
    else:
        (entry,) = [entry for entry in SUITES[suite]() if entry.name == name]
    return replace(entry, sizes=dict(sizes))


N_ENTRIES = 64
"""Entries per seed."""
N_OPERANDS = {1: 0.15, 2: 0.6, 3: 0.25}
DTYPES = {"float64": 0.5, "float32": 0.25, "complex128": 0.15, "complex64": 0.1}
POINTS = 1e5, 1e9
"""Range of the number of points of a loop nest."""
MOST_BYTES = 2e8
"""Limit for the arrays of an entry together."""
IN_OUTPUT = 0.6
"""Probability that an index of several operands is in the output."""
ALONE_IN_OUTPUT = 0.9
"""Probability that an index of one operand is in the output; these are rarely
summed.
"""
NAME = re.compile(r"drawn-(\d+)-(\d+)")


def draw_entries(seed: int) -> list[SuiteEntry]:
    """Draw the entries ``drawn-SEED-0`` to ``drawn-SEED-63`` of the everyday suite.

    >>> [e.subscripts for e in draw_entries(0)[8:11]]
    ['i,jki->jki', 'j,ik->kij', 'i,j->ji']
    """
    rng = Random(seed)
    return [_draw_entry(f"drawn-{seed}-{k}", rng) for k in range(N_ENTRIES)]


def find_drawn_entry(name: str) -> SuiteEntry | None:
    """Return the entry with that name, or None if it is not a random one."""
    match = NAME.fullmatch(name)
    return draw_entries(int(match[1]))[int(match[2])] if match else None


def _draw_entry(name: str, rng: Random) -> SuiteEntry:
    """Draw until the einsum is more than a view, and fits into memory."""
    while True:
        terms, output = _draw_subscripts(rng)
        sizes = _draw_sizes(rng, "".join(sorted({*"".join(terms)})))
        (dtype,) = rng.choices([*DTYPES], [*DTYPES.values()])
        n_entries = sum(_count_entries(term, sizes) for term in (*terms, output))
        is_view = len(terms) == 1 and len(output) == len(terms[0])
        fits = n_entries * np.dtype(dtype).itemsize <= MOST_BYTES
        if all(terms) and not is_view and fits:
            break
    n_points = prod(sizes.values())
    return SuiteEntry(
        EVERYDAY,
        name,
        "large" if n_points > 1e7 else "medium",
        f"{','.join(terms)}->{output}",
        (tuple(f"A{k}" for k in range(len(terms))),),
        sizes,
        dtype=dtype,
    )


def _draw_subscripts(rng: Random) -> tuple[Sequence[str], str]:
    """Draw the operands that have each index, whether it is summed, and the axes."""
    (n_operands,) = rng.choices([*N_OPERANDS], [*N_OPERANDS.values()])
    terms: list[list[str]] = [[] for _ in range(n_operands)]
    output = []
    for index in "ijklm"[: rng.choice((2, 3, 3, 4, 5))]:
        owners = [term for term in terms if rng.random() < 0.6] or [rng.choice(terms)]
        for term in owners:
            term.append(index)
        is_shared = len(owners) > 1
        if rng.random() < (IN_OUTPUT if is_shared else ALONE_IN_OUTPUT):
            output.append(index)
    for axes in (*terms, output):
        rng.shuffle(axes)
    return ["".join(term) for term in terms], "".join(output)


def _draw_sizes(rng: Random, indices: str) -> dict[str, int]:
    """Draw extents with ratios up to 30, for a number of points within the range."""
    least, most = map(log, POINTS)
    n_points = exp(rng.uniform(least, most))
    raw = {index: exp(rng.uniform(0, log(30))) for index in indices}
    factor = (n_points / prod(raw.values())) ** (1 / len(raw))
    return {index: max(2, round(factor * n)) for index, n in raw.items()}


def _count_entries(term: str, sizes: Mapping[str, int]) -> int:
    return prod(sizes[index] for index in term)
