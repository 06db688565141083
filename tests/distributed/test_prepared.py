"""Plans of programs as documents, and prepared for many inputs."""

from __future__ import annotations

import json

import numpy as np
import pytest

import feinsum
from feinsum.distributed import ENGINES, ProgramPlan, engines, local, plan
from feinsum.errors import FeinsumWarning, PlanError, ProgramError
from feinsum.ir import array
from feinsum.memory import use_fresh_memory
from feinsum.programs import evaluate_program, program
from tests.distributed import test_planned
from tests.distributed.cases import KERNELS, by_numpy, operands_of
from tests.distributed.engine_contract import check_engine


def softmax(rows=6, columns=5):
    p = program()
    p.softmax(array("X", (rows, columns)), name="Y")
    return p


@pytest.mark.usefixtures("numpy_computes_blocks")
@pytest.mark.parametrize("processes", [1, 3, 4])
def test_a_document_gives_the_plan_again(processes):
    """Equal plans have equal ids, and one that is read runs as well."""
    made, arrays, expected = test_planned.on_processes(processes)
    again = ProgramPlan.from_json(made.to_json())
    assert again == made
    assert again.id == made.id
    assert again.id != softmax().plan(processes).id
    found = again.simulate(arrays)
    assert all(np.allclose(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"format": 2}, "format"),
        ({"sizes": {"n": 7}}, "statements"),
        ({"more": 1}, "format"),
        ({"program": "X[6,4]:<f8\nY[i,j] = map exp(x0) : X[i,j]\n-> Y"}, "statements"),
    ],
)
def test_a_document_that_was_changed_is_refused(change, rule):
    p = program()
    p.softmax(array("X", ("n", 4)), name="Y")
    document = json.loads(p.plan(2, sizes={"n": 6}).to_json())
    with pytest.raises(PlanError) as caught:
        ProgramPlan.from_json(json.dumps(document | change))
    assert caught.value.rules == (rule,)
    document["plan"]["leaves"][0]["key"] = "fe2-other"
    with pytest.raises(PlanError, match="leaves do not match"):
        ProgramPlan.from_json(json.dumps(document))


def test_this_process_is_an_engine():
    """Ranks in turns pass the contract."""
    check_engine(*[lambda made: made.prepare("local")] * 2, 4)


def test_a_report_has_what_was_predicted_and_what_came():
    """The report compares prediction and count for every edge, with progress."""
    made, arrays, expected = test_planned.on_processes(4)
    told = []
    outcome = made.prepare().run(arrays, lambda *n: told.append(n))
    report = outcome.report
    assert all(np.allclose(outcome.results[name], expected[name]) for name in expected)
    assert report.counted == report.predicted == made.counts.moved
    assert all(edge.counted == edge.predicted > 0 for edge in report.edges)
    readers = {s.result for s in made.program.statements} | {""}
    assert {edge.reader for edge in report.edges} <= readers
    assert set(report.leaf_s) == readers - {""}
    assert max(report.peak_bytes) == made.plan.peak_bytes
    assert told[-1][0] == told[-1][1] == len(told)
    assert f"{report.edges[0].predicted:,} elements predicted" in str(report)


def test_a_program_runs_by_a_plan():
    """Programs run by a plan, or a number of processes, like the reference."""
    p = softmax()
    x = np.random.default_rng(0).random((6, 5))
    expected = evaluate_program(p.build(), {"X": x})["Y"]
    for made in (p.plan(3), 3):
        assert np.allclose(p.run(X=x, plan=made)["Y"], expected)
    assert np.allclose(p.run(X=x)["Y"], expected)
    p = program()  # sizes are those of the arrays
    p.softmax(array("X", ("n", 4)), name="Y")
    assert np.allclose(p.run(X=np.zeros((5, 4)), plan=2)["Y"], 0.25)


def test_what_does_not_fit_is_refused():
    """Plans of other programs, missing plans and wrong shapes raise errors."""
    p, x = softmax(), np.ones((6, 5))
    with pytest.raises(ProgramError, match="of another program"):
        p.run(X=x, plan=softmax(7).plan(2))
    with pytest.raises(ProgramError, match="for the engine dask"):
        p.run(X=x, engine="dask")
    with pytest.raises(PlanError, match=f"expected {', '.join(ENGINES)}") as caught:
        p.run(X=x, plan=2, engine="slurm")
    assert caught.value.rules == ("engine",)
    with pytest.raises(PlanError, match="use the engine mpi or dask"):
        p.run(X=x, plan=2, on=object())
    A, B = (array(name, (2, 2)) for name in "AB")
    product = plan(feinsum.einsum("ij,jk->ik", A, B), processes=2).prepare()
    for unnamed in ([np.eye(2)] * 2, np.eye(2)):
        with pytest.raises(PlanError, match="expected arrays by name"):
            product.run(unnamed)
    ready = p.plan(2).prepare()
    with pytest.raises(ProgramError, match=r"has shape \(5, 6\)"):
        list(ready.stream([{"X": x.T}]))


def test_blocks_that_are_too_large_are_refused_before_the_run(monkeypatch):
    """Blocks that are too large raise an error with the rule ``memory``."""
    made = plan(KERNELS["1mm"], processes=4)
    monkeypatch.setattr(engines, "get_free_memory_bytes", lambda: 1000)
    with pytest.raises(PlanError, match=r"take [\d,]+ bytes; 1,000 are free") as caught:
        made.prepare().run(operands_of(KERNELS["1mm"]))
    assert caught.value.rules == ("memory",)


def test_a_process_without_a_compiler(monkeypatch, tmp_path):
    """Leaves that would be built are computed by numpy, with a warning; statements of
    programs need no compiler.
    """
    monkeypatch.setenv("FEINSUM_CC", str(tmp_path / "cc"))
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "facts.sqlite"))
    einsum = KERNELS["1mm"]
    ready = plan(einsum, processes=2).prepare(leaf=feinsum.call_einsum)
    operands = operands_of(einsum)
    made, arrays, expected = test_planned.on_processes(2)
    with use_fresh_memory():
        with pytest.warns(FeinsumWarning, match="numpy answers"):
            result = ready.run(operands).results["out"]
        found = made.prepare().run(arrays).results
    assert np.allclose(result, by_numpy(einsum, operands))
    assert all(np.allclose(found[name], expected[name]) for name in expected)


def test_operands_that_change_while_they_are_read():
    """Changes of operands during a run do not affect its result."""
    einsum = KERNELS["paper"]
    operands = operands_of(einsum)
    expected = plan(einsum, processes=4).simulate(operands)

    def leaf(*arguments):
        found = local.compute_with_numpy(*arguments)
        for one in operands.values():
            one[...] = 99
        return found

    ready = plan(einsum, processes=4).prepare(leaf=leaf)
    assert (ready.run(operands).results["out"] == expected).all()


def test_a_result_is_no_view_of_an_input():
    """Changes of a result do not affect the inputs."""
    p = program()
    p.map("x0", array("X", 4), name="Y")
    x = np.zeros(4)
    for made in (None, 2):
        p.run(X=x, plan=made)["Y"][...] = 1
        assert not x.any()
