"""Files of C: what a C compiler makes of them computes what numpy does."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from feinsum import array, batched_einsum, einsum
from feinsum.errors import FeinsumError, InvalidEinsumError
from feinsum.integrations import c_source
from feinsum.integrations.c_files import FLAGS
from feinsum.ir import BatchedEinsum, evaluate
from feinsum.targets.host.compiler import find_compiler

pytestmark = pytest.mark.usefixtures("_predicting")

WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-variable", "-Wno-unused-parameter")


@pytest.fixture
def _predicting(monkeypatch):
    monkeypatch.setenv("FEINSUM_EFFORT", "estimate")


def compiled(made, folder, *options):
    """The function of a file, built against its own header."""
    (folder / "made.c").write_text(f'#include "made.h"\n{made.source}')
    (folder / "made.h").write_text(made.header)
    words = [*find_compiler().command, *FLAGS.split(), *WARNINGS, "-Werror", *options]
    words += ["-shared", "-fPIC", "made.c", "-o", "made.so", "-lm"]
    subprocess.run(words, cwd=folder, check=True, timeout=100)
    return ctypes.CDLL(str(folder / "made.so"))


def result(function, einsum, arrays, sizes):
    """What the function writes; arguments in the order of its declaration."""
    shape = [sizes.get(str(extent), extent) for extent in einsum.output_shape]
    outputs = [np.full(shape, np.nan, dtype) for dtype in einsum.output_dtypes]
    given = [*outputs, *(arrays[operand.name] for operand in einsum.operands)]
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in given]
    numbers = [ctypes.c_int32(sizes[size.name]) for size in einsum.size_params]
    assert function(*pointers, *numbers) == 0
    return outputs


def filled(einsum, sizes):
    rng = np.random.default_rng(3)
    arrays = {}
    for operand in einsum.operands:
        shape = [sizes.get(str(extent), extent) for extent in operand.shape]
        values = rng.standard_normal(shape)
        if operand.dtype.kind == "c":
            values = values + 1j * rng.standard_normal(shape)
        arrays[operand.name] = np.ascontiguousarray(values, operand.dtype)
    return arrays


def gradients():
    J, D = array("J", (3, 3, "E")), array("D", (3, 10, 10))
    u, v = array("u", ("E", 10)), array("v", ("E", 10))
    return batched_einsum("xre,rij,ej->xei", [[J, D, u], [J, D, v]])


CASES = {
    "product": einsum("ij,jk->ik", array("A", ("m", 33)), array("B", (33, 20))),
    "single": einsum("ij,j->i", array("A", ("m", 17), "f4"), array("x", 17, "f4")),
    "complex": einsum(
        "ij,jk->ik", array("A", (9, 7), "c16"), array("B", (7, 8), "c16")
    ),
    "sum": einsum("ij->j", array("A", ("m", "n"))),
    "path": einsum(
        "ij,jk,kl->il", array("A", (40, 60)), array("B", (60, 50)), array("C", (50, 30))
    ),
    "batch": gradients(),
    "scalar": einsum("i,i->", array("x", "m"), array("y", "m")),
}


@pytest.mark.parametrize("options", [(), ("-fopenmp",)], ids=["serial", "threads"])
@pytest.mark.parametrize("name", CASES)
def test_the_function_computes_the_einsum(name, options, tmp_path):
    """At ragged sizes, on the thread of the caller and on those of OpenMP."""
    workload: BatchedEinsum = CASES[name]
    values = {"m": 1013, "n": 301, "E": 517}
    sizes = {size.name: values[size.name] for size in workload.size_params}
    made = c_source(workload, name="computed")
    try:
        library = compiled(made, tmp_path, *options)
    except subprocess.CalledProcessError:
        if options and "clang" in find_compiler().version:
            pytest.skip("clang has no OpenMP here")
        raise
    arrays = filled(workload, sizes)
    expected = evaluate(workload, arrays)
    found = result(library.computed, workload, arrays, sizes)
    for one, wanted in zip(found, expected, strict=True):
        tolerance = 1e-4 if one.dtype.itemsize == 4 else 1e-11
        np.testing.assert_allclose(one, wanted, rtol=tolerance, atol=tolerance)


def test_a_path_is_a_recipe_with_memory_of_its_own():
    """Several steps, which the pool of Python's process would run elsewhere."""
    made = c_source(CASES["path"])
    assert made.source.count("feinsum_run(") == 1
    assert made.source.count("_parallel(") >= 2
    assert made.level == "predicted"


def test_two_files_of_one_program_do_not_clash(tmp_path):
    """Each exports one name."""
    for name in ("first", "second"):
        made = c_source(CASES["path"], name=name)
        (tmp_path / f"{name}.c").write_text(made.source)
    words = [*find_compiler().command, *FLAGS.split(), "-shared", "-fPIC"]
    words += ["first.c", "second.c", "-o", "both.so", "-lm"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=100)
    library = ctypes.CDLL(str(tmp_path / "both.so"))
    assert library.first
    assert library.second
    with pytest.raises(AttributeError):
        _ = library.feinsum_entry


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_the_header_is_one_of_cpp(tmp_path):
    """Complex numbers included."""
    (tmp_path / "made.h").write_text(c_source(CASES["complex"]).header)
    (tmp_path / "user.cpp").write_text('#include "made.h"\nint main() { return 0; }\n')
    subprocess.run(
        ["g++", "-fsyntax-only", "user.cpp"], cwd=tmp_path, check=True, timeout=100
    )


def test_without_a_recipe_the_loops_are_exported(tmp_path):
    """And the comment says so."""
    made = c_source(
        CASES["sum"],
        effort="recorded",
        policy="strict",
        database=tmp_path / "none.sqlite",
    )
    assert not made.recipe
    assert "Recipe: none" in made.header
    arrays = filled(CASES["sum"], sizes := {"m": 31, "n": 7})
    library = compiled(made, tmp_path)
    (found,) = result(library.feinsum_kernel, CASES["sum"], arrays, sizes)
    np.testing.assert_allclose(found, arrays["A"].sum(axis=0))


@pytest.mark.parametrize("name", ["if", "9x", "", "a b", "main", "_x", "int"])
def test_a_name_that_c_does_not_take_is_refused(name):
    """Of the function and of the arrays."""
    with pytest.raises(FeinsumError, match="is not a valid C identifier"):
        c_source(CASES["sum"], name=name)
    if name.isidentifier():
        with pytest.raises(FeinsumError, match="is not a valid C identifier"):
            c_source(einsum("i->", array(name, 4)))


def test_what_is_no_einsum_is_refused():
    """By the checker."""
    with pytest.raises(InvalidEinsumError):
        c_source(BatchedEinsum(("i",), (("j",),), ((array("A", 4),),)))
