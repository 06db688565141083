"""Sums with few results, and many short sums: what threads and vectors share badly."""

from __future__ import annotations

import numpy as np

from benchmarks.totals.calls import Calls, normal, uniform

__all__ = ["covariances", "gates", "graph_attention", "pair_energies"]


def graph_attention(n_edges: int, steps: int) -> Calls:
    """Scores of edges by heads, and sums of their values, of graphs that grow."""
    rng = np.random.default_rng(6)
    for step in range(1, steps + 1):
        shape = n_edges * step // steps, 4, 16
        queries, keys, values = (uniform(rng, shape, "float32") for _ in range(3))
        scores = yield "ehd,ehd->eh", (queries, keys)
        yield "eh,ehd->hd", (scores, values)


def covariances(n_samples: int, steps: int) -> Calls:
    """Of features, also weighted, as in an assembly of least squares."""
    rng = np.random.default_rng(7)
    for step in range(1, steps + 1):
        n = n_samples * step // steps
        samples, weights = uniform(rng, (n, 20), "float32"), rng.random(n)
        yield "ni,nj->ij", (samples, samples)
        rows = uniform(rng, (n, 3, 8))
        yield "nij,n,nik->jk", (rows, weights, rows)


def pair_energies(n_occupied: int, n_virtual: int, steps: int) -> Calls:
    """Second-order energies: sums of products in two orders of the axes."""
    rng = np.random.default_rng(8)
    o, v = n_occupied, n_virtual
    amplitudes, integrals = normal(rng, (o, o, v, v)), normal(rng, (o, v, o, v))
    for _ in range(steps):
        direct = yield "ijab,iajb->", (amplitudes, integrals)
        exchange = yield "ijab,ibja->", (amplitudes, integrals)
        amplitudes = amplitudes + 1e-9 * float(2 * direct - exchange)


def gates(n_qubits: int) -> Calls:
    """One gate for each qubit of a state."""
    rng = np.random.default_rng(9)
    gate = uniform(rng, (2, 2), "complex64")
    state = uniform(rng, (2**n_qubits,), "complex64")
    for qubit in range(n_qubits):
        parts = state.reshape(2**qubit, 2, -1)
        state = (yield "ab,xby->xay", (gate, parts)).reshape(-1)
        state = state / np.abs(state).max()
