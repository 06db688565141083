"""Common programs, such as attention, layer norms and CCSD terms, for a builder.

Sizes may be integers or names of size parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from feinsum.errors import ProgramError
from feinsum.ir import Extent
from feinsum.programs.builder import ProgramBuilder, Tensor

Size = Extent | str


def attention(
    p: ProgramBuilder, Q: Tensor, K: Tensor, V: Tensor, *, causal: bool = False
) -> Tensor:
    """Add scaled dot-product attention of one or several heads.

    Args:
        p: the program to add to.
        Q: of shape (tokens, heads, entries of a head).
        K: keys, of the same shape as ``Q`` but with their own number of tokens.
        V: values, of the shape of ``K``.
        causal: whether a token attends only to tokens up to itself.

    Returns:
        An array like ``Q``.

    Source: Vaswani and others 2017, section 3.2.1.

    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> Q, K, V = (p.input(name, (5, 2, 3)) for name in "QKV")
    >>> attention(p, Q, K, V).shape
    (5, 2, 3)
    """
    entries = Q.shape[-1]
    if not isinstance(entries, int):
        raise ProgramError(
            f"attention needs the entries of a head as a number, got {entries}"
        )
    scale = repr(float(1 / np.sqrt(entries)))
    product = "x0*x1" if scale == "1.0" else f"{scale}*x0*x1"
    scores = p.einsum("shd,thd->hst", Q, K, body=product)
    if causal:
        # exp(-inf) is 0 exactly; t = 0 is never masked, so each row has a finite
        # maximum
        scores = p.einsum("hst->hst", scores, body="x0 if t <= s else -inf")
    return p.einsum("hst,thd->shd", p.softmax(scores, "t"), V)


def multi_head_attention(
    p: ProgramBuilder,
    X: Tensor,
    *,
    heads: int,
    entries: int,
    causal: bool = False,
    dtype: DTypeLike = np.float64,
) -> Tensor:
    """Add self-attention with its four projections, the inputs ``WQ WK WV WO``.

    Args:
        p: the program to add to.
        X: of shape (tokens, features).
        heads: number of heads.
        entries: number of entries per head.
        causal: whether a token attends only to tokens up to itself.
        dtype: dtype of the projections.

    Source: Vaswani and others 2017, section 3.2.2; EinDecomp, section 3.

    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> Y = multi_head_attention(p, p.input("X", (6, 8)), heads=2, entries=4)
    >>> Y.shape, len(p.build().statements)
    ((6, 8), 10)
    """
    features = X.shape[1]
    weights = (p.input(f"W{name}", (features, heads, entries), dtype) for name in "QKV")
    Q, K, V = (p.einsum("sa,ahd->shd", X, W) for W in weights)
    mixed = attention(p, Q, K, V, causal=causal)
    WO = p.input("WO", (features, heads, entries), dtype)
    return p.einsum("shd,ahd->sa", mixed, WO)


def layer_norm(
    p: ProgramBuilder, X: Tensor, scale: Tensor, shift: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    """Normalize rows to mean zero and variance one, then scale and shift them.

    Args:
        p: the program to add to.
        X: of shape (tokens, features), the latter a number.
        scale: of shape (features,).
        shift: of shape (features,).
        epsilon: added to the variance.

    Source: Ba, Kiros and Hinton 2016.

    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> X, g, b = p.input("X", (6, 8)), p.input("g", 8), p.input("b", 8)
    >>> layer_norm(p, X, g, b).shape
    (6, 8)
    """
    n = X.shape[1]
    if not isinstance(n, int):
        raise ProgramError(f"a norm needs the features as a number, got {n}")
    mean = p.einsum("sa->s", X, body=f"x0 / {n}.0")
    centered = p.einsum("sa,s->sa", X, mean, body="x0 - x1")
    # of centered values: the mean square less the squared mean would cancel
    variance = p.einsum("sa,sa->s", centered, centered, body=f"x0*x1 / {n}.0")
    body = f"x0 / sqrt(x1 + {epsilon!r}) * x2 + x3"
    return p.einsum("sa,s,a,a->sa", centered, variance, scale, shift, body=body)


def chain(p: ProgramBuilder, *factors: Tensor) -> Tensor:
    """Multiply matrices from left to right.

    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> chain(p, *(p.input(name, (4, 4)) for name in "ABC")).name
    'r1'
    """
    if len(factors) < 2:
        raise ProgramError(f"a chain has at least two factors, got {len(factors)}")
    product, *factors_left = factors
    for factor in factors_left:
        product = p.einsum("ij,jk->ik", product, factor)
    return product


def feed_forward(p: ProgramBuilder, X: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Add layers of matrix products, with ReLU between them.

    Args:
        p: the program to add to.
        X: of shape (examples, features).
        weights: of shapes (features, next features).

    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> W = [p.input("W1", (4, 9)), p.input("W2", (9, 2))]
    >>> feed_forward(p, p.input("X", (7, 4)), W).shape
    (7, 2)
    """
    return _add_layers(p, X, weights)[-1]


def feed_forward_step(
    p: ProgramBuilder, X: Tensor, target: Tensor, weights: Sequence[Tensor], rate: float
) -> tuple[Tensor, ...]:
    """Add one step of gradient descent, and return the updated weights.

    The loss is half the sum of squared differences from ``target``.

    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> X, Y = p.input("X", (7, 4)), p.input("Y", (7, 2))
    >>> W = [p.input("W1", (4, 9)), p.input("W2", (9, 2))]
    >>> [x.shape for x in feed_forward_step(p, X, Y, W, rate=0.1)]
    [(4, 9), (9, 2)]
    """
    values = _add_layers(p, X, weights)
    error = p.map("x0 - x1", values[-1], target)
    updated: list[Tensor] = []
    for k in reversed(range(len(weights))):
        gradient = p.einsum("ni,nj->ij", values[2 * k], error)
        updated.append(p.map(f"x0 - {rate!r}*x1", weights[k], gradient))
        if k:
            # by the weights before their update, at which the gradient is taken
            back = p.einsum("nj,ij->ni", error, weights[k])
            error = p.map("x0 if x1 > 0 else 0.0*x0", back, values[2 * k - 1])
    return tuple(reversed(updated))


def _add_layers(
    p: ProgramBuilder, X: Tensor, weights: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Return the input, then the products of each layer and their ReLU.

    The last layer has no ReLU.
    """
    values = [X]
    for k, W in enumerate(weights):
        values.append(p.einsum("ni,ij->nj", values[-1], W))
        if k + 1 < len(weights):
            values.append(p.map("max(x0, 0.0)", values[-1]))
    return values


def ccsd_doubles(
    p: ProgramBuilder, occupied: Size, virtual: Size, dtype: DTypeLike = np.float64
) -> Tensor:
    """Return the terms of the CCSD doubles residual that are linear in the doubles.

    Inputs are ``t`` (amplitudes, ``ijab``) and integrals by orbital spaces: the driver
    ``oovv``, the particle ladder ``vvvv``, the hole ladder ``oooo``, and the ring
    ``ovvo`` with its four permutations.

    Source: Crawford and Schaefer 2000, section 3.6 (the terms linear in the doubles).

    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> ccsd_doubles(p, 2, 3).shape
    (2, 2, 3, 3)
    """
    o, v = occupied, virtual
    t = p.input("t", (o, o, v, v), dtype)
    driver = p.input("oovv", (o, o, v, v), dtype)
    particles = p.einsum("ijef,efab->ijab", t, p.input("vvvv", (v, v, v, v), dtype))
    holes = p.einsum("mnij,mnab->ijab", p.input("oooo", (o, o, o, o), dtype), t)
    ring = p.einsum("imae,mbej->ijab", t, p.input("ovvo", (o, v, v, o), dtype))
    # 1/2: the sums over ef and mn contain each pair twice; the signs antisymmetrize the
    # ring in ij and ab
    body = "x0 + 0.5*(x1 + x2) + x3 - x4 - x5 + x6"
    terms = "ijab,ijab,ijab,ijab,jiab,ijba,jiba->ijab"
    return p.einsum(terms, driver, particles, holes, *[ring] * 4, body=body)
