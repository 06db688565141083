"""The page about integrations: what each client does there works."""

from __future__ import annotations

import doctest
import shlex
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from feinsum.canonical import canonicalize
from feinsum.db import open_store
from feinsum.ir import from_text
from feinsum.records import TransformSpec
from feinsum.targets.host.compiler import find_compiler
from tests.children import run_command
from tests.cpus import any_opencl
from tests.deploy.walk import differences, sessions, shell
from tests.docs.pages import fenced, page, section
from tests.service.examples import RECORD
from tests.service.running import running

PAGE = "docs/how-to/integrations.md"
SESSIONS = sessions(PAGE)
ON_ANY_PROCESSOR = TransformSpec("rowwise", 1, {"index": "a", "block": 64})
FORM = canonicalize(from_text("i j, j -> i | A[N,64]:<f8 x[64]:<f8 | A x"))
FACT = replace(
    RECORD, workload=FORM.key, workload_text=FORM.text, spec=ON_ANY_PROCESSOR
)
"""Of the einsum that the second tutorial tunes."""


@pytest.fixture
def environment(tmp_path):
    """Variables of a shell with predictions, whose ``cc`` is the compiler here."""
    made = shell(tmp_path, FEINSUM_EFFORT="estimate")
    compiler = tmp_path / "bin" / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {shlex.join(find_compiler().command)} "$@"\n')
    compiler.chmod(0o755)
    return made | {"FEINSUM_DATABASE": str(tmp_path / "facts.sqlite")}


@pytest.fixture
def team(tmp_path):
    """A database of which the service of the page tells."""
    database = tmp_path / "team.sqlite"
    with open_store(database) as store:
        store.add(FACT)
    return database


@pytest.fixture
def _predicting(monkeypatch):
    monkeypatch.delenv("FEINSUM_DATABASE", raising=False)
    monkeypatch.setenv("FEINSUM_EFFORT", "estimate")


@pytest.mark.usefixtures("_predicting")
def test_a_kernel_of_loopy_gets_a_recipe_with_one_call():
    """From a program, and from a compiler, whose own transform is not needed then."""
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Loopy
        for heading in ("Loopy", "Compilers"):
            (block,) = fenced(section(PAGE, heading), "python")
            exec(block, names)
    assert names["faster"] != names["kernel"]
    assert names["transformed"] == names["faster"]


@pytest.mark.usefixtures("_predicting")
def test_a_kernel_of_one_cell_gets_a_recipe():
    """What is shown is true of a kernel that was transformed."""
    (block,) = fenced(section(PAGE, "Firedrake"), "pycon")
    example = doctest.DocTestParser().get_doctest(block, {}, PAGE, PAGE, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner()
    assert not runner.run(example, out=report.append, clear_globs=False).failed, report
    assert example.globs["faster"] != example.globs["cell"]


# torch itself uses what it deprecates
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("position", "library"), [(0, "torch"), (1, "jax")])
def test_gradients_are_einsums(position, library):
    """Of tensors, and in a compiled program."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    names: dict[str, Any] = {}
    exec(fenced(section(PAGE, "torch and JAX"), "python")[position], names)
    matrix = names["A"]
    gradient = matrix.grad if library == "torch" else names["gradient"](matrix)
    np.testing.assert_allclose(gradient, np.broadcast_to(names["x"], (3, 4)))


@pytest.mark.usefixtures("usual_calls")
@pytest.mark.parametrize(
    ("heading", "package"),
    [("PySCF", "pyscf"), ("Networks of tensors", "cotengra")],
)
def test_a_program_of_another_package_runs_by_feinsum(heading, package, tmp_path):
    """In a process of its own, where all of the package's einsums are replaced."""
    pytest.importorskip(package)
    (block,) = fenced(section(PAGE, heading), "python")
    command = [sys.executable, "-W", "ignore", "-c", block]
    done = run_command(*command, **shell(tmp_path, FEINSUM_CACHE_DIR=str(tmp_path)))
    if package == "pyscf":
        energies = [*map(float, done.stdout.split())]
        assert energies == pytest.approx([-76.119346, -76.112817], abs=1e-5)


def test_the_program_in_c_prints_what_is_shown(tmp_path, environment):
    """It is built from the page and the file that was exported."""
    (tmp_path / "main.c").write_text(fenced(page(PAGE), "c")[0])
    assert differences(SESSIONS["Plain C"], tmp_path, environment) == []
    assert "Recipe: none" not in (tmp_path / "gradient.c").read_text()


def test_a_build_without_python_gets_the_recipe(tmp_path, environment, team):
    """By nothing but curl and the tools of a shell."""
    assert differences(SESSIONS["Without Python"], tmp_path, environment) == []


def test_the_file_of_a_recipe_comes_from_the_service(tmp_path, environment, team):
    """The einsum is the one that was asked for by its key, in other words."""
    with running(str(team), tmp_path) as server:
        steps = SESSIONS["The file of a service's recipe"]
        environment["FEINSUM_REMOTE_BUDGET_MS"] = "60000"  # on a busy machine
        assert differences(steps, tmp_path, environment, server.port) == []
    assert str(FACT.spec) in (tmp_path / "kernel.c").read_text()


@pytest.mark.parametrize("package", ["arraycontext", "pytato"])
def test_the_array_context_computes_the_gradient(tmp_path, environment, package):
    """Where the eager or the lazy one is installed, on a device of OpenCL."""
    pytest.importorskip(package)
    device = any_opencl().device
    lazy, eager, *_ = fenced(section(PAGE, "Array contexts"), "python")
    block = lazy if package == "pytato" else eager
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", block],
        cwd=tmp_path,
        env=environment
        | {"POCL_CACHE_DIR": str(tmp_path), "FEINSUM_DEVICE": device.id},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
