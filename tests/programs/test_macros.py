"""Programs that people write again and again are right."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.errors import ProgramError
from feinsum.programs import (
    attention,
    ccsd_doubles,
    chain,
    feed_forward,
    feed_forward_step,
    layer_norm,
    multi_head_attention,
    program,
)

SOURCE = np.random.default_rng(1)


def given(p):
    return {x.name: SOURCE.uniform(-1, 1, x.shape) for x in p.build().inputs}


def softmax(x, axis):
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    p = program()
    Q, K, V = (
        p.input(name, (n, 2, 4)) for name, n in zip("QKV", (5, 7, 7), strict=True)
    )
    out = attention(p, Q, K, V, causal=causal)
    arrays = given(p)
    scores = np.einsum("shd,thd->hst", arrays["Q"], arrays["K"]) / 2
    if causal:
        scores = np.where(np.tri(5, 7, dtype=bool), scores, -np.inf)
    right = np.einsum("hst,thd->shd", softmax(scores, 2), arrays["V"])
    np.testing.assert_allclose(p.run(**arrays)[out.name], right, rtol=1e-12)


def test_multi_head_attention():
    p = program()
    out = multi_head_attention(p, p.input("X", (6, 8)), heads=2, entries=4)
    a = given(p)
    Q, K, V = (np.einsum("sa,ahd->shd", a["X"], a[f"W{n}"]) for n in "QKV")
    weights = softmax(np.einsum("shd,thd->hst", Q, K) / 2, 2)
    right = np.einsum("hst,thd,ahd->sa", weights, V, a["WO"])
    np.testing.assert_allclose(p.run(**a)[out.name], right, rtol=1e-12)


def test_layer_norm():
    p = program()
    out = layer_norm(p, p.input("X", (6, 8)), p.input("g", 8), p.input("b", 8))
    a = given(p)
    centered = a["X"] - a["X"].mean(axis=1, keepdims=True)
    right = centered / np.sqrt(a["X"].var(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        p.run(**a)[out.name], right * a["g"] + a["b"], rtol=1e-12
    )


def test_chain():
    p = program()
    shapes = {"A": (2, 3), "B": (3, 4), "C": (4, 5)}
    out = chain(p, *(p.input(*item) for item in shapes.items()))
    a = given(p)
    np.testing.assert_allclose(
        p.run(**a)[out.name], a["A"] @ a["B"] @ a["C"], rtol=1e-12
    )
    with pytest.raises(ProgramError, match="at least two factors, got 1"):
        chain(p, p.input("A", (2, 3)))


def step_by_hand(a, rate):
    """Gradients of half the sum of squares, by the chain rule."""
    H = a["X"] @ a["W1"]
    Z = np.maximum(H, 0)
    error = Z @ a["W2"] - a["Y"]
    back = (error @ a["W2"].T) * (H > 0)
    return a["W1"] - rate * a["X"].T @ back, a["W2"] - rate * Z.T @ error


def test_a_step_of_training_goes_against_the_gradient():
    p = program()
    X, Y = p.input("X", (7, 4)), p.input("Y", (7, 2))
    weights = [p.input("W1", (4, 9)), p.input("W2", (9, 2))]
    new = feed_forward_step(p, X, Y, weights, rate=0.1)
    a = given(p)
    found = p.run(**a)
    for tensor, right in zip(new, step_by_hand(a, 0.1), strict=True):
        np.testing.assert_allclose(found[tensor.name], right, rtol=1e-10)
    q = program()
    out = feed_forward(
        q, q.input("X", (7, 4)), [q.input("W1", (4, 9)), q.input("W2", (9, 2))]
    )
    right = np.maximum(a["X"] @ a["W1"], 0) @ a["W2"]
    inputs = {name: a[name] for name in ("X", "W1", "W2")}
    np.testing.assert_allclose(q.run(**inputs)[out.name], right, rtol=1e-12)


def test_terms_of_coupled_cluster():
    p = program()
    out = ccsd_doubles(p, 2, 3)
    a = given(p)
    ring = np.einsum("imae,mbej->ijab", a["t"], a["ovvo"])
    particles = np.einsum("ijef,efab->ijab", a["t"], a["vvvv"])
    holes = np.einsum("mnij,mnab->ijab", a["oooo"], a["t"])
    ring = (
        ring
        - ring.swapaxes(0, 1)
        - ring.swapaxes(2, 3)
        + ring.swapaxes(0, 1).swapaxes(2, 3)
    )
    right = a["oovv"] + (particles + holes) / 2 + ring
    np.testing.assert_allclose(p.run(**a)[out.name], right, rtol=1e-12)


def test_sizes_that_have_to_be_numbers_are_asked_for():
    p = program()
    Q = p.input("Q", (4, 2, "d"))
    with pytest.raises(ProgramError, match="entries of a head as a number, got d"):
        attention(p, Q, Q, Q)
    X = p.input("X", (4, "a"))
    with pytest.raises(ProgramError, match="features as a number, got a"):
        layer_norm(p, X, p.input("g", "a"), p.input("b", "a"))
