"""Facts of plans: what is recorded is plausible, and nothing that was made up is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import feinsum
from feinsum.canonical import canonicalize
from feinsum.distributed import Plan, plan_program, plan_statements, statements
from feinsum.distributed.facts import (
    build_fact,
    findings,
    get_inner_plan,
    get_plan_key,
    read_plan,
)
from feinsum.errors import PlanError
from feinsum.ir import generalize
from feinsum.programs import program
from feinsum.records import Host, judge, to_json
from tests.children import run_python
from tests.db.factories import make_fleet, make_plan, make_plan_record
from tests.distributed.cases import KERNELS, einsum_of


def softmax(rows=8):
    p = program()
    p.softmax(p.input("X", (rows, 6)), name="Y")
    return p.build()


MADE = [
    feinsum.plan(KERNELS["paper"], processes=4),
    feinsum.plan(einsum_of("ij,jk->ik", every=600), processes=1),
    plan_program(softmax(), processes=2),
]


@pytest.mark.parametrize("made", MADE, ids=["einsum", "alone", "program"])
def test_what_is_recorded_is_plausible(made):
    """A recorded fact is plausible, and its plan reads back unchanged."""
    fleet = make_fleet(get_inner_plan(made).processes)
    record = make_plan_record(plan=made, fleet=fleet)
    assert judge(record) == ()
    assert read_plan(record.plan) == made
    assert record.plan_id == made.id
    assert record.counted == made.counts.moved


def test_the_key_is_that_of_what_is_computed():
    """The key of a fact is the one that ``query`` looks up, whatever the names."""
    one = einsum_of("ij,jk->ik", every=600)
    other = einsum_of("zw,Yz->Yw", every=600)
    key = get_plan_key(feinsum.plan(one, processes=4))
    assert key == get_plan_key(feinsum.plan(other, processes=2))
    assert key == canonicalize(generalize(one)[0]).key
    p = program()
    p.einsum("ij,j->i", feinsum.array("A", (64, 4)), feinsum.array("x", 4))
    alone = plan_program(p.build(), processes=2)
    assert get_plan_key(alone) == get_plan_key(make_plan())


def test_bare_statements_have_no_key():
    """Bare statements have no key, because they are no program."""
    both = statements(["Q[s,h] = X[s,a] * V[a,h]"], {"X": (6, 4), "V": (4, 3)})
    with pytest.raises(PlanError, match="program"):
        get_plan_key(plan_statements(both, processes=2))


def _changed(text, **changes):
    return json.dumps(json.loads(text) | changes, sort_keys=True, separators=(",", ":"))


HONEST = make_plan_record()
FLEET, PREDICTED = HONEST.fleet, dict(HONEST.predicted)
CHECKED = HONEST.verification
SHARED = replace(FLEET, hosts=(Host(2, 1),))
LOOPED = _changed(
    feinsum.plan(einsum_of("ij,jk->ik", every=64), processes=64).to_json(), sizes={}
).replace('"loop":null', '"loop":{"index":"j","parts":16384,"rotate":[]}')

FAKES = {
    "fewer elements": (
        {"predicted": PREDICTED | {"moved": 2}, "counted": 2},
        "counts",
    ),
    "less memory": ({"predicted": PREDICTED | {"peak": 1}}, "counts"),
    "other received": ({"counted": HONEST.counted + 1}, "counts"),
    "no counts": ({"predicted": {}}, "counts"),
    "another key": ({"workload": f"{HONEST.workload[:-1]}0"}, "key-of-another-plan"),
    "no plan": ({"plan": "{}"}, "plan"),
    "no text": ({"plan": '{"program":1}'}, "plan"),
    "changed leaves": ({"plan": _changed(HONEST.plan, leaves=[])}, "plan"),
    "other spaces": ({"plan": json.dumps(json.loads(HONEST.plan))}, "plan"),
    "too many steps": ({"plan": LOOPED}, "plan"),
    "more ranks": ({"fleet": make_fleet(4)}, "fleet"),
    "endless cores": (
        {"fleet": replace(FLEET, hosts=(Host(2, 2**40),))},
        "fleet",
    ),
    "faster than light": ({"samples_s": (2e-8,) * 3}, "faster-than-possible"),
    "one time": ({"samples_s": (1e-3,)}, "too-few-samples"),
    "no time": ({"samples_s": (1e-9,) * 3}, "below-resolution"),
    "shared cores": ({"fleet": SHARED}, "shared-cores"),
    "in turns": ({"fleet": make_fleet(engine="local")}, "shared-cores"),
    "unverified": ({"verification": replace(CHECKED, n_blocks=0)}, "not-verified"),
    "wrong": (
        {"verification": replace(CHECKED, largest_error=1.0)},
        "error-above-tolerance",
    ),
    "any result": ({"verification": replace(CHECKED, tolerance=1.0)}, "tolerance"),
    "tomorrow": ({"recorded_at": "9999-01-01T00:00:00+00:00"}, "future"),
}


@pytest.mark.parametrize(("changes", "code"), FAKES.values(), ids=FAKES)
def test_made_up_facts_are_found(changes, code):
    """Made-up counts, keys, fleets and times are found by counting again."""
    plan = make_plan(512) if code == "faster-than-possible" else make_plan()
    honest = make_plan_record(plan=plan)
    assert [one.code for one in judge(replace(honest, **changes))] == [code]


def test_seconds_are_kept_where_they_say_something():
    """Facts of ranks that share cores have no seconds."""
    made = make_plan()
    for fleet in (SHARED, make_fleet(engine="local")):
        record = build_fact(made, fleet, made.counts.moved, CHECKED, (1e-3,) * 3)
        assert record.samples_s == ()
        assert record.median_s is None
        assert judge(record) == ()


def test_a_plan_of_another_release_is_refused():
    """The finding names the release's format, without a traceback."""
    text = _changed(HONEST.plan, format=99)
    (found,) = findings(replace(HONEST, plan=text))
    assert (found.code, "format 99" in found.given) == ("plan", True)
    assert Plan.from_json(HONEST.plan) == make_plan()


def test_a_judge_needs_no_code_generator(tmp_path):
    """A service judges plans of einsums and of programs without Loopy and OpenCL."""
    (tmp_path / "plans.txt").write_text(
        "\n".join(
            to_json(make_plan_record(plan=made, fleet=make_fleet(2)))
            for made in (make_plan(), MADE[-1])
        )
    )
    code = """
import sys
from feinsum.records import PlanRecord, from_json, judge
texts = open(sys.argv[1]).read().splitlines()
print([judge(from_json(PlanRecord, text)) for text in texts])
print({"loopy", "pyopencl", "optuna", "mpi4py"} & set(sys.modules))
"""
    said = run_python("-c", code, tmp_path / "plans.txt")
    assert said.stdout == "[(), ()]\nset()\n"
