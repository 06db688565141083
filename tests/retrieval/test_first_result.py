"""What a first result costs: how often code is generated and compiled for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from feinsum.errors import WrongResultError
from feinsum.ir import to_text
from feinsum.measure.question import Question
from feinsum.memory import fresh_memory
from feinsum.records import OK
from feinsum.retrieval import precompiling
from feinsum.retrieval.precompiling import Prepared, prepared
from feinsum.targets.host import HOST
from feinsum.transforms import REGISTRY
from tests.docs.pages import ROOT
from tests.tune.odd_transforms import ODD, odd_einsum, odd_spec

PATIENCE_S = 300.0


@pytest.fixture
def odd(monkeypatch):
    """Odd transforms are taken for ours."""
    for name, transform in ODD.items():
        monkeypatch.setitem(REGISTRY, (name, 1), transform)
    monkeypatch.setattr(precompiling, "is_ours", lambda _spec: True)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with fresh_memory():
        yield


def question(name: str) -> Question:
    (device,) = HOST.devices()
    return Question(to_text(odd_einsum()), odd_spec(name), device.id, 2**32, {"N": 64})


def said_of(name: str):
    """What the process says of a recipe that is compiled here."""
    ready = prepared(question(name))
    assert isinstance(ready, Prepared)
    return ready.ask(limit_s=PATIENCE_S, timing_lock="")


def test_a_recipe_that_is_right_is_timed(odd):
    """Beside the untransformed kernel, at the sizes that were asked for."""
    verdict = said_of("odd_right")
    assert verdict.code == OK
    assert verdict.least_s > 0
    assert verdict.baseline_s > 0
    assert dict(verdict.sizes) == {"N": 64}


@pytest.mark.parametrize("name", ["odd_double", "odd_drop_last", "odd_crooked"])
def test_a_wrong_recipe_is_found_out(odd, name):
    """Everywhere, in its last row only, or from some size on."""
    verdict = said_of(name)
    assert verdict.code == WrongResultError.code
    assert "at the sizes" in verdict.message


@pytest.mark.parametrize("name", ["odd_unbuildable", "odd_raises"])
def test_a_recipe_without_a_kernel_breaks_nothing(odd, name):
    """There is a verdict, or the process that answers is to find out."""
    ready = prepared(question(name))
    if isinstance(ready, Prepared):
        ready = ready.ask(limit_s=PATIENCE_S, timing_lock="")
    assert ready is None or not ready.is_ok


def test_recipes_of_others_are_not_generated_here(odd, monkeypatch):
    """What they do is not known, so it is done in a process of its own."""
    monkeypatch.setattr(precompiling, "is_ours", lambda _spec: False)
    assert prepared(question("odd_right")) is None
    other = replace(question("odd_right"), device="a GPU")
    assert prepared(other) is None
    monkeypatch.setenv("FEINSUM_CC", "no-such-compiler")
    assert prepared(other) is None


def test_the_process_that_runs_kernels_loads_no_code_generator():
    """So it starts at once."""
    code = "import sys, feinsum.measure.verifier; print('loopy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.split() == [b"False"]


RETRIEVING = """
import json, sys, warnings
warnings.simplefilter("ignore")
import loopy as lp
import numpy as np
from feinsum import retrieve
from feinsum.select import Ratio
from feinsum.targets.host.executor import HostExecutor
from tests.retrieval.facts import fact_of
from tests.retrieval.kernels import reduction
from tests.retrieval.support import given
from tests.retrieval.test_trust import elsewhere

generate, n = HostExecutor.generate, [0]
def counted(*args):
    n[0] += 1
    return generate(*args)
HostExecutor.generate = counted
Ratio.is_faster = True  # however busy the machine is
example = reduction()
kernel = example.kernel.copy(target=lp.ExecutableCTarget())
record = fact_of(example, environment=elsewhere())
unit = retrieve(kernel, database=given(record), effort="recorded")
x, y = np.ones((2, 1000, 17))
_, (total,) = unit.executor()(X=x, Y=y)
assert np.array_equal(total, np.full(1000, -17.0))
print(json.dumps([n[0], unit is not kernel]))
"""


def test_each_kernel_is_generated_and_compiled_once(tmp_path):
    """The untransformed one, the one with the recipe, the given one, and the one that
    comes back: four times the generator is called. The compiler makes two programs of
    the given one, and builds the threads and the probe of the device. A second process
    calls neither.
    """
    calls, compiler = tmp_path / "calls", tmp_path / "cc"
    real = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {real} "$@"\n')
    compiler.chmod(0o700)
    own = {
        "FEINSUM_CC": str(compiler),
        "FEINSUM_CACHE_DIR": str(tmp_path / "cache"),
        "FEINSUM_DEVICE": "",  # one that is named is not probed
        "FEINSUM_VERIFY": "on",
        "PYTHONPATH": str(ROOT),
    }

    def retrieved() -> tuple[list[object], int]:
        calls.write_text("")
        command = [sys.executable, "-c", RETRIEVING]
        said = subprocess.check_output(command, env=os.environ | own, cwd=ROOT)
        sources = [x for x in Path(calls).read_text().splitlines() if ".c " in x]
        return json.loads(said), len(sources)

    assert retrieved() == ([4, True], 7)
    assert retrieved() == ([0, True], 0)
