"""Kernels as programs hand them to Loopy: meshmode, grudge, pytato, SEM.

Each is in the words of its program, at small sizes, with what raising makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import loopy as lp
import numpy as np
from constantdict import constantdict
from pymbolic import evaluate, parse

__all__ = ["HAND_WRITTEN", "PROGRAMS", "Program"]

NONE: Mapping[str, Any] = constantdict()
SIZES = {"n": 6, "nelements": 6, "nsrc": 5, "nunit": 3, "nfrom": 4, "nfaces": 4}


@dataclass(frozen=True)
class Program:
    """A kernel, and what it is.

    Attributes:
        arrays: shapes of floating point arguments.
        maps: integer arguments: shape, number of values, dtype.
        stored: shapes of temporaries in global memory.
        einsums: the subscripts of the nests, in order.
        refused: by instruction, the rule that it breaks.
    """

    domains: tuple[str, ...]
    text: str
    arrays: Mapping[str, str]
    maps: Mapping[str, tuple[str, int, str]] = NONE
    stored: Mapping[str, str] = NONE
    scalars: tuple[str, ...] = ()
    einsums: tuple[str, ...] = ()
    refused: Mapping[str, str] = NONE

    def kernel(self) -> lp.TranslationUnit:
        floats = {name: (shape, "f8") for name, shape in self.arrays.items()}
        integers = {name: (s, dtype) for name, (s, _, dtype) in self.maps.items()}
        args: list[Any] = [
            lp.GlobalArg(name, np.dtype(dtype), shape=shape)
            for name, (shape, dtype) in {**floats, **integers}.items()
        ]
        args += [lp.ValueArg(name, np.int32) for name in self._sizes()]
        args += [lp.ValueArg(name, np.float64) for name in self.scalars]
        return lp.make_kernel(
            list(self.domains),
            self.text,
            [*args, *self._temporaries()],
            lang_version=(2018, 2),
        )

    def arguments(self) -> dict[str, Any]:
        """An array or a number for each argument; indices are in range."""
        given = {name: _random(name, shape) for name, shape in self.arrays.items()}
        given |= {
            name: (_random(name, shape) * n_values).astype(dtype)
            for name, (shape, n_values, dtype) in self.maps.items()
        }
        return {**given, **self._sizes(), **dict.fromkeys(self.scalars, 1.5)}

    def _sizes(self) -> dict[str, int]:
        bounds = "".join(self.domains).replace(" ", "")
        return {name: x for name, x in SIZES.items() if f"<{name}" in bounds}

    def _temporaries(self) -> list[lp.TemporaryVariable]:
        return [
            lp.TemporaryVariable(
                name, np.float64, shape=shape, address_space=lp.AddressSpace.GLOBAL
            )
            for name, shape in self.stored.items()
        ]


def _random(name: str, shape: str) -> np.ndarray[Any, Any]:
    extents = evaluate(parse(f"({shape},)"), SIZES)
    return np.random.default_rng(sum(map(ord, name))).random(extents)


PICKS = {
    "from_el": ("nelements", 5, "int32"),
    "lists": ("2, nunit", 4, "int32"),
    "list_of": ("nelements", 2, "int32"),
    "present": ("nelements", 2, "int8"),
}
DOFS = ("{[iel]: 0 <= iel < nelements}", "{[idof]: 0 <= idof < nunit}")

MESHMODE = {
    "resample_by_mat": Program(
        (*DOFS, "{[j]: 0 <= j < nfrom}"),
        "result[iel, idof] = sum(j, mat[idof, j]*ary[from_el[iel], j])",
        {"result": "nelements, nunit", "mat": "nunit, nfrom", "ary": "5, nfrom"},
        {"from_el": PICKS["from_el"]},
        einsums=("{idof}j, {iel}j -> {iel}{idof}",),
    ),
    "resample_by_mat into other elements": Program(
        (
            "{[iel_init, idof_init]: 0 <= iel_init < 8 and 0 <= idof_init < nunit}",
            *DOFS,
            "{[j]: 0 <= j < nfrom}",
        ),
        """
        result[iel_init, idof_init] = 0 {id=init}
        ... gbarrier {id=barrier, dep=init}
        result[to_el[iel], idof] = sum(j, mat[idof, j]*ary[iel, j]) {id=row,dep=barrier}
        """,
        {"result": "8, nunit", "mat": "nunit, nfrom", "ary": "nelements, nfrom"},
        {"to_el": ("nelements", 1, "int32")},
        refused={
            "init": "no-operand",
            "barrier": "instruction-kind",
            "row": "assignee",
        },
    ),
    "resample_by_picking": Program(
        DOFS,
        """
        result[iel, idof] = (ary[from_el[iel], lists[list_of[iel], idof]]
                             if present[iel] != 0 else 0)
        """,
        {"result": "nelements, nunit", "ary": "5, 4"},
        PICKS,
        einsums=("{iel}{idof} -> {iel}{idof}",),
    ),
    "face_mass": Program(
        (
            "{[iel]: 0 <= iel < nelements}",
            "{[f]: 0 <= f < nfaces}",
            "{[idof, jdof]: 0 <= idof < 5 and 0 <= jdof < 3}",
        ),
        """
        result[iel, idof] = sum(f, sum(jdof, mat[idof, f, jdof]
            *jac[f, iel]*vec[f*nelements + iel, jdof]))
        """,
        {
            "result": "nelements, 5",
            "mat": "5, nfaces, 3",
            "jac": "nfaces, nelements",
            "vec": "nfaces*nelements, 3",
        },
        einsums=("{idof}f{jdof}, f{iel}, f{iel}{jdof} -> {iel}{idof}",),
    ),
    "elementwise_sum": Program(
        (*DOFS, "{[jdof]: 0 <= jdof < nunit}"),
        "result[iel, idof] = sum(jdof, operand[iel, jdof]) {id=row}",
        {"result": "nelements, nunit", "operand": "nelements, nunit"},
        einsums=("{iel}{idof}{jdof} -> {iel}{idof}",),
    ),
}

OUT = "{[d0, d1]: 0 <= d0 <= 6 and 0 <= d1 <= 4}"
SUM = "{[r0, r1]: 0 <= r0 <= 3 and 0 <= r1 <= 2}"

PYTATO = {
    "stack": Program(
        ("{ : }", "{[d0, d1, d2]: 0 <= d0 <= 1 and 0 <= d1 <= 6 and 0 <= d2 <= 4}"),
        "out[d0, d1, d2] = a[d1, d2] if d0 == 0 else b[d1, d2]",
        {"a": "7, 5", "b": "7, 5", "out": "2, 7, 5"},
        einsums=("{d0}{d1}{d2} -> {d0}{d1}{d2}",),
    ),
    "concatenate": Program(
        ("{ : }", OUT),
        "out[d0, d1] = a[d0, d1] if d0 >= 0 and d0 < 3 else b[d0 + -3, d1]",
        {"a": "3, 5", "b": "4, 5", "out": "7, 5"},
        einsums=("{d0}{d1} -> {d0}{d1}",),
    ),
    "einsum of a rolled and a masked array": Program(
        ("{ : }", OUT, "{[r0]: 0 <= r0 <= 3}"),
        """
        subst(p, q) := a[(p + -2) % 7, q]*(1.0 if mask[p] > 0 else -1.0)
        out[d0, d1] = sum(r0, D[d1, r0]*subst(d0, r0))
        """,
        {"a": "7, 4", "D": "5, 4", "out": "7, 5"},
        {"mask": ("7", 2, "int8")},
        einsums=("{d1}{r0}, {d0}{r0} -> {d0}{d1}",),
    ),
    "face mass of reshaped arrays": Program(
        ("{ : }", OUT, SUM),
        """
        out[d0, d1] = sum([r0, r1], M[r0, d1, r1]*jac[(r0*7 + d0) % 28, 0]
            *u[((r0*7 + d0)*3 + r1)//3, ((r0*7 + d0)*3 + r1) % 3])
        """,
        {"M": "4, 5, 3", "jac": "28, 1", "u": "28, 3", "out": "7, 5"},
        einsums=("{r0}{d1}{r1}, {r0}{d0}, {r0}{d0}{r1} -> {d0}{d1}",),
    ),
    "two stages with a barrier": Program(
        ("{ : }", "{[t0, t1]: 0 <= t0 <= 6 and 0 <= t1 <= 3}", OUT, SUM),
        """
        temp[t0, t1] = sum(r1, D[t1, r1]*a[t0, r1]) {id=store}
        ... gbarrier {id=barrier,dep=store}
        out[d0, d1] = sum(r0, E[d1, r0]*(temp[d0, r0] - 2*b[d0, r0])) {dep=barrier}
        """,
        {"a": "7, 3", "b": "7, 4", "D": "4, 3", "E": "5, 4", "out": "7, 5"},
        stored={"temp": "7, 4"},
        einsums=("{t1}{r1}, {t0}{r1} -> {t0}{t1}", "{d1}{r0}, {d0}{r0} -> {d0}{d1}"),
        refused={"barrier": "instruction-kind"},
    ),
}


NODES = dict.fromkeys(("u", "ur", "us", "wr", "ws", "w"), "n, 3, 3, 3")

HAND_WRITTEN = {
    "SEM, interpolation": Program(
        ("{[e, i, j, k, l, m, o]: 0 <= e < n and 0 <= i,j,k < 3 and 0 <= l,m,o < 2}",),
        "v[e, i, j, k] = sum([l, m, o], I[i, l]*I[j, m]*I[k, o]*u[e, l, m, o])",
        {"v": "n, 3, 3, 3", "u": "n, 2, 2, 2", "I": "3, 2"},
        einsums=("il,jm,ko,elmo->eijk",),
    ),
    "SEM, a Laplacian in one loop over elements": Program(
        (
            "{[e]: 0 <= e < n}",
            "{[i, j, k, l, m]: 0 <= i,j,k,l,m < 3}",
            "{[a, b, c, p, q]: 0 <= a,b,c,p,q < 3}",
        ),
        """
        ur[e,i,j,k] = sum(l, D[i,l]*u[e,l,j,k]) {id=ur}
        us[e,i,j,k] = sum(m, D[j,m]*u[e,i,m,k]) {id=us}
        wr[e,i,j,k] = g[e,0,i,j,k]*ur[e,i,j,k] + g[e,1,i,j,k]*us[e,i,j,k] {id=wr,dep=us}
        ws[e,i,j,k] = g[e,1,i,j,k]*ur[e,i,j,k] + g[e,2,i,j,k]*us[e,i,j,k] {id=ws,dep=us}
        w[e,a,b,c] = sum(p, D[p,a]*wr[e,p,b,c]) {id=w,dep=wr:ws}
        w[e,a,b,c] = w[e,a,b,c] + sum(q, D[q,b]*ws[e,a,q,c]) {dep=w}
        """.replace("dep=us", "dep=ur:us"),
        {**NODES, "D": "3, 3", "g": "n, 3, 3, 3, 3"},
        einsums=(
            "il,eljk->eijk",
            "jm,eimk->eijk",
            "eijk->eijk",
            "pa,epbc->eabc",
            "qb,eaqc->eabc",
        ),
    ),
    "DG, a right-hand side and a Runge-Kutta stage in one loop over elements": Program(
        (
            "{[e]: 0 <= e < n}",
            "{[i, j, k]: 0 <= i,j,k < 5}",
            "{[m, p, l, o]: 0 <= m,p < 12 and 0 <= l,o < 5}",
        ),
        """
        rhs[e,i] = rx[e]*sum(j, Dr[i,j]*u[e,j]) {id=volume}
        rhs[e,i] = rhs[e,i] + sx[e]*sum(k, Ds[i,k]*u[e,k]) {id=more,dep=volume}
        flux[e,m] = (u[vmap[e,m]//5, vmap[e,m] % 5] - u[e, m % 5])*nx[e,m//3] {id=flux}
        rhs[e,l] = rhs[e,l] + sum(p, lift[l,p]*flux[e,p]) {id=rhs,dep=more:flux}
        res[e,o] = a*res[e,o] + dt*rhs[e,o] {id=res,dep=rhs}
        new[e,o] = u[e,o] + b*res[e,o] {dep=res}
        """,
        {
            **dict.fromkeys(("rhs", "u", "res", "new"), "n, 5"),
            **dict.fromkeys(("Dr", "Ds"), "5, 5"),
            **dict.fromkeys(("rx", "sx"), "n"),
            "flux": "n, 12",
            "nx": "n, 4",
            "lift": "5, 12",
        },
        {"vmap": ("n, 12", 30, "int32")},
        scalars=("a", "b", "dt"),
        einsums=(
            "e,ij,ej->ei",
            "e,ik,ek->ei",
            "em,em->em",
            "lp,ep->el",
            "eo->eo",
            "eo->eo",
        ),
    ),
    "DG, components of one array": Program(
        ("{[e, i, j]: 0 <= e < n and 0 <= i,j < 5}",),
        """
        out[0, e, i] = sum(j, D[i, j]*q[0, e, j])
        out[1, e, i] = sum(j, D[i, j]*q[1, e, j])
        out[2, e, i] = c*sum(j, D[i, j]*q[0, e, j]*q[1, e, j]/q[2, e, j])
        """,
        {"out": "3, n, 5", "q": "3, n, 5", "D": "5, 5"},
        scalars=("c",),
        einsums=("ij,ej->ei", "ij,ej,ej,ej->ei"),
    ),
}

PROGRAMS = {**MESHMODE, **PYTATO, **HAND_WRITTEN}
