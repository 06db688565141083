"""What a first result costs: how often code is generated and compiled for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT


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
    """The given one and the one that comes back: the generator is called twice. The
    compiler makes two programs of the given one, one of the other, and builds the
    threads and the probe of the device. A second process calls neither.
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

    assert retrieved() == ([2, True], 5)
    assert retrieved() == ([0, True], 0)
