"""Explicit time steps on meshes of elements."""

from __future__ import annotations

import numpy as np

from benchmarks.totals.calls import Calls, draw_normal

__all__ = ["run_dg_steps", "run_spectral_elements"]

FACES = 4


def run_dg_steps(n_nodes: int, n_elements: int, steps: int) -> Calls:
    """Solve advection on tetrahedra: gradients, face terms, and an update."""
    rng = np.random.default_rng(4)
    n_face_nodes = {4: 3, 10: 6, 20: 10}[n_nodes]
    geometry = draw_normal(rng, (3, 3, n_elements))
    derivatives = draw_normal(rng, (3, n_nodes, n_nodes), 1 / n_nodes)
    lift = draw_normal(rng, (n_nodes, FACES, n_face_nodes), 1 / n_nodes)
    areas = rng.random((FACES, n_elements)) + 0.5
    nodes = rng.integers(0, n_nodes, (FACES, n_face_nodes))
    velocity, u = draw_normal(rng, (3,)), draw_normal(rng, (n_elements, n_nodes))
    for _ in range(steps):
        gradient = yield "xre,rij,ej->xei", (geometry, derivatives, u)
        fluxes = np.ascontiguousarray(u[:, nodes].transpose(1, 0, 2))
        surface = yield "ifj,fe,fej->ei", (lift, areas, fluxes)
        volume = yield "x,xei->ei", (velocity, gradient)
        u = u + 1e-3 * (surface - volume)


def run_spectral_elements(n_points: int, n_elements: int, steps: int) -> Calls:
    """Apply a Laplacian by sum factorization, and take explicit steps with it.

    Each axis has the derivative, the weights, and the transposed derivative.
    """
    rng = np.random.default_rng(5)
    derivative = draw_normal(rng, (n_points, n_points), 1 / n_points)
    weights = rng.random((n_elements, n_points, n_points, n_points)) + 0.5
    u = draw_normal(rng, weights.shape)
    axes = (
        ("li,eijk->eljk", "li,eljk->eijk"),
        ("mj,eijk->eimk", "mj,eimk->eijk"),
        ("nk,eijk->eijn", "nk,eijn->eijk"),
    )
    for _ in range(steps):
        laplacian = np.zeros_like(u)
        for forth, back in axes:
            slope = yield forth, (derivative, u)
            flux = yield "eijk,eijk->eijk", (weights, slope)
            laplacian += yield back, (derivative, flux)
        u = u - 1e-2 * laplacian
