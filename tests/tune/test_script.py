"""Transforms that a script or a notebook registers reach the processes of trials."""

import subprocess
import sys

import pytest

from feinsum.errors import TransformError
from feinsum.transforms import REGISTRY, Transform, plugins, register

SCRIPT = """
import helper  # beside the script, where only it is found
import feinsum
from feinsum.measure import open_device
from feinsum.measure.verdicts import VerificationRequest
from feinsum.records import InMemoryStore
from feinsum.retrieval.verifiers import request_verdict
from feinsum.transforms import Transform, register
from feinsum.transforms.primitives import begin, split

OUTER = "g.0"


def one_item(t_unit, nest, parameters):
    schedule = begin(t_unit, nest)
    iname = schedule.inames[nest.einsum.output[0]]
    if parameters["block"] == 16:
        return {}["missing"]
    schedule, _ = split(
        schedule, iname, parameters["block"], outer_tag=OUTER, inner_tag="l.0"
    )
    return schedule.t_unit


def space(workload):
    fits = workload.einsum.output and workload.einsum.n_operands == 2
    return {"block": helper.BLOCKS} if fits else None


for _ in range(2):  # a cell of a notebook is run again
    register(Transform("one_item", 1, "one item per value", space, one_item))

facts = InMemoryStore()
einsum = feinsum.einsum(
    "ij,j->i", feinsum.array("A", ("n", 4)), feinsum.array("x", 4)
)
record = feinsum.record_facts(
    einsum, "one_item@1(block=32)", sizes={"n": 100}, database=facts
)
print(record.spec)
question = VerificationRequest(
    record.workload_text, record.spec, open_device(None).device.id, 2**32, {"N0": 100}
)
print(request_verdict(question).code)
try:
    feinsum.record_facts(
        einsum, "one_item@1(block=16)", sizes={"n": 100}, database=facts
    )
except feinsum.FeinsumError as error:
    print(error)
"""


def test_a_transform_of_a_script_is_tried_and_recorded(tmp_path):
    """It is no module that a child could import; its failure names its line."""
    (tmp_path / "helper.py").write_text("BLOCKS = (32, 16)\n")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    spec, verdict, failure = done.stdout.splitlines()
    assert spec == "one_item@1(block=32)"
    assert verdict == "ok"
    assert "KeyError: 'missing'" in failure
    assert f"{script}:18, in one_item" in failure


@pytest.fixture
def unpicklable():
    lock = __import__("threading").Lock()
    made = Transform("locked", 1, "", lambda _: lock and None, lambda *_: lock)
    register(made)
    yield made
    del REGISTRY["locked", 1]


def test_what_cannot_be_handed_over_is_named(unpicklable, tmp_path):
    """The error has the transform, and says what to do."""
    assert unpicklable in plugins.list_local_transforms()
    with pytest.raises(TransformError, match="locked@1 cannot be passed") as caught:
        plugins.export_transforms(tmp_path)
    assert "FEINSUM_TRANSFORMS" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_the_library_is_not_handed_over(tmp_path):
    """Other processes have it."""
    names = {t.apply.__module__ for t in plugins.list_local_transforms()}
    assert not [name for name in names if name.startswith("feinsum.")]
