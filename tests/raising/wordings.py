"""Einsums in other words: flat arrays, loops that add, private values."""

from __future__ import annotations

from typing import Any

import loopy as lp
import numpy as np

from tests.loopy_kernels import build_kernel

__all__ = ["ROWS", "SEVERAL", "kernel"]

DG = "{[e,i,j,l,q,r,p]: 0<=e<n and 0<=i,j,l<4 and 0<=q,r,p<6}"
SHAPES = {
    "v": "n,4",
    "u": "n,4",
    "D": "4,4",
    "B": "6,4",
    "E": "4,6",
    "w": "n",
    "c": "6",
}


def kernel(
    text: str, domain: str = DG, shapes: Any = None, private: Any = None
) -> lp.TranslationUnit:
    """The kernel with those arrays that its text names."""
    named = {n: x for n, x in (shapes or SHAPES).items() if f"{n}[" in text}
    values = [
        lp.TemporaryVariable(name, np.float64, shape=shape)
        for name, shape in (private or {}).items()
    ]
    return lp.remove_unused_inames(build_kernel(domain, text, named, *values))


ROWS = {
    "a split that is used apart": (
        "v[10*eo + ei, i] = w[eo]*sum(j, D[i,j]*u[10*eo + ei, j])",
        "{[eo,ei,i,j]: 0<=eo<n and 0<=ei<10 and 0<=i,j<4}",
        {"v": "10*n,4", "u": "10*n,4", "D": "4,4", "w": "n"},
        "e,ij,eaj->eai",
    ),
    "a flat output of three inames": (
        "v[0 + i*16 + j*4 + k] = sum(q, w[0 + i*12 + j*3 + q]*D[q,k + 0])",
        "{[i,j,k,q]: 0<=i<5 and 0<=j,k<4 and 0<=q<3}",
        {"v": "80", "w": "60", "D": "3,4"},
        "aq,qk->ak",
    ),
    "an output with a size as its stride": (
        "v[i*n + e] = sum(j, D[i,j]*u[e,j])",
        "{[e,i,j]: 0<=e<n and 0<=i,j<4}",
        {"v": "4*n", "u": "n,4", "D": "4,4"},
        "ij,ej->ie",
    ),
    "a strided output": (
        "v[2*i + 1] = sum(j, D[i,j]*u[j])",
        "{[i,j]: 0<=i,j<4}",
        {"v": "8", "u": "4", "D": "4,4"},
        "ij,j->i",
    ),
    "one more": (
        "v[e,i] = sum(j, D[i,j]*u[e,j])",
        "{[e,i,j]: 0<=e<n + 1 and 0<=i,j<4}",
        {"v": "n+1,4", "u": "n+1,4", "D": "4,4"},
        "ij,ej->ei",
    ),
    "an accumulation": ("v[e,i] = v[e,i] + D[i,j]*u[e,j]", DG, None, "ij,ej->ei"),
    "an accumulation that subtracts": (
        "v[e,i] = v[e,i] - 2*D[i,j]*u[e,j]", DG, None, "ij,ej->ei",
    ),
    "an accumulation from zero": (
        "v[e,r] = 0 {id=z}\nv[e,i] = v[e,i] + D[i,j]*u[e,j] {dep=z}".replace("r", "i"),
        DG, None, "ij,ej->ei",
    ),
    "an accumulation from a value": (
        "v[e,i] = 2*w[e]*u[e,i] {id=z}\nv[e,j] = v[e,j] + E[j,q]*c[q]*u[e,j] {dep=z}",
        DG, None, "jq,q,ej->ej",
    ),
    "a private scalar": (
        "<> t = 2*w[e] {id=t}\nv[e,i] = t*sum(j, D[i,j]*u[e,j]) {dep=t}",
        DG, None, "e,ij,ej->ei",
    ),
    "a chain of private scalars": (
        ("<> s = 2*w[e] {id=s}\n<> t = s + 1 {id=t,dep=s,inames=e}\n"
        "v[e,i] = t*sum(j, D[i,j]*u[e,j]) {dep=t}"),
        DG, None, "e,ij,ej->ei",
    ),
    "a sum in a private scalar": (
        ("<> t = 0.0 {id=z,inames=e:i}\nt = t + D[i,j]*u[e,j] {id=a,dep=z}\n"
        "v[e,i] = t*w[e] {dep=a}"),
        DG, None, "e,ij,ej->ei",
    ),
    "a copy along an index": ("v[e,i] = w[e]*2", DG, None, "ei->ei"),
    "a private scalar that is assigned anew": (
        ("<> t = w[e] {id=t}\nt = 2*t {id=u,dep=t,inames=e}\n"
        "v[e,i] = t*sum(j, D[i,j]*u[e,j]) {dep=u}"), DG, None, "e,ij,ej->ei",
    ),
}  # fmt: skip


SEVERAL = {
    "sums that are added": (
        "v[e,i] = w[e] + 2*(sum(j, D[i,j]*u[e,j]) - sum(q, E[i,q]*c[q]*w[e]))", 2, {}
    ),
    "a sum of products": ("v[e,i] = sum(j, D[i,j]*u[e,j] + u[e,i]*D[j,i])", 2, {}),
    "products of sums of terms": (
        "v[e,i] = sum(j, (D[i,j] + w[e]*E[i,j])*(u[e,j] + w[e]*D[j,i]))", 4, {}
    ),
    "a private array": (
        "t[q] = sum(j, B[q,j]*u[e,j]) {id=t}\nv[e,i] = sum(r, E[i,r]*t[r]) {dep=t}",
        2, {"t": "6"},
    ),
    "a private array that is accumulated": (
        ("t[q] = 0 {id=z,inames=e:q}\nt[r] = t[r] + B[r,j]*u[e,j] {id=t,dep=z}\n"
        "v[e,i] = sum(p, E[i,p]*t[p]) {dep=t}"),
        2, {"t": "6"},
    ),
    "a private array that is scaled in place": (
        ("t[q] = sum(j, B[q,j]*u[e,j]) {id=t}\nt[r] = 2*w[e]*t[r] {id=s,dep=t}\n"
        "v[e,i] = sum(p, E[i,p]*t[p]) {dep=s}"), 2, {"t": "6"},
    ),
    "a private scalar for two values": (
        ("t = 2*w[e] {id=t,inames=e}\nv[e,i] = t*u[e,i] {id=v,dep=*t}\n"
        "t = 3*w[e] {id=s,dep=v,inames=e}\nu[e,j] = t*D[0,j] {dep=s}"),
        2, {"t": ()},
    ),
    "a sum in a condition": (
        ("t = sum(j, D[i,j]*u[e,j]) {id=t,inames=e:i}\n"
        "v[e,i] = w[e]*(t if t > 1 else 0.5) {dep=t}"), 2, {"t": ()},
    ),
    "a sum in a square": (
        ("t = sum(j, D[i,j]*u[e,j]) {id=t,inames=e:i}\n"
        "v[e,i] = w[e]*t*t {dep=t}"), 2, {"t": ()},
    ),
    "a sum that is read twice": (
        "t = sum(j, D[0,j]*u[e,j]) {id=t}\nv[e,i] = t*w[e]*u[e,i] + t {dep=t}", 2,
        {"t": ()},
    ),
}  # fmt: skip
