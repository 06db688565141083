"""Sums with few results, and many short sums, which are hard to parallelize and
vectorize.
"""

from __future__ import annotations

import numpy as np

from benchmarks.totals.calls import Calls, draw_normal, draw_uniform

__all__ = ["run_covariances", "run_gates", "run_graph_attention", "run_pair_energies"]


def run_graph_attention(n_edges: int, steps: int) -> Calls:
    """Yield scores of edges by heads, and sums of their values, of growing graphs."""
    rng = np.random.default_rng(6)
    for step in range(1, steps + 1):
        shape = n_edges * step // steps, 4, 16
        queries, keys, values = (draw_uniform(rng, shape, "float32") for _ in range(3))
        scores = yield "ehd,ehd->eh", (queries, keys)
        yield "eh,ehd->hd", (scores, values)


def run_covariances(n_samples: int, steps: int) -> Calls:
    """Yield covariances of features, also weighted, as in least squares."""
    rng = np.random.default_rng(7)
    for step in range(1, steps + 1):
        n = n_samples * step // steps
        samples, weights = draw_uniform(rng, (n, 20), "float32"), rng.random(n)
        yield "ni,nj->ij", (samples, samples)
        rows = draw_uniform(rng, (n, 3, 8))
        yield "nij,n,nik->jk", (rows, weights, rows)


def run_pair_energies(n_occupied: int, n_virtual: int, steps: int) -> Calls:
    """Yield second-order energies: sums of products in two orders of the axes."""
    rng = np.random.default_rng(8)
    o, v = n_occupied, n_virtual
    amplitudes, integrals = (
        draw_normal(rng, (o, o, v, v)),
        draw_normal(rng, (o, v, o, v)),
    )
    for _ in range(steps):
        direct = yield "ijab,iajb->", (amplitudes, integrals)
        exchange = yield "ijab,ibja->", (amplitudes, integrals)
        amplitudes = amplitudes + 1e-9 * float(2 * direct - exchange)


def run_gates(n_qubits: int) -> Calls:
    """Apply one gate to each qubit of a state."""
    rng = np.random.default_rng(9)
    gate = draw_uniform(rng, (2, 2), "complex64")
    state = draw_uniform(rng, (2**n_qubits,), "complex64")
    for qubit in range(n_qubits):
        parts = state.reshape(2**qubit, 2, -1)
        state = (yield "ab,xby->xay", (gate, parts)).reshape(-1)
        state = state / np.abs(state).max()
