"""Kernels keep the target that their user gave them."""

from __future__ import annotations

from dataclasses import replace

import loopy as lp
import numpy as np
import pytest

from feinsum.retrieval import look_up
from feinsum.targets.host import EmbeddedCTarget, HostCTarget
from feinsum.targets.units import LibraryUnit
from feinsum.transforms import list_configurations
from feinsum.transforms.host import LIBRARY_CONTRACTION
from feinsum.transforms.library import GENERIC, PACKED_CONTRACTION
from tests.loopy_kernels import build_kernel
from tests.retrieval.facts import fact, fact_of, form_of, surely_faster
from tests.retrieval.kernels import contraction, gradients, reduction
from tests.retrieval.runs import call_in_c
from tests.retrieval.support import assert_right, given, retrieved

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*:DeprecationWarning:loopy",  # of Loopy's C target
    "ignore:.*:DeprecationWarning:feinsum",
)

COMPILED_BY_OTHERS = (lp.CTarget, lp.target.c.CWithGNULibcTarget)
RUN_BY_LOOPY = (lp.ExecutableCTarget, lp.target.c.ExecutableCWithGNULibcTarget)


def kernel_for(example, target):
    return example.kernel.copy(target=target)


@pytest.mark.parametrize(
    ("make", "kind"), [*zip((gradients, reduction), RUN_BY_LOOPY, strict=True)]
)
def test_kernels_that_loopy_runs_are_run_by_the_host(make, kind):
    """On arrays of numpy, as before, and right at every size."""
    example = make()
    found = retrieved(kernel_for(example, kind()), database=given(fact_of(example)))
    assert isinstance(found.target, HostCTarget)
    assert_right(example, found)


def code_of(unit):
    """The C of a kernel, as a program that embeds it asks Loopy for it."""
    return lp.generate_code_v2(unit).device_code()


@pytest.mark.parametrize(
    ("make", "kind"), [*zip((gradients, contraction), COMPILED_BY_OTHERS, strict=True)]
)
def test_code_for_other_compilers_is_one_plain_function(make, kind, tmp_path):
    """Any compiler takes it, whatever vectors it has, and it needs no threads."""
    example = make()
    found = retrieved(kernel_for(example, kind()), database=given(fact_of(example)))
    assert isinstance(found.target, EmbeddedCTarget)
    code = code_of(found)
    assert "feinsum_entry" not in code
    assert "parallel" not in code
    for k, sizes in enumerate(example.sizes):
        arguments = example.arguments(sizes)
        results = call_in_c(found, arguments, tmp_path / str(k), code)
        for name, expected in example.in_numpy(arguments).items():
            np.testing.assert_allclose(results[name], expected, rtol=1e-12, atol=1e-13)


def test_vectors_are_declared_in_the_code_for_others(tmp_path):
    """The code is whole: its types stand in it."""
    example = contraction()
    einsum = form_of(example).einsum
    spec = next(list_configurations(PACKED_CONTRACTION, einsum))
    found = retrieved(
        kernel_for(example, lp.CTarget()), database=given(fact(example.einsum, spec))
    )
    code = code_of(found)
    assert "vector_size(" in code
    call_in_c(found, example.arguments({"n": 53}), tmp_path / "kernel", code)


@pytest.mark.parametrize("target", [lp.PyOpenCLTarget(), lp.OpenCLTarget()])
def test_kernels_for_opencl_come_back_for_opencl(target):
    """Of the very class that was given."""
    example = gradients()
    found = retrieved(kernel_for(example, target), database=given(fact_of(example)))
    assert type(found.target) is type(target)
    assert "__kernel void" in lp.generate_code_v2(found).device_code()


def contraction_of(function="L[p,w]"):
    kernel = build_kernel(
        "{[p,q,w]: 0<=p<n and 0<=q<24 and 0<=w<20}",
        f"T[q,p] = sum(w, R[w,q]*{function})",
        {"L": "n,20", "R": "20,24", "T": "24,n"},
        lp.ValueArg("n", np.int64),
    )
    return replace(contraction(), kernel=kernel)


def with_a_library(example):
    """Facts of the einsum, of which the best one calls a library."""
    einsum = form_of(example).einsum
    library = next(list_configurations(LIBRARY_CONTRACTION, einsum))
    other = next(list_configurations(GENERIC, einsum))
    best = surely_faster(fact(example.einsum, library, speedup=100.0))
    return library, other, given(best, fact(example.einsum, other))


@pytest.mark.parametrize(
    ("function", "is_library"),
    [("L[p,w]", True), ("(2*L[p,w] - 1)", True), ("exp(L[p,w])", False)],
)
def test_functions_of_arrays_are_computed_by_code_first(function, is_library):
    """A library would wait for their values, unless it packs affine functions."""
    example = contraction_of(function)
    library, other, facts = with_a_library(example)
    found = look_up(example.kernel, database=facts)
    assert found.applied == (library if is_library else other,)
    assert found.nests[0].failures == ()


@pytest.mark.parametrize("kind", [*COMPILED_BY_OTHERS, lp.OpenCLTarget])
def test_a_library_is_no_code_for_others(kind):
    """The next best recipe is applied, and the reason is told."""
    example = contraction_of()
    library, other, facts = with_a_library(example)
    found = look_up(kernel_for(example, kind()), database=facts)
    assert found.applied == (other,)
    assert not isinstance(found.t_unit, LibraryUnit)
    ((spec, why),) = found.nests[0].failures
    assert spec == library
    assert "is run outside of this process" in why
    assert isinstance(look_up(example.kernel, database=facts).t_unit, LibraryUnit)


@pytest.mark.parametrize("kind", [*COMPILED_BY_OTHERS, *RUN_BY_LOOPY])
def test_without_a_fact_the_very_kernel_comes_back(kind):
    """With its own target."""
    kernel = kernel_for(gradients(), kind())
    found = look_up(kernel, database=given())
    assert found.t_unit is kernel
