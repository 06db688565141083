"""The kernels and tensors of the benchmark of sparse einsums."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np

from feinsum.measure.sparse_cases import compute_sparse_reference
from feinsum.nests import (
    Network,
    Operations,
    Sizes,
    build_unfactorized,
    evaluate_cost,
    list_paths,
    measure_sizes,
    parse_network,
)
from feinsum.sparse import CSF, random_profile, random_uniform, to_csf

Array = np.ndarray[Any, np.dtype[Any]]

TOLERANCE = {"float32": 1e-4, "float64": 1e-11}
"""Error tolerance, relative to the largest entry."""


@dataclass(frozen=True)
class Pattern:
    """A tensor with the profile of a FROSTT file, or a uniform one.

    Attributes:
        shape, profile: extents, and numbers of nodes at each level.
        density: share of nonzeros of a uniform pattern.
    """

    shape: tuple[int, ...]
    profile: tuple[int, ...] = ()
    density: float = 0.0

    def make_tree(self, scale: float, dtype: str) -> CSF:
        shape = tuple(max(2, round(extent * sqrt(scale))) for extent in self.shape)
        if not self.profile:
            n = max(1, round(self.density * prod(shape)))
            return to_csf(random_uniform(shape, n, seed=0, dtype=dtype))
        nodes: list[int] = []
        for extent, n_nodes in zip(shape, self.profile, strict=True):
            above = nodes[-1] if nodes else 1
            nodes.append(min(max(above, round(n_nodes * scale)), above * extent))
        return random_profile(shape, nodes, seed=0, skew=0.8, dtype=dtype)


PATTERNS = {
    "nell-2": Pattern((12_092, 9_184, 28_818), (12_092, 336_000, 76_879_419)),
    "nips": Pattern((2_482, 2_862, 14_036, 17), (2_482, 7_800, 3_101_609, 3_101_609)),
    "enron": Pattern(
        (6_066, 5_699, 244_268, 1_176), (6_066, 260_000, 31_000_000, 54_202_099)
    ),
    "vast": Pattern((165_427, 11_374, 2), (165_427, 21_000_000, 26_021_854)),
    "uniform 1e-4": Pattern((1_000, 900, 800), density=1e-4),
    "uniform 1e-2": Pattern((1_000, 900, 800), density=1e-2),
    "matrix": Pattern((2_000_000, 2_000_000), (2_000_000, 40_000_000)),
}
PATTERNS["order 6"] = Pattern((16,) * 6, density=1e-3)
KERNELS = ("spmv", "spmm", "mttkrp", "mttkrp-leaf", "tttp", "ttmc", "tttc")
CHAIN_RANK = 8
"""Ranks of TTTc, whose operands have two each."""
MOST_RESULT_BYTES = 2**29


@dataclass(frozen=True)
class Problem:
    """A kernel on a pattern.

    Attributes:
        subscripts: with the sparse tensor first.
        factors: the dense operands; a vector for SpMV.
    """

    name: str
    subscripts: str
    tree: CSF
    factors: tuple[Array, ...]

    @property
    def is_mttkrp(self) -> bool:
        """Return whether it is MTTKRP of the root mode, SpMV or SpMM, which libraries
        support.
        """
        return self.name in ("spmv", "spmm", "mttkrp")

    @property
    def network(self) -> Network:
        is_sparse = self.name == "tttp"
        return parse_network(self.subscripts, has_sparse_output=is_sparse)

    @property
    def sizes(self) -> Sizes:
        return measure_sizes(self.network, [self.tree, *self.factors])

    @property
    def n_bytes(self) -> int:
        """Return the size of all arrays and of the result, each once."""
        arrays = [
            self.tree.values,
            *self.tree.indices,
            *self.tree.pointers,
        ]
        item, output = self.tree.values.itemsize, self.network.output
        result = item * prod(self.sizes.extents[i] for i in output)
        if self.name == "tttp":  # it has the entries of the tree
            result = self.tree.values.nbytes
        return result + sum(array.nbytes for array in (*arrays, *self.factors))

    def compute_reference(self) -> Array:
        """Compute the result entry by entry."""
        return compute_sparse_reference(self.network, [self.tree, *self.factors])

    def check(self, name: str, value: Array | CSF) -> None:
        """End the benchmark if a result is wrong."""
        expected = self.compute_reference()
        result = value.values if isinstance(value, CSF) else value
        error = np.abs(result - expected).max() / np.abs(expected).max()
        if not error <= TOLERANCE[self.tree.values.dtype.name]:
            raise SystemExit(f"{name} is wrong by {error:.1e}: {self.subscripts}")

    def compare_operations(self) -> float:
        """Return the operations of the unfactorized nest over those of the best
        path.
        """
        cost = Operations(self.network, self.sizes)
        nest = build_unfactorized(self.network)
        least = min(cost.least(path) for path in list_paths(self.network))
        return float(evaluate_cost(cost, nest.path, nest.orders)) / least


def make_problem(kernel: str, tree: CSF, rank: int, dtype: str) -> Problem:
    rng = np.random.default_rng(1)
    indices, ranks = "ijklmn"[: tree.order], "rstuv"
    extents = dict(zip(indices, tree.shape, strict=True))
    match kernel:
        case "ttmc":
            terms = [f"{i}{r}" for i, r in zip(indices[1:], ranks, strict=False)]
            output = "i" + ranks[: tree.order - 1]
        case "tttc":
            terms, output = ["ia", "ajb", "bkc", "cld", "dme"], "en"
            ranks, rank = "abcde", CHAIN_RANK
        case "tttp":
            ranks = "a"
            terms, output = [f"{i}a" for i in indices], indices
        case "mttkrp-leaf":
            ranks = "a"
            terms, output = [f"{i}a" for i in indices[:-1]], f"{indices[-1]}a"
        case _:
            ranks = "" if kernel == "spmv" else "a"
            terms, output = [f"{i}{ranks}" for i in indices[1:]], f"i{ranks}"
    extents |= dict.fromkeys(ranks, rank)
    shapes = [tuple(extents[i] for i in term) for term in terms]
    return Problem(
        kernel,
        f"{indices},{','.join(terms)}->{output}",
        tree,
        tuple(rng.random(shape).astype(dtype) for shape in shapes),
    )


def is_applicable(kernel: str, shape: Pattern, tree: CSF, rank: int) -> bool:
    """Return whether a kernel fits a pattern, and the result fits into memory."""
    order = len(shape.shape)
    if (order == 6) != (kernel == "tttc") or (order == 2) != kernel.startswith("sp"):
        return False
    if kernel == "ttmc":
        n_bytes = tree.values.itemsize * tree.shape[0] * rank ** (order - 1)
        return n_bytes <= MOST_RESULT_BYTES
    return True
