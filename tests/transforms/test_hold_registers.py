"""Vectors held in registers: no compiler loads them again, none is stopped by them."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Mapping

import loopy as lp
import numpy as np
import pytest

from feinsum import raise_kernel
from feinsum.measure import open_device
from feinsum.records import TransformSpec
from feinsum.transforms import apply_spec, configurations
from feinsum.transforms.library import PACKED_CONTRACTION
from tests.cpus import CPUS, HOST
from tests.targets.host.kernels import source_of
from tests.transforms.support import EINSUMS, LOOPY_WARNINGS, generated, ragged_sizes

pytestmark = LOOPY_WARNINGS

PRODUCT = "matrix product"
TILE = {"lanes": 8, "vectors": 4, "rows": 4}
needs_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="instructions of x86-64"
)


NARROW = {"lanes": 4, "vectors": 2, "rows": 4}
"""For which 16 registers suffice."""


def recipe(
    version: int = PACKED_CONTRACTION.version, tile: Mapping[str, int] = TILE
) -> TransformSpec:
    e = generated(EINSUMS[PRODUCT]).nest.einsum
    first = next(configurations(PACKED_CONTRACTION, e)).parameters
    return TransformSpec("packed_contraction", version, {**first, **tile})


def of_functions() -> lp.TranslationUnit:
    """A contraction of functions whose coefficients are arguments."""
    arrays = [lp.GlobalArg(name, np.float64, shape=(32,) * 4) for name in "ABC"]
    numbers = [lp.ValueArg(name, np.float64) for name in ("p", "q", "r", "s")]
    kernel = lp.make_kernel(
        "{[a,b,c,d,e,f]: 0<=a,b,c,d,e,f<32}",
        "C[a,b,c,d] = sum([e,f], (p*A[a,e,c,f] + q)*(r*B[f,b,e,d] + s))",
        [*arrays, *numbers],
        lang_version=(2018, 2),
    )
    raised = raise_kernel(kernel)
    nest = raised.raised[0].nest
    first = next(configurations(PACKED_CONTRACTION, nest.einsum)).parameters
    indices = {"register": "c", "vector": "d"}
    spec = PACKED_CONTRACTION.spec({**first, **TILE, **indices})
    return lp.expand_subst(apply_spec(spec, raised.t_unit, nest))


def loads() -> list[str]:
    """Vectors read in the loop of a register tile, compiled as for a Zen 5.

    For those cores gcc 12 loaded the vectors of a column again for each row.
    """
    cores = ("-march=skylake-avx512", "-mtune=znver3")
    flags = ["-O3", *cores, "-ffp-contract=fast", "-w"]
    assembly = subprocess.run(
        ["gcc", "-S", "-x", "c", "-o", "-", *flags, "-"],
        input=source_of(open_device(HOST).prepare(of_functions())),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    blocks = re.split(r"^\.L\w+:$", assembly, flags=re.MULTILINE)
    n_sums = TILE["rows"] * TILE["vectors"]
    multiply = re.compile(r"\tvfmadd\d+pd")
    # packing multiplies as well, but its blocks store vectors
    (loop,) = (
        block
        for block in (re.split(r"\tj\w+\t", text)[0] for text in blocks)
        if len(multiply.findall(block)) == n_sums
        and not re.search(r"zmm\d+, -?\d*\(%r[^s]", block)
    )
    return [line for line in loop.splitlines() if re.search(r"\(%r.*, %zmm", line)]


@needs_x86
@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_a_step_of_a_sum_loads_every_vector_once():
    """Those of a column, and one entry of each row; no sums are on the stack."""
    assert len(loads()) == TILE["vectors"] + TILE["rows"]


def assert_right(spec: TransformSpec, cpu: str) -> None:
    """At sizes that no tile divides."""
    e = EINSUMS[PRODUCT]
    case = generated(e)
    case.assert_right(case.apply(spec), ragged_sizes(e), cpu)


@pytest.mark.parametrize("cpu", CPUS)
def test_kernels_are_right(cpu):
    """On every device of the processor."""
    assert_right(recipe(), cpu)


@pytest.mark.parametrize("tile", [TILE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("command", ["gcc", "clang"])
@pytest.mark.parametrize(
    "flags", ["", pytest.param("-mno-avx512f", marks=needs_x86),
              pytest.param("-mno-avx", marks=needs_x86)],
)  # fmt: skip
def test_kernels_of_every_compiler_are_right(command, flags, tile, monkeypatch):
    """Also for processors with shorter vectors, or fewer of them."""
    if not shutil.which(command):
        pytest.skip(f"{command} is not installed")
    monkeypatch.setenv("FEINSUM_CC", f"{command} {flags}")
    assert_right(recipe(tile=tile), HOST)


def test_recipes_recorded_before_are_as_they_were():
    """Version 2 leaves the choice to the compiler."""
    e = EINSUMS[PRODUCT]
    case = generated(e)
    before, after = (source_of(case.apply(recipe(n))) for n in (2, 3))
    assert "feinsum_hold_64(" not in before
    assert "feinsum_hold_64(21, " in after
    case.assert_right(case.apply(recipe(2)), ragged_sizes(e), HOST)
