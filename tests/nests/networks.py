"""The kernels that the paper is about, others, and random ones; with operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feinsum.nests import Nest, Network, build_path, list_paths, parse_network
from feinsum.sparse import random_uniform, to_csf, to_dense
from tests.nests.paper import n_orders

__all__ = [
    "EXAMPLE",
    "FORMULAS",
    "KERNELS",
    "dense_operands",
    "expected",
    "operands_of",
    "random_nest",
    "random_network",
]

EXAMPLE = parse_network("ijkl,jr,ks,lt->irst")
"""The paper's example, section 5.3."""

KERNELS: dict[str, Network] = {
    "spmv": parse_network("ij,j->i"),
    "spmm": parse_network("ij,jk->ik"),
    "sddmm": parse_network("ij,ir,jr->ij", has_sparse_output=True),
    "mttkrp-3": parse_network("ijk,ja,ka->ia"),
    "mttkrp-4": parse_network("ijkl,ja,ka,la->ia"),
    "mttkrp-5": parse_network("ijklm,ja,ka,la,ma->ia"),
    "mttkrp-3 of the last mode": parse_network("ijk,ia,ja->ka"),
    "ttmc-3": parse_network("ijk,jr,ks->irs"),
    "ttmc-4": EXAMPLE,
    "ttmc-3 of all modes": parse_network("ijk,ir,js,kt->rst"),
    "tttp": parse_network("ijk,ir,jr,kr->ijk", has_sparse_output=True),
    "tttc": parse_network("ijklmn,ia,ajb,bkc,cld,dme->en"),
    "tucker": parse_network("ijk,ir,js,kt,rst,jb,kc->ibc"),
    "full sum": parse_network("ijk,j,k->"),
    "sparse operand last": parse_network("ja,ka,ijk->ia", sparse=2),
    "dense chain": parse_network("ij,jk,kl,lm->im", sparse=None),
    "divergence": parse_network("xre,rij,ej->xei", sparse=None),
}

FORMULAS = [
    ("spmv", [(0, 1)], ["ij"], lambda n, e: 2 * n[1]),
    ("spmm", [(0, 1)], ["ijk"], lambda n, e: 2 * n[1] * e["k"]),
    ("mttkrp-3", [(0, 2), (3, 1)], ["ijka", "ija"],
     lambda n, e: 2 * n[2] * e["a"] + 2 * n[1] * e["a"]),
    ("ttmc-3", [(0, 2), (3, 1)], ["ijks", "ijrs"],
     lambda n, e: 2 * n[2] * e["s"] + 2 * n[1] * e["r"] * e["s"]),
    ("ttmc-4", [(0, 3), (4, 2), (5, 1)], ["ijklt", "ijkst", "ijrst"],
     lambda n, e: 2 * n[3] * e["t"] + 2 * n[2] * e["s"] * e["t"]
     + 2 * n[1] * e["r"] * e["s"] * e["t"]),
]  # fmt: skip
"""A kernel, its path and orders, and the operations of its nest by numbers of nodes
and extents. Source: section 2.4 of the paper."""


def operands_of(net, *, extent=3, density=0.4, seed=0, nnz=None):
    """Operands in which every index has another extent, and a tree among them."""
    rng = np.random.default_rng(seed)
    extents = {i: extent + k % 2 for k, i in enumerate(sorted(net.indices))}
    shapes = [tuple(extents[i] for i in term) for term in net.inputs]
    operands = [rng.uniform(0.5, 1.5, shape) for shape in shapes]
    if net.sparse is not None:
        shape, term = shapes[net.sparse], net.inputs[net.sparse]
        n = max(1, int(density * np.prod(shape))) if nnz is None else nnz
        axes = [term.index(level) for level in net.levels]
        tree = random_uniform(shape, min(n, int(np.prod(shape))), seed=seed)
        operands[net.sparse] = to_csf(tree, axes)
    return operands


def dense_operands(operands):
    return [o if isinstance(o, np.ndarray) else to_dense(o) for o in operands]


def expected(net, operands):
    """What numpy computes; of a sparse result the entries that the tree has."""
    terms = ",".join("".join(term) for term in net.inputs)
    subscripts = f"{terms}->{''.join(net.output)}"
    dense = np.einsum(subscripts, *dense_operands(operands), optimize=True)
    if not net.has_sparse_output:
        return dense
    tree = operands[net.sparse]
    levels = []
    for level in range(tree.order):
        column = tree.indices[level]
        for pointers in tree.pointers[level:]:
            column = np.repeat(column, np.diff(pointers))
        levels.append(column)
    places = dict(zip(net.levels, levels, strict=True))
    return dense[tuple(places[i] for i in net.output)]


def random_nest(net, rng, paths=None):
    """Any path, and any orders that keep the order of the levels."""
    paths = list(list_paths(net)) if paths is None else paths
    path = paths[rng.integers(len(paths))]
    orders = []
    for term in path:
        order = [str(i) for i in rng.permutation(sorted(term.indices))]
        stored = sorted((i for i in order if i in net.level_of), key=net.level_of.get)
        left = iter(stored)
        orders.append(tuple(next(left) if i in net.level_of else i for i in order))
    return Nest(net, path, tuple(orders))


def random_network(rng, max_nests=150):
    """Two or three sparse indices, three or four tensors; and a path of few nests."""
    while True:
        stored = "ijk"[: rng.integers(2, 4)]
        dense = "abc"[: rng.integers(1, 4)]
        terms = [stored]
        for _ in range(rng.integers(2, 4)):
            size = rng.integers(1, 4)
            every = sorted(stored + dense)
            chosen = rng.permutation(every)[:size]
            terms.append("".join(chosen))
        known = sorted({i for term in terms for i in term})
        output = "".join(i for i in known if rng.random() < 0.4)
        net = parse_network(f"{','.join(terms)}->{output}")
        levels = tuple(str(i) for i in rng.permutation(net.levels))
        net = replace(net, levels=levels)
        paths = list(list_paths(net))
        path = paths[rng.integers(len(paths))]
        if 1 < n_orders(net, path) <= max_nests:
            return net, path


def path_of(net, *pairs):
    return build_path(net, list(pairs))
