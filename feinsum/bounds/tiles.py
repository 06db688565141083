"""The largest sets of index tuples that some bytes can serve, for many at once.

With ``x_v`` values of every index, an array has ``P_a = prod(x_v)`` entries. At a price
for each byte, the best tile maximizes::

    sum(log x_v) - price * sum(w_a * P_a),    1 <= x_v <= N_v

which is concave in the logarithms. One coordinate after another is set to its best
value, which is ``1 / (price * sum(w_a * P_a / x_v))`` within its limits. What each
array contributes at the solution, ``s_a = price * w_a * P_a``, is its exponent in the
dual problem. Nothing relies on these numbers being exact: every set of exponents that
covers the indices gives a valid bound.

Source: geometric programming; Boyd and Vandenberghe, *Convex Optimization*, 4.5.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

__all__ = ["best_tiles"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

N_SWEEPS = 60
CONVERGED = 1e-5
"""Tolerance of a logarithm. The remaining error costs its square."""


def best_tiles(
    member: Array,
    log_weights: Array,
    log_extents: Array,
    log_prices: Array,
    *,
    n_sweeps: int = N_SWEEPS,
    converged: float = CONVERGED,
) -> tuple[Array, Array]:
    """The best tiles of G statements at P prices each.

    Args:
        member: ``(G, A, V)``, whether an array has an index.
        log_weights: ``(G, A)``, of the bytes of an entry; ``-inf`` where there is no
            array.
        log_extents: ``(G, V)``; 0 where there is no index.
        log_prices: ``(G, P)``.
        n_sweeps: over all indices, at most.
        converged: change of a logarithm in a sweep that counts as none.

    Returns:
        The logarithms of the tiles, ``(G, P, V)``, and the exponents, ``(G, P, A)``.
    """
    log_shares = log_weights[:, None, :] + log_prices[:, :, None]
    limits = np.broadcast_to(
        log_extents[:, None, :], (*log_prices.shape, log_extents.shape[1])
    )
    tiles = _start(member, log_shares, limits)
    log_shares = log_shares + np.einsum("gpv,gav->gpa", tiles, member.astype(float))
    shares = np.exp(log_shares)
    has_index = [member[:, None, :, v].astype(float) for v in range(member.shape[2])]
    with np.errstate(divide="ignore"):
        for _ in range(n_sweeps):
            largest = 0.0
            for v, its in enumerate(has_index):
                old = tiles[:, :, v]
                wanted = old - np.log((shares * its).sum(axis=2))
                new = np.minimum(np.maximum(wanted, 0.0), limits[:, :, v])
                step = new - old
                tiles[:, :, v] = new
                shares = shares * np.exp(its * step[:, :, None])
                largest = max(largest, float(np.abs(step).max(initial=0.0)))
            if largest < converged:
                break
    return tiles, shares


def _start(member: Array, log_shares: Array, limits: Array) -> Array:
    """Tiles with which no array contributes more than 1, all indices alike."""
    sizes = np.maximum(member.sum(axis=2), 1)
    room = -log_shares / sizes[:, None, :]
    each = np.where(member[:, None, :, :], room[..., None], np.inf).min(axis=2)
    found: Array = np.minimum(np.maximum(each, 0.0), limits)
    return found
