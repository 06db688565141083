"""Contractions of coupled cluster with singles and doubles.

The terms have the shapes, the intermediates and the reuse of those of the spin-adapted
equations. Their signs and factors are left out, so the amplitudes are meaningless.
"""

from __future__ import annotations

import numpy as np

from benchmarks.totals.calls import Array, Calls, draw_normal

__all__ = ["run_ccsd"]

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
