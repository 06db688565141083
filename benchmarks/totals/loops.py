"""Programs that call einsums in loops.

Layers of neural networks over batches of many sizes; explicit time steps on meshes;
sums with few results and many short sums, which are hard to parallelize and vectorize;
and iterations of coupled cluster with singles and doubles. The terms of the latter have
the shapes, intermediates and reuse of the spin-adapted equations, without their signs
and factors, so the amplitudes are meaningless.
"""

from __future__ import annotations

import numpy as np

from benchmarks.totals.calls import Array, Calls, draw_normal, draw_uniform


def run_linear(dtype: str, n_sizes: int) -> Calls:
    rng = np.random.default_rng(1)
    weights = draw_uniform(rng, (64, 32), dtype)
    for size in _draw_sizes(rng, n_sizes):
        yield "bi,oi->bo", (draw_uniform(rng, (size, 32), dtype), weights)


def run_attention(dtype: str, n_sizes: int) -> Calls:
    """Yield scores of queries and keys, and values weighted by them; without
    softmax.
    """
    rng = np.random.default_rng(2)
    for size in _draw_sizes(rng, n_sizes):
        shape = 2, 4, size // 8 + 1, 16
        queries, keys, values = (draw_uniform(rng, shape, dtype) for _ in range(3))
        scores = yield "bhqd,bhkd->bhqk", (queries, keys)
        yield "bhqk,bhkd->bhqd", (scores, values)


def run_bilinear(dtype: str, n_sizes: int) -> Calls:
    rng = np.random.default_rng(3)
    weights = draw_uniform(rng, (16, 24, 20), dtype)
    for size in _draw_sizes(rng, n_sizes):
        left, right = (
            draw_uniform(rng, (size, 16), dtype),
            draw_uniform(rng, (size, 20), dtype),
        )
        yield "bi,ijk,bk->bj", (left, weights, right)


def _draw_sizes(rng: np.random.Generator, n: int) -> list[int]:
    """Return each of 1 to n once, in random order."""
    return [int(k) + 1 for k in rng.permutation(n)]


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


MOST_LADDER_VIRTUALS = 60
"""Limit above which vvvv, the largest array, is left out, with its only term."""

TERMS = (
    ("tau", "ia,jb->ijab", "t1 t1"),
    ("F_oo", "klcd,ilcd->ki", "oovv tau"),
    ("F_oo", "klic,lc->ki", "ooov t1"),
    ("F_vv", "klcd,klad->ac", "oovv tau"),
    ("F_vv", "kacd,kd->ac", "ovvv t1"),
    ("F_ov", "klcd,ld->kc", "oovv t1"),
    ("W_oooo", "klcd,ijcd->klij", "oovv tau"),
    ("W_oooo", "klic,jc->klij", "ooov t1"),
    ("W_voov", "klcd,ilda->akic", "oovv t2"),
    ("W_voov", "kacd,id->akic", "ovvv t1"),
    ("W_voov", "klic,la->akic", "ooov t1"),
    ("W_voov", "klcd,id,la->akic", "oovv t1 t1"),
    ("W_vovo", "klcd,ilda->akci", "oovv t2"),
    ("W_vovo", "kadc,id->akci", "ovvv t1"),
    ("energy", "klcd,klcd->", "oovv tau"),
    ("energy", "kc,kc->", "F_ov t1"),
    ("singles", "ki,ka->ia", "F_oo t1"),
    ("singles", "ac,ic->ia", "F_vv t1"),
    ("singles", "kc,ikac->ia", "F_ov t2"),
    ("singles", "kc,ic,ka->ia", "F_ov t1 t1"),
    ("singles", "kaic,kc->ia", "ovov t1"),
    ("singles", "kacd,ikcd->ia", "ovvv tau"),
    ("singles", "klic,klac->ia", "ooov tau"),
    ("doubles", "klij,klab->ijab", "W_oooo tau"),
    ("doubles", "ijcd,abcd->ijab", "tau vvvv"),
    ("doubles", "ac,ijcb->ijab", "F_vv t2"),
    ("doubles", "ki,kjab->ijab", "F_oo t2"),
    ("doubles", "akic,kjcb->ijab", "W_voov t2"),
    ("doubles", "akci,kjcb->ijab", "W_vovo t2"),
    ("doubles", "bkci,kjac->ijab", "W_vovo t2"),
    ("doubles", "ic,jbac->ijab", "t1 ovvv"),
    ("doubles", "ijkb,ka->ijab", "ooov t1"),
    ("doubles", "kaic,jc,kb->ijab", "ovov t1 t1"),
    ("doubles", "kbcd,ka,ijcd->ijab", "ovvv t1 tau"),
    ("doubles", "kc,ic,kjab->ijab", "F_ov t1 t2"),
)
"""The target to which a term is added, its subscripts and its operands."""


def run_ccsd(n_occupied: int, n_virtual: int, iterations: int) -> Calls:
    """Yield all terms of each iteration, and update both amplitudes in between."""
    integrals, gaps = _draw_molecule(n_occupied, n_virtual)
    t1 = np.zeros((n_occupied, n_virtual))
    t2 = integrals["oovv"] / (gaps[:, None, :, None] + gaps[None, :, None, :])
    for _ in range(iterations):
        values = {
            **integrals,
            "t1": t1,
            "t2": t2,
            "tau": t2,
            "W_oooo": integrals["oooo"],
            "singles": integrals["ov"],
            "doubles": integrals["oovv"],
        }
        for name, subscripts, operands in TERMS:
            names = operands.split()
            if "vvvv" in names and "vvvv" not in values:
                continue
            result = yield subscripts, tuple(values[x] for x in names)
            values[name] = values[name] + result if name in values else result
        t1 = values["singles"] / gaps
        doubles = values["doubles"]
        t2 = doubles + doubles.transpose(1, 0, 3, 2)
        t2 /= 2 * (gaps[:, None, :, None] + gaps[None, :, None, :])


def _draw_molecule(o: int, v: int) -> tuple[dict[str, Array], Array]:
    """Return integrals by the spaces of their indices, and orbital energy
    differences.
    """
    rng, extents = np.random.default_rng(0), {"o": o, "v": v}
    names = ["ov", "oooo", "ooov", "oovv", "ovov", "ovvv"]
    if v <= MOST_LADDER_VIRTUALS:
        names.append("vvvv")
    scale = 0.1 / (o + v)  # small, so that the iterations converge
    integrals = {
        name: draw_normal(rng, tuple(extents[x] for x in name), scale) for name in names
    }
    occupied, virtual = np.linspace(-2, -1, o), np.linspace(1, 3, v)
    return integrals, occupied[:, None] - virtual
