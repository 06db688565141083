"""Kernels as users spell them, with the same in numpy, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import loopy as lp
import numpy as np

from feinsum.ir import BatchedEinsum, array, batched_einsum, einsum
from tests.loopy_kernels import build_kernel

VERSION = (2018, 2)
N_DOFS = 10
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """A kernel in the words of its user.

    Attributes:
        einsum: the same computation, in other names and another order.
        spec: a recipe for it, in the names of the canonical einsum.
        shapes: of the input arrays; text stands for a size.
        scalars: values of the other arguments.
        in_numpy: the expected outputs.
        sizes: at which it is run: one that a tile divides, and ragged ones.
    """

    name: str
    kernel: lp.TranslationUnit
    einsum: BatchedEinsum
    spec: str
    shapes: Mapping[str, tuple[int | str, ...]]
    in_numpy: Callable[[Arrays], Mapping[str, np.ndarray]]
    scalars: Mapping[str, float]
    sizes: tuple[Mapping[str, int], ...]

    def arguments(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        rng = np.random.default_rng(1)
        arrays = {
            name: rng.normal(size=[sizes.get(n, n) for n in shape])
            for name, shape in self.shapes.items()
        }
        return {**arrays, **self.scalars, **sizes}


def texts(shapes: Mapping[str, tuple[int | str, ...]]) -> dict[str, str]:
    """The shapes of arrays as text."""
    return {name: ",".join(map(str, shape)) for name, shape in shapes.items()}


def gradients() -> Example:
    """Two DG gradients that share J and D; one operand is a mean, one is scaled."""
    shapes: dict[str, tuple[int | str, ...]] = {
        "geo": (3, 3, "n_cells"),
        "diff": (3, N_DOFS, N_DOFS),
        "um": ("n_cells", N_DOFS),
        "up": ("n_cells", N_DOFS),
        "p": ("n_cells", N_DOFS),
    }
    kernel = build_kernel(
        f"{{[a,b,c,s,t]: 0<=a,b<3 and 0<=c<n_cells and 0<=s,t<{N_DOFS}}}",
        """
        gu[a,c,s] = sum([b,t], 0.5*(um[c,t] + up[c,t])*geo[a,b,c]*diff[b,s,t])
        gp[a,c,s] = sum([t,b], diff[b,s,t]*p[c,t]*kappa*geo[a,b,c])
        """,
        {**texts(shapes), "gu,gp": f"3,n_cells,{N_DOFS}"},
        lp.ValueArg("kappa", np.float64),
        name="gradients",
    )
    J, D = array("J", (3, 3, "E")), array("D", (3, N_DOFS, N_DOFS))
    u, v = array("u", ("E", N_DOFS)), array("v", ("E", N_DOFS))

    def in_numpy(a: Arrays) -> Mapping[str, np.ndarray]:
        def gradient(u: np.ndarray) -> np.ndarray:
            return np.einsum("xre,rij,ej->xei", a["geo"], a["diff"], u, optimize=True)

        return {
            "gu": gradient(0.5 * (a["um"] + a["up"])),
            "gp": gradient(a["kappa"] * a["p"]),
        }

    return Example(
        "gradients",
        kernel,
        batched_einsum("xre,rij,ej->xei", [[J, D, u], [J, D, v]]),
        "element_blocked@1(element={long!r}, lanes=4, vectors=4, rows=5, "
        "stage_matrices=True)",
        shapes,
        in_numpy,
        {"kappa": -1.5},
        ({"n_cells": 64}, {"n_cells": 1}, {"n_cells": 37}, {"n_cells": 301}),
    )


def contraction(extent: int | str = "n") -> Example:
    """A matrix product of affine operands, the factors the wrong way round."""
    shapes: dict[str, tuple[int | str, ...]] = {"L": (extent, 20), "R": (20, 24)}
    size = [lp.ValueArg("n", np.int64)] if extent == "n" else []
    kernel = build_kernel(
        f"{{[p,q,w]: 0<=p<{extent} and 0<=q<24 and 0<=w<20}}",
        "T[q,p] = sum(w, (beta - R[w,q])*(alpha*L[p,w] + 0.25))",
        {**texts(shapes), "T": f"24,{extent}"},
        lp.ValueArg("alpha,beta", np.float64),
        *size,
        name="contraction",
    )
    A, B = array("A", ("M", 20)), array("B", (20, 24))
    return Example(
        "contraction",
        kernel,
        einsum("ik,kj->ji", A, B),
        "packed_contraction@2(vector={short!r}, register={long!r}, lanes=4, vectors=2, "
        "rows=4, inside='rows', width=96, height=96, depth=64, stores='cached')",
        shapes,
        lambda a: {
            "T": ((a["alpha"] * a["L"] + 0.25) @ (a["beta"] - a["R"])).T,
        },
        {"alpha": 1.5, "beta": 0.5},
        ({"n": 64}, {"n": 1}, {"n": 53}, {"n": 301}) if size else ({},),
    )


def reduction() -> Example:
    """The sums of the rows of a difference."""
    shapes: dict[str, tuple[int | str, ...]] = {"X": ("rows", 17), "Y": ("rows", 17)}
    kernel = build_kernel(
        "{[r,c]: 0<=r<rows and 0<=c<17}",
        "total[r] = sum(c, X[r,c] - 2*Y[r,c])",
        {**texts(shapes), "total": "rows"},
        name="reduction",
    )
    return Example(
        "reduction",
        kernel,
        einsum("ij->i", array("A", ("N", 17))),
        "rowwise@1(index={long!r}, block=8)",
        shapes,
        lambda a: {"total": (a["X"] - 2 * a["Y"]).sum(axis=1)},
        {},
        ({"rows": 64}, {"rows": 1}, {"rows": 29}, {"rows": 301}),
    )


def squares() -> lp.TranslationUnit:
    """No einsum: the product of a sum with itself."""
    return build_kernel(
        "{[i,j]: 0<=i<n and 0<=j<4}",
        "y[i] = sum(j, A[i,j]) ** 2",
        {"A": "n,4", "y": "n"},
        name="squares",
    )


def two_nests() -> lp.TranslationUnit:
    """Two einsums of different notation in one kernel."""
    return build_kernel(
        "{[i,j,k,l]: 0<=i,k<n and 0<=j,l<4}",
        """
        y[i] = sum(j, A[i,j])     {id=sums}
        Z[k,l] = 2*A[k,l]*w[l]    {id=scaled}
        """,
        {"A": "n,4", "w": "4", "y": "n", "Z": "n,4"},
        name="two_nests",
    )


def mixed() -> lp.TranslationUnit:
    """An einsum beside an instruction that is none."""
    return build_kernel(
        "{[i,j,k,l]: 0<=i,k<n and 0<=j,l<17}",
        """
        y[i] = sum(j, A[i,j])   {id=sums}
        z[k] = max(l, A[k,l])   {id=other}
        """,
        {"A": "n,17", "y,z": "n"},
        name="mixed",
    )
