"""Einsums that the families fit, and what it takes to check a recipe on them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import loopy as lp
import numpy as np
import pytest
from pymbolic import evaluate_kw, parse

from feinsum import array, batched_einsum, einsum, evaluate, generate_loopy
from feinsum.ir import BatchedEinsum, with_extents
from feinsum.measure import (
    OpenDevice,
    compile_kernel,
    compute_tolerance,
    count_terms,
    draw_arguments,
    open_device,
    verify,
)
from feinsum.raising import LoopNest, identify_as_einsum, raise_kernel, single_nest
from feinsum.records import TransformSpec
from feinsum.transforms import (
    Transform,
    apply_spec,
    find_applicable_transforms,
    list_configurations,
)
from tests.cpus import opened

LOOPY_WARNINGS = pytest.mark.filterwarnings(
    "ignore:.*implicit conversion:DeprecationWarning:loopy"
)
"""What Loopy does with islpy is deprecated there; our own modules must not do it."""

NEVER_LONG = 1 << 62
RAGGED = (1, 5, 37, 101, 301)
"""Extents that no tile divides, shorter and longer than blocks."""
OTHERS = (9, 33, 2, 17, 50)
"""Extents of the second and later size parameters."""

DRAWS = 500
"""At most, for random configurations."""

Arrays = Mapping[str, Any]


def _doubles(**shapes: Any) -> list[Any]:
    return [array(name, shape) for name, shape in shapes.items()]


def _singles(**shapes: Any) -> list[Any]:
    return [array(name, shape, "float32") for name, shape in shapes.items()]


def _batch(subscripts: str, shared: list[Any], shape: Any) -> BatchedEinsum:
    """Three rows that differ in their last operand only."""
    fields = _doubles(u=shape, v=shape, w=shape)
    return batched_einsum(subscripts, [[*shared, field] for field in fields])


_GEOMETRY = _doubles(J=(3, 3, "N"), D=(3, 5, 5))
_LIFT = _doubles(L=(5, 4, 6), J=(4, "N"))
_MASS = _doubles(M=(5, 5), J="N")
_A, _X = _doubles(A=("N", "N"), x=("N", 7))
_T = array("T", ("N", 5, 5))

OPERATORS = {
    "gradient": einsum("xre,rij,ej->xei", *_GEOMETRY, *_doubles(u=("N", 5))),
    "gradient of three": _batch("xre,rij,ej->xei", _GEOMETRY, ("N", 5)),
    "divergence": einsum("xre,rij,xej->ei", *_GEOMETRY, *_doubles(u=(3, "N", 5))),
    "divergence of three": _batch("xre,rij,xej->ei", _GEOMETRY, (3, "N", 5)),
    "face mass": einsum("ifj,fe,fej->ei", *_LIFT, *_doubles(u=(4, "N", 6))),
    "face mass of three": _batch("ifj,fe,fej->ei", _LIFT, (4, "N", 6)),
    "mass": einsum("ij,e,ej->ei", *_MASS, *_doubles(u=("N", 5))),
    "mass of three": _batch("ij,e,ej->ei", _MASS, ("N", 5)),
    "gradient in single precision": einsum(
        "xre,rij,ej->xei", *_singles(J=(3, 3, "N"), D=(3, 5, 5), u=("N", 5))
    ),
    "one array, two index lists": einsum("eij,eji->e", _T, _T),
    "diagonal": einsum("eii,ij->ej", _T, *_doubles(M=(5, 5))),
    "scalar operand": einsum(",ei,ij->ej", *_doubles(s=(), u=("N", 5), M=(5, 5))),
    "pointwise product": einsum("e,e->e", *_doubles(a="N", b="N")),
    "copy": einsum("e->e", *_doubles(a="N")),
    "operand that is summed alone": einsum("ij,e->ei", *_doubles(M=(5, 5), a="N")),
    "literal extent": einsum("ij,e,ej->ei", *_doubles(M=(5, 5), J=101, u=(101, 5))),
}
"""Batches over one long index."""

CONTRACTIONS = {
    "matrix product": einsum("ij,jk->ik", *_doubles(A=("N", "K"), B=("K", "M"))),
    "in single precision": einsum("ij,jk->ik", *_singles(A=("N", 9), B=(9, "M"))),
    "of known extents": einsum("ij,jk->ki", *_doubles(A=(37, 19), B=(19, 29))),
    "shorter than a tile": einsum("ij,jk->ik", *_doubles(A=(7, 3), B=(3, 9))),
    "three output indices": einsum(
        "acd,db->abc", *_doubles(A=("N", 6, "K"), B=("K", "M"))
    ),
    "two summed indices": einsum(
        "adec,ebd->abc", *_doubles(A=("N", 6, 5, 9), B=(5, "M", 6))
    ),
    "four output indices": einsum(
        "abce,cedf->abdf", *_doubles(A=("N", 3, 4, 5), B=(4, 5, 11, "M"))
    ),
    "four short output indices": einsum(
        "ebad,ce->abcd", *_doubles(A=(5, 12, 9, 10), B=(13, 5))
    ),
    "batch index": einsum("bij,bjk->bik", *_doubles(A=("N", 9, 5), B=("N", 5, 10))),
    "matrix times itself": einsum("ij,jk->ik", _A, _A),
    "times its transpose": einsum("ij,kj->ik", _A, _A),
    "Gram matrix": einsum("ik,jk->ij", _X, _X),
    "two rows": batched_einsum(
        "ij,jk->ik",
        [
            [a, b]
            for a in _doubles(A=("N", 5))
            for b in _doubles(B=(5, "M"), C=(5, "M"))
        ],
    ),
}
"""Two operands with much to reuse."""

_BATCHES = _doubles(A=("N", 19, 18), B=("N", 18, 17))
_COMPLEX = {"A": ("N", 20), "B": (20, 24), "C": (24, "M")}
CHAINS = {
    "chain of three": einsum(
        "ij,jk,kl->il", *_doubles(A=("N", 20), B=(20, 24), C=(24, "M"))
    ),
    "chains over one index": batched_einsum(
        "bij,bjk,bkl->bil",
        [[*_BATCHES, c] for c in _doubles(C=("N", 17, 9), D=("N", 17, 9))],
    ),
    "chain of complex matrices": einsum(
        "ij,jk,kl->il",
        *[array(n, shape, "complex128") for n, shape in _COMPLEX.items()],
    ),
    "four indices transformed": einsum(
        "ea,fb,abcd,gc,hd->efgh",
        *_singles(P=(9, 6), Q=(8, 6), T=(6, 6, 6, 6), R=("N", 6), S=(7, 6)),
    ),
}
"""Three operands and more, best multiplied two at a time."""

TRANSPOSES = {"transpose": einsum("ij->ji", *_doubles(A=("N", "M")))}
"""Nothing is computed."""

OTHER_DTYPES = {
    "integers": einsum(
        "ij,j->i", array("n", ("N", 6), "int32"), array("m", 6, "int32")
    ),
    "unsigned": einsum("ij->i", array("n", ("N", 6), "uint8")),
    "complex": einsum("ij,j->i", array("z", ("N", 6), "complex128"), array("x", 6)),
    "complex product": einsum(
        "ij,jk->ik", *[array(n, ("N", "N"), "complex64") for n in "zw"]
    ),
    "mixed": einsum(
        "ij,e,ej->ei", array("M", (5, 5), "float32"), *_doubles(J="N", u=("N", 5))
    ),
}

EINSUMS = OPERATORS | CONTRACTIONS | CHAINS | TRANSPOSES | OTHER_DTYPES


@cache
def sampled(
    e: BatchedEinsum, transform: Transform, n_samples: int
) -> tuple[TransformSpec, ...]:
    """The first configuration and up to ``n_samples`` others; always the same ones.

    They are drawn, since there are millions in all.
    """
    found = {next(list_configurations(transform, e)): None}
    rng = random.Random(f"{e} {transform.name}")
    space = transform.get_space(e) or {}
    for _ in range(DRAWS if n_samples else 0):
        drawn = {name: rng.choice(values) for name, values in space.items()}
        if not space or space.constraint(drawn) is None:
            found[transform.spec(drawn)] = None
        if len(found) > n_samples:
            break
    return tuple(found)


def recipes(
    einsums: Mapping[str, BatchedEinsum], n_samples: int
) -> list[tuple[str, TransformSpec]]:
    """Recipes for each einsum from each family that fits it."""
    return [
        (name, spec)
        for name, e in einsums.items()
        for transform in find_applicable_transforms(e)
        for spec in sampled(e, transform, n_samples)
    ]


def opencl_code(t_unit: lp.TranslationUnit) -> str:
    """What Loopy generates for OpenCL, which shows loops and stores best."""
    unit = t_unit.copy(target=lp.PyOpenCLTarget())
    return lp.generate_code_v2(unit).device_code()


@cache
def device(selector: str | None = None) -> OpenDevice:
    return open_device() if selector is None else opened(selector)


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel in which an einsum was found, and what it should compute.

    Attributes:
        expected: from the arguments of the kernel to its results.
    """

    t_unit: lp.TranslationUnit
    nest: LoopNest
    expected: Callable[[Arrays], Arrays]

    @property
    def einsum(self) -> BatchedEinsum:
        return self.nest.einsum

    def apply(self, spec: TransformSpec) -> lp.TranslationUnit:
        return apply_spec(spec, self.t_unit, self.nest)

    def assert_right(
        self,
        t_unit: lp.TranslationUnit,
        sizes: list[dict[str, int]],
        selector: str | None = None,
    ) -> None:
        """A transformed kernel is right for all ``sizes``, on a device."""
        compiled = compile_kernel(t_unit, device(selector))
        for values in sizes:
            arguments, expected, tolerance = self._reference(values)
            verify(compiled.bind(arguments), expected, tolerance=tolerance)

    def _reference(self, sizes: dict[str, int]) -> tuple[Arrays, Arrays, float]:
        rng = np.random.default_rng(0)
        arguments = draw_arguments(self.t_unit, sizes, rng)
        dtype = min(self.einsum.output_dtypes, key=lambda d: d.itemsize)
        names = {x.name: self.nest.sizes[x.name] for x in self.einsum.size_params}
        values = {
            x: n if isinstance(n, int) else evaluate_kw(parse(n), **sizes)
            for x, n in names.items()
        }
        tolerance = compute_tolerance(dtype, count_terms(self.einsum, values))
        return arguments, self.expected(arguments), tolerance


@cache
def generated(e: BatchedEinsum) -> Case:
    """The untransformed kernel of an einsum."""
    t_unit, nest = identify_as_einsum(generate_loopy(e), e, long_extent=NEVER_LONG)
    names = nest.outputs

    def expected(arguments: Arrays) -> Arrays:
        arrays = {op.name: arguments[op.name] for op in e.operands}
        return dict(zip(names, evaluate(e, arrays, optimize=True), strict=True))

    return Case(t_unit, nest, expected)


def written(
    t_unit: lp.TranslationUnit,
    expected: Callable[[Arrays], Arrays],
    *,
    long_extent: int = NEVER_LONG,
) -> Case:
    """A kernel that somebody wrote; its nest is in canonical names."""
    raised = raise_kernel(t_unit, long_extent=long_extent)
    return Case(raised.t_unit, single_nest(raised).canonical_nest, expected)


def ragged_sizes(e: BatchedEinsum) -> list[dict[str, int]]:
    """Sizes that nothing divides; a single empty one if there are no parameters."""
    first, *others = [x.name for x in e.size_params] or [None]
    if first is None:
        return [{}]
    return [
        {first: size}
        | {n: OTHERS[(k + at) % len(OTHERS)] for at, n in enumerate(others)}
        for k, size in enumerate(RAGGED)
    ]


def with_literals(e: BatchedEinsum, sizes: Mapping[str, int]) -> BatchedEinsum:
    """The einsum with literal extents for its size parameters."""
    extents = {
        i: x if isinstance(x, int) else sizes[x.name] for i, x in e.extents.items()
    }
    return with_extents(e, extents)
