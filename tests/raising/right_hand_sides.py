"""Right-hand sides of discontinuous Galerkin codes, as a compiler hands them over.

Every array that is stored has loops of its own, and so is a nest.
"""

from __future__ import annotations

import re
from typing import Any

import loopy as lp
import numpy as np

__all__ = ["arguments", "wave"]

AXES = "xyz"
N_ELEMENTS = 6
"""In the arguments that tests call the kernels with."""


def wave(n_nodes: int = 35, n_face_nodes: int = 15) -> lp.TranslationUnit:
    """The wave equation on tetrahedra: 17 nests with six keys, of seven kinds.

    Gradient and divergence, values on the faces, fluxes, lifted ones, inverse masses.
    """
    fields = ("u", *AXES)
    lines = [
        f"g{axis}[e,i] = sum([r,j], J[{a},r,e]*D[r,i,j]*u[e,j])"
        for a, axis in enumerate(AXES)
    ]
    lines.append("gu[e,i] = sum([x,r,j], J[x,r,e]*D[r,i,j]*v[x,e,j])")
    lines.append("up[f,e,k] = u[across[f,e],picks[f,k]]")
    lines.append("fu[f,e,k] = 0.5*(up[f,e,k] - u[e,picks[f,k]])*speed[f,e]")
    for a, axis in enumerate(AXES):
        both = f"v[{a},across[f,e],picks[f,k]] + v[{a},e,picks[f,k]]"
        lines.append(f"f{axis}[f,e,k] = 0.5*normal[{a},f,e]*({both})")
    lines += [f"l{a}[e,i] = sum([f,k], L[i,f,k]*A[f,e]*f{a}[f,e,k])" for a in fields]
    lines += [
        f"r{a}[e,i] = sum(j, M[i,j]*(g{a}[e,j] - l{a}[e,j]))/det[e]" for a in fields
    ]
    return _kernel(lines, n_nodes, n_face_nodes)


def arguments(unit: lp.TranslationUnit) -> dict[str, Any]:
    """Random values; indices are in range."""
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {"n": N_ELEMENTS}
    for arg in unit.default_entrypoint.args:
        if not isinstance(arg, lp.ArrayArg) or arg.is_output:
            continue
        shape = [N_ELEMENTS if str(extent) == "n" else extent for extent in arg.shape]
        is_index = arg.dtype.numpy_dtype.kind == "i"
        values = rng.integers(0, 4, shape) if is_index else rng.random(shape)
        given[arg.name] = values.astype(arg.dtype.numpy_dtype)
    return given


def _kernel(lines: list[str], n_nodes: int, n_face_nodes: int) -> lp.TranslationUnit:
    extents = dict.fromkeys("ij", n_nodes) | {"e": "n", "f": 4, "k": n_face_nodes}
    extents |= dict.fromkeys("xr", 3)
    loops = re.compile(rf"\b([{''.join(extents)}])\b")
    domains, nests = [], []
    for k, line in enumerate(lines):
        inames = sorted(set(loops.findall(line)))
        box = " and ".join(f"0 <= {i}{k} < {extents[i]}" for i in inames)
        domains.append(f"[n] -> {{[{','.join(f'{i}{k}' for i in inames)}]: {box}}}")
        nests.append(loops.sub(rf"\g<1>{k}", line) + f" {{id=nest{k}}}")
    return lp.make_kernel(
        domains,
        "\n".join(nests),
        [*_arrays(lines, n_nodes, n_face_nodes), lp.ValueArg("n", np.int32)],
        name="right_hand_side",
        lang_version=(2018, 2),
    )


def _arrays(
    lines: list[str], n_nodes: int, n_face_nodes: int
) -> list[lp.GlobalArg | lp.TemporaryVariable]:
    """Arguments, and stored values that are no results."""
    shapes: dict[str, tuple[Any, ...]] = {
        "J": (3, 3, "n"), "D": (3, n_nodes, n_nodes), "M": (n_nodes, n_nodes),
        "L": (n_nodes, 4, n_face_nodes), "A": (4, "n"), "det": ("n",),
        "u": ("n", n_nodes), "v": (3, "n", n_nodes), "speed": (4, "n"),
        "normal": (3, 4, "n"), "across": (4, "n"), "picks": (4, n_face_nodes),
    }  # fmt: skip
    written = [line.split("[")[0] for line in lines]
    for name in written:
        on_faces = name[0] == "f" or name == "up"
        shapes[name] = (4, "n", n_face_nodes) if on_faces else ("n", n_nodes)
    arrays: list[lp.GlobalArg | lp.TemporaryVariable] = []
    for name, shape in shapes.items():
        dtype = np.int32 if name in ("across", "picks") else np.float64
        if name in written and name[0] != "r":
            space = lp.AddressSpace.GLOBAL
            arrays.append(
                lp.TemporaryVariable(name, dtype, shape=shape, address_space=space)
            )
        else:
            arrays.append(lp.GlobalArg(name, dtype, shape=shape))
    return arrays
