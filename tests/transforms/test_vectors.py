"""Vectors: loaded and transposed as squares, held in registers, stored as a whole."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache

import loopy as lp
import numpy as np
import pytest
from pymbolic import parse

from feinsum import array, canonicalize, einsum, raise_kernel
from feinsum.codegen import generate_loopy
from feinsum.measure import open_device
from feinsum.raising import identify_as_einsum
from feinsum.records import TransformSpec
from feinsum.transforms import apply_spec, list_configurations
from feinsum.transforms.library import PACKED_CONTRACTION
from feinsum.transforms.primitives.vector_store import (
    _format_transposition,
    find_lines,
)
from tests.cpus import CPUS, HOST, opened
from tests.targets.host.kernels import source_of
from tests.transforms.support import (
    EINSUMS,
    LOOPY_WARNINGS,
    generated,
    ragged_sizes,
    written,
)

pytestmark = LOOPY_WARNINGS

SQUARES = [("double", 2), ("double", 8), ("float", 16)]
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
    {_format_transposition(element, lanes)}
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
        ("A[i,8-k]", None),
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


def product_along_sums(dtype, value="p*B[j,k] + q*G[j,k]"):
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


def case_of_functions(dtype, lanes):
    of = written(
        product_along_sums(dtype),
        lambda a: {"out": a["A"] @ (a["p"] * a["B"] + a["q"] * a["G"]).T},
    )
    spec = next(
        spec
        for spec in list_configurations(PACKED_CONTRACTION, of.nest.einsum)
        if spec.parameters["lanes"] == lanes
    )
    return of, spec


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("dtype", "lanes"), [(np.float64, 8), (np.float32, 16)])
def test_packs_of_functions_are_right(dtype, lanes, cpu):
    """At sizes that no tile divides, whose edges are packed entry by entry."""
    of, spec = case_of_functions(dtype, lanes)
    of.assert_right(of.apply(spec), [{"N": n} for n in (1, 8, 37, 101)], cpu)


def test_functions_are_evaluated_on_vectors():
    """Two loads for each vector of lanes, one transposition for all of them."""
    of, spec = case_of_functions(np.float64, 8)
    code = source_of(of.apply(spec))
    body = code[code.rindex("#endif") :]
    assert body.count("feinsum_load(double, 8, ") == 2 * 8
    assert body.count("feinsum_transpose_double8(") == 1


@cache
def product_of_matrices(n_columns, lanes=4):
    """The transformed kernel of a product_of_matrices of matrices, by its stores."""
    e = canonicalize(
        einsum(
            "ik,kj->ij",
            array("A", (24, 20)),
            array("B", (20, n_columns)),
        )
    ).einsum
    found = {}
    for stores in PACKED_CONTRACTION.get_space(e)["stores"]:
        wanted = {"vector": e.output[-1], "lanes": lanes, "stores": stores}
        spec = next(
            spec
            for spec in list_configurations(PACKED_CONTRACTION, e)
            if wanted.items() <= spec.parameters.items()
        )
        t_unit, nest = identify_as_einsum(generate_loopy(e), e)
        found[stores] = apply_spec(spec, t_unit, nest)
    return e, found


def codes(n_columns):
    _, found = product_of_matrices(n_columns)
    return {
        stores: lp.generate_code_v2(t_unit).device_code()
        for stores, t_unit in found.items()
    }


def test_vectors_that_are_aligned_can_be_streamed():
    """The last axis is a multiple of the lanes: both stores are offered, as asked."""
    written_to = codes(48)
    assert "feinsum_stream(double, 4, " in written_to["streamed"]
    assert "feinsum_store(double, 4, " in written_to["cached"]


def test_what_is_left_of_a_row_is_stored_one_by_one():
    """Whole vectors first, none of which would be aligned in every row."""
    assert codes(50).keys() == {"cached"}
    lines = [line.strip() for line in codes(50)["cached"].splitlines()]
    assert any(line.startswith("feinsum_store(double, 4, row") for line in lines)
    assert sum(line.startswith("out[") for line in lines) == 50 % 4


@pytest.mark.parametrize(
    ("n_columns", "stores", "lanes"),
    [(48, "cached", 8), (48, "streamed", 4), (50, "cached", 4)],
)
@pytest.mark.parametrize("cpu", CPUS)
def test_the_output_needs_no_alignment(n_columns, stores, lanes, cpu):
    """Memory of the host at any multiple of a number's size can be written_to."""
    e, found = product_of_matrices(n_columns, lanes)
    rng = np.random.default_rng(0)
    values = {op.name: rng.random(op.shape) for op in e.operands}
    operands = [values[op.name] for op in e.rows[0]]
    for shift in (0, 8, 32):
        memory = np.zeros(24 * n_columns * 8 + 192, dtype=np.uint8)
        start = -memory.ctypes.data % 64 + shift
        place = memory[start : start + 24 * n_columns * 8]
        out = written_to(opened(cpu), found[stores], place, (24, n_columns), values)
        np.testing.assert_allclose(out, np.einsum(e.subscripts, *operands))
        assert not memory[:start].any()
        assert not memory[start + place.size :].any()


def written_to(device, t_unit, place, shape, values):
    """What a kernel writes to a place in the memory of the host."""
    unit = device.prepare(t_unit)
    if device.reads_in_place:
        out = place.view(np.float64).reshape(shape)
        unit.executor()(out=out, **values)
        return out
    cl = pytest.importorskip("pyopencl")
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    buffer = cl.Buffer(device.context, flags, hostbuf=place)
    queue = cl.CommandQueue(device.context)
    out = cl.array.Array(queue, shape, np.float64, data=buffer)
    arrays = {name: cl.array.to_device(queue, x) for name, x in values.items()}
    unit.executor(device.context)(queue, out=out, **arrays)
    return out.get()


@pytest.mark.parametrize("spot", ["A", "B", "out"])
def test_arrays_may_begin_within_others(spot):
    """Vectors are loaded and stored where an array begins, as single entries are."""
    n, offset = 48, 3
    arrays = [
        lp.GlobalArg(name, np.float64, shape=(n, n), offset=offset * (name == spot))
        for name in ("A", "B", "out")
    ]
    raised = raise_kernel(
        lp.make_kernel(
            f"{{[i,j,k]: 0<=i,j,k<{n}}}",
            "out[i,j] = sum(k, A[i,k]*(2*B[j,k] + 1))",
            arrays,
            lang_version=(2018, 2),
        )
    )
    nest = raised.raised[0].nest
    spec = next(iter(list_configurations(PACKED_CONTRACTION, nest.einsum)))
    unit = lp.expand_subst(apply_spec(spec, raised.t_unit, nest))
    device = opened(HOST)
    memory = {
        name: np.random.default_rng(k).random(n * n + offset * (name == spot))
        for k, name in enumerate(("A", "B", "out"))
    }
    device.build(device.prepare(unit)).run(memory, "wall")
    a, b, out = (memory[name][-n * n :].reshape(n, n) for name in ("A", "B", "out"))
    np.testing.assert_allclose(out, a @ (2 * b + 1).T, rtol=1e-12)


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
    first = next(list_configurations(PACKED_CONTRACTION, e)).parameters
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
    first = next(list_configurations(PACKED_CONTRACTION, nest.einsum)).parameters
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


@pytest.mark.parametrize(
    ("command", "flags", "tile"),
    [
        ("gcc", "", TILE),
        ("clang", "", TILE),
        pytest.param("gcc", "-mno-avx512f", TILE, marks=needs_x86),
        pytest.param("clang", "-mno-avx512f", NARROW, marks=needs_x86),
        pytest.param("gcc", "-mno-avx", NARROW, marks=needs_x86),
    ],
)
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
