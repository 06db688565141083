"""Runs of plans become facts: what came is counted, and blocks are verified."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import feinsum
from feinsum.cli import app
from feinsum.db import open_store
from feinsum.distributed import plan_program, with_cyclic
from feinsum.distributed.facts import (
    build_check,
    choose_sample_boxes,
    compare_samples,
    compute_rounding_tolerance,
    get_inner_plan,
)
from feinsum.distributed.fleets import RankLocation, build_fleet, describe_fleet_here
from feinsum.distributed.recorded import make_random_arrays, record_run
from feinsum.distributed.storage import get_slices
from feinsum.errors import PlanError, WrongResultError
from feinsum.programs import multi_head_attention, program
from feinsum.records import InMemoryStore, PlanRecord, judge
from tests.db.factories import make_device, make_plan_record
from tests.distributed.cases import KERNELS
from tests.distributed.test_facts import softmax
from tests.distributed.test_mpi import needs_mpi, started


def attention():
    p = program()
    X = p.input("X", (8, 16))
    p.output(multi_head_attention(p, X, heads=4, entries=4))
    return p.build()


MADE = {
    "einsum": lambda: feinsum.plan(KERNELS["paper"], processes=4),
    "dealt": lambda: with_cyclic(made_of("einsum"), "ila"),
    "mttkrp": lambda: feinsum.plan(KERNELS["mttkrp-3-0"], processes=6),
    "softmax": lambda: plan_program(softmax(), processes=3),
    "attention": lambda: plan_program(attention(), processes=4),
}


@cache
def made_of(name):
    """A plan by its name, made when a test first needs it."""
    return MADE[name]()


@pytest.mark.parametrize("name", MADE)
def test_a_run_here_is_counted_and_verified(name):
    """A local run records predicted elements, right results and no seconds."""
    made, store = made_of(name), InMemoryStore()
    fact = record_run(made, make_random_arrays(made), store)
    assert store.plans(fact.workload) == (fact,)
    assert judge(fact) == ()
    assert (fact.plan_id, fact.counted) == (made.id, made.counts.moved)
    assert fact.fleet.engine == "local"
    assert fact.fleet.ranks == get_inner_plan(made).processes
    assert fact.samples_s == ()
    assert fact.verification.n_blocks > 1
    assert fact.verification.largest_error < 1e-12


@pytest.mark.parametrize("name", MADE)
def test_a_wrong_entry_of_a_sample_is_found(name):
    """Each rank checks its own sample; one wrong entry in it raises an error."""
    made = made_of(name)
    plan, arrays = get_inner_plan(made), make_random_arrays(made)
    whole = made.simulate(arrays)
    (output,) = plan.outputs
    result = whole if plan.statements is None else whole[output]
    for rank in (0, plan.processes - 1):
        for box in choose_sample_boxes(plan, rank).values():
            part = np.array(result[get_slices(box)])

            def read(operand, where):
                return arrays[operand][get_slices(where)]

            (right,) = compare_samples(made, read, {output: (box, part)})
            assert right.error <= compute_rounding_tolerance(plan)
            part.flat[-1] += 0.1 * np.abs(part).max()
            wrong = compare_samples(made, read, {output: (box, part)})
            with pytest.raises(WrongResultError, match="1 of 1 blocks"):
                build_check(made, wrong)


def test_samples_are_parts_of_what_a_rank_has():
    """Samples are small parts of what a rank has."""
    plan = feinsum.plan(KERNELS["1mm"], processes=9)
    for rank in range(9):
        for name, box in choose_sample_boxes(plan, rank).items():
            held = plan.result_box(rank, name)
            for side, whole in zip(box, held, strict=True):
                assert set(side) <= set(whole)
                assert 1 <= len(side) <= 8


def test_a_fleet_is_of_ranks_that_are_alike():
    """A fleet counts the cores of a host once, and does not name hosts."""
    cpu, both = make_device(), frozenset({0, 1})
    here = [RankLocation("a", frozenset({k}), 1, cpu) for k in (0, 1)]
    there = [RankLocation("b", both, 1, cpu)] * 3
    fleet = build_fleet("mpi", here + there)
    assert [(host.ranks, host.cores) for host in fleet.hosts] == [(2, 2), (3, 2)]
    assert (fleet.ranks, fleet.load, fleet.is_timed) == (5, 1.5, False)
    assert build_fleet("mpi", here).is_timed
    assert not build_fleet("local", here).is_timed
    with pytest.raises(PlanError, match="identical ranks") as caught:
        build_fleet("mpi", [here[0], RankLocation("a", both, 2, cpu)])
    assert caught.value.rules == ("fleet",)
    assert describe_fleet_here(2).is_like(describe_fleet_here(2))
    assert not describe_fleet_here(2).is_like(describe_fleet_here(3))


def test_too_few_runs_are_refused_before_the_first():
    """Fewer than three timed runs are refused before the first."""
    made = made_of("einsum")
    with pytest.raises(PlanError, match="at least 3"):
        record_run(made, make_random_arrays(made), InMemoryStore(), runs=1)


def test_a_block_that_needs_too_much_memory_is_not_verified(monkeypatch):
    """A sample that depends on too much memory raises an error."""
    monkeypatch.setattr("feinsum.distributed.facts.get_free_memory_bytes", lambda: 100)
    made = made_of("softmax")
    with pytest.raises(PlanError, match="cannot be verified") as caught:
        record_run(made, make_random_arrays(made), InMemoryStore())
    assert caught.value.rules == ("memory",)


def test_mpi_is_recorded_by_its_own_function():
    """``record_run`` refuses the engine ``mpi``."""
    with pytest.raises(PlanError, match="record_on_ranks"):
        record_run(made_of("einsum"), {}, InMemoryStore(), engine="mpi")


def facts_in(path: Path) -> list[PlanRecord]:
    with open_store(path) as store:
        return list(store.documents("plan"))


def test_a_plan_is_recorded_by_the_command(tmp_path):
    """``feinsum plan --record``: of an einsum and of a program."""
    database, text = tmp_path / "facts.sqlite", tmp_path / "softmax.txt"
    text.write_text(str(softmax()))
    words = ["plan", "ij,jk->ik", "--sizes", "i=8,j=6,k=4", "--processes", "4"]
    said = CliRunner().invoke(app, [*words, "--record", str(database)])
    created = f"feinsum: created the database {database}\n"
    assert (said.exit_code, said.stderr) == (0, created)
    (fact,) = facts_in(database)
    assert f"recorded {fact.id[:12]}" in said.stdout
    words = ["plan", "--program", str(text), "--processes", "2", "--json"]
    said = CliRunner().invoke(app, [*words, "--record", str(database)])
    assert said.exit_code == 0
    assert json.loads(said.stdout)["recorded"] in {x.id for x in facts_in(database)}


def test_a_query_prints_the_plans_of_an_einsum_and_of_a_program(tmp_path):
    """``feinsum query`` prints plans by key; without any it exits with 3."""
    database, text = tmp_path / "facts.sqlite", tmp_path / "softmax.txt"
    text.write_text(str(softmax()))
    known = [make_plan_record(0), make_plan_record(1)]
    here = make_random_arrays(made_of("softmax"))
    asked = ["query", "--program", str(text), "--database", str(database), "--json"]
    with open_store(database) as store:
        store.add_all(known)
    assert CliRunner().invoke(app, asked).exit_code == 3
    with open_store(database) as store:
        fact = record_run(made_of("softmax"), here, store)
    (found,) = json.loads(CliRunner().invoke(app, asked).stdout)["plans"]
    assert (found["id"], found["ranks"], found["median_s"]) == (fact.id, 3, None)
    words = ["query", "ij,j->i", "--sizes", "i=64,j=4", "--database", str(database)]
    said = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [one["id"] for one in said["plans"]] == [one.id for one in known]
    assert said["plans"][0]["extents"] == {"i": 64, "j": 4}
    table = CliRunner().invoke(app, words).stdout
    assert table.index(known[0].id[:12]) < table.index(known[1].id[:12])
    both = CliRunner().invoke(app, [*words, "--program", str(text)])
    assert "cannot be combined with a program" in " ".join(both.stderr.split())


@needs_mpi
def test_ranks_of_mpi_record_what_they_moved(tmp_path):
    """``feinsum.run --record``: seconds if there are cores for all ranks, and links."""
    made = plan_program(softmax(), processes=2)
    (tmp_path / "plan.json").write_text(made.to_json())
    arrays = make_random_arrays(made)
    for operand, array in arrays.items():
        np.save(tmp_path / f"{operand}.npy", array)
    database, out = tmp_path / "facts.sqlite", tmp_path / "out.npy"
    where = ["--inputs", str(tmp_path), "--output", str(out)]
    words = [str(tmp_path / "plan.json"), *where, "--record", str(database)]
    done = started(2, "feinsum.run", *words, FEINSUM_DATABASE=str(database))
    assert done.returncode == 0, done.stderr
    (fact,) = facts_in(database)
    assert f"recorded {fact.id[:12]}" in done.stdout
    assert judge(fact) == ()
    assert (fact.counted, fact.plan_id) == (made.counts.moved, made.id)
    assert (fact.fleet.engine, fact.fleet.ranks, fact.fleet.threads) == ("mpi", 2, 1)
    assert len(fact.samples_s) == (3 if fact.fleet.is_timed else 0)
    assert (fact.fleet.links is not None) == fact.fleet.is_timed
    assert fact.verification.n_blocks == 2
    np.testing.assert_allclose(np.load(out), made.simulate(arrays)["Y"])


@needs_mpi
@pytest.mark.long
def test_a_database_that_cannot_be_written_is_named_before_the_run(tmp_path):
    """A database that cannot be written ends the run before it begins."""
    made = feinsum.plan(KERNELS["paper"], processes=2)
    (tmp_path / "plan.json").write_text(made.to_json())
    for operand, array in make_random_arrays(made).items():
        np.save(tmp_path / f"{operand}.npy", array)
    (tmp_path / "no-database").write_text("this is none")
    where = ["--inputs", str(tmp_path), "--output", str(tmp_path / "out.npy")]
    words = [str(tmp_path / "plan.json"), *where, "--record"]
    done = started(2, "feinsum.run", *words, str(tmp_path / "no-database"))
    assert done.returncode != 0
    assert done.stderr.startswith("feinsum: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.npy").exists()
