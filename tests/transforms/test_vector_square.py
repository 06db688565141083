"""Squares that are loaded by vectors and transposed in registers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import loopy as lp
import numpy as np
import pytest
from pymbolic import parse

from feinsum.transforms import configurations
from feinsum.transforms.library import PACKED_CONTRACTION
from feinsum.transforms.primitives.vector_square import _transposition, find_lines
from tests.cpus import CPUS
from tests.targets.host.kernels import source_of
from tests.transforms.support import LOOPY_WARNINGS, written

pytestmark = LOOPY_WARNINGS

SQUARES = [("double", 2), ("double", 4), ("double", 8), ("float", 8), ("float", 16)]
NUMBERS = {"double": np.float64, "float": np.float32}
HOW = {
    "shuffles": "",
    "of old gcc": "#undef __GNUC__\n#define __GNUC__ 4",
    "entry by entry": "#define feinsum_has_cuda",
}
"""Which of the ways to transpose a compiler is led to."""


@pytest.mark.parametrize(("element", "lanes"), SQUARES)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_squares_are_transposed(element, lanes, how, compiler, tmp_path):
    """On every way, whatever the processor."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    if (compiler, how) == ("clang", "of old gcc"):
        pytest.skip("clang has its own shuffles")
    name = f"{element}{lanes}"
    code = f"""
    {HOW[how]}
    typedef {element} {name}
      __attribute__((vector_size({lanes} * sizeof({element})), aligned(1)));
    {_transposition(element, lanes)}
    void transpose({name} *given)
    {{
      {name} square[{lanes}];
      for (int i = 0; i < {lanes}; ++i) square[i] = given[i];
      feinsum_transpose_{name}(square);
      for (int i = 0; i < {lanes}; ++i) given[i] = square[i];
    }}
    """
    library = tmp_path / "transpose.so"
    words = [compiler, "-x", "c", "-O1", "-fPIC", "-shared", "-w", "-o", str(library)]
    subprocess.run([*words, "-"], input=code, text=True, check=True)
    given = np.arange(lanes * lanes, dtype=NUMBERS[element]).reshape(lanes, lanes)
    result = given.copy()
    ctypes.CDLL(str(library)).transpose(ctypes.c_void_p(result.ctypes.data))
    np.testing.assert_array_equal(result, given.T)


def reads(text: str, **others: object) -> list[str] | None:
    """What is loaded for a value along ``k``."""
    shapes = {"x": (9,), "A": (9, 9), "B": (9, 9)}
    arrays = [lp.GlobalArg(name, np.float64, shape=s) for name, s in shapes.items()]
    kernel = lp.make_kernel(
        "{[i,k]: 0<=i,k<9}",
        "f(p, q) := s*A[p,q] + 1\nB[i,k] = x[k]",
        [
            *arrays,
            lp.GlobalArg("half", np.float32, shape=(9, 9)),
            lp.GlobalArg("moved", np.float64, shape=(9,), offset=3),
            lp.ValueArg("s", np.float64),
            lp.ValueArg("n", np.int32),
        ],
        lang_version=(2018, 2),
    )["loopy_kernel"]
    found = find_lines(kernel, parse(text), "k", np.dtype(np.float64))
    return None if found is None else sorted(map(str, found.reads))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A[i,k]", ["A[i, k]"]),
        ("2*A[i,k]*x[i] + B[i, k+1]/s", ["A[i, k]", "B[i, k + 1]"]),
        ("f(i, k)", ["A[i, k]"]),
        ("x[i]", None),
        ("A[k,i]", None),
        ("A[i,2*k]", None),
        ("A[i,8-k]", None),
        ("A[k,k]", None),
        ("A[i,k*k]", None),
        ("A[i,k]*k", None),
        ("A[i,k]*n", None),
        ("half[i,k]", None),
        ("A[i,k]*half[i,i]", None),
        ("moved[k]", None),
        ("A[i,k]**2", None),
        ("sin(A[i,k])", None),
    ],
)
def test_what_can_be_loaded_as_vectors(text, expected):
    """Neighbours in memory, of one dtype, in sums, products and quotients."""
    assert reads(text) == expected


def product(dtype, value="p*B[j,k] + q*G[j,k]"):
    """The second operand lies along the summed index; its values are functions."""
    shapes = {"A": ("N", 16), "B": ("N", 16), "G": ("N", 16), "out": ("N", "N")}
    return lp.make_kernel(
        "{[i,j,k]: 0<=i,j<N and 0<=k<16}",
        f"out[i,j] = sum(k, A[i,k]*({value}))",
        [
            *(lp.GlobalArg(name, dtype, shape=s) for name, s in shapes.items()),
            lp.ValueArg("p,q", dtype),
            lp.ValueArg("N", np.int32),
        ],
        lang_version=(2018, 2),
    )


def case(dtype, lanes):
    of = written(
        product(dtype),
        lambda a: {"out": a["A"] @ (a["p"] * a["B"] + a["q"] * a["G"]).T},
    )
    spec = next(
        spec
        for spec in configurations(PACKED_CONTRACTION, of.nest.einsum)
        if spec.parameters["lanes"] == lanes
    )
    return of, spec


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("dtype", "lanes"), [(np.float64, 8), (np.float32, 16)])
def test_packs_of_functions_are_right(dtype, lanes, cpu):
    """At sizes that no tile divides, whose edges are packed entry by entry."""
    of, spec = case(dtype, lanes)
    of.assert_right(of.apply(spec), [{"N": n} for n in (1, 8, 37, 101)], cpu)


def test_functions_are_evaluated_on_vectors():
    """Two loads for each vector of lanes, one transposition for all of them."""
    of, spec = case(np.float64, 8)
    code = source_of(of.apply(spec))
    body = code[code.rindex("#endif") :]
    assert body.count("feinsum_load(double, 8, ") == 2 * 8
    assert body.count("feinsum_transpose_double8(") == 1
