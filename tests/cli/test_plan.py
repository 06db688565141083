"""``feinsum plan``."""

from __future__ import annotations

import json

from feinsum.canonical import canonicalize
from feinsum.distributed import Plan, ProgramPlan
from feinsum.programs import program_key

PRODUCT = ("ij,jk->ik", "--sizes", "i=n,j=n,k=n", "--size", "n=600")


def test_a_plan_is_told_and_saved(run, tmp_path):
    """In words: groups, what cuts them, and what is moved. The document has the plan
    that is saved, and reads back.
    """
    path = tmp_path / "plan.json"
    words = run("plan", *PRODUCT, "--processes", "8").stdout
    assert "x=2 cuts i, y=2 cuts k, z=2 cuts j; sums in blocks" in words
    assert "moved 1,080,000 elements" in words
    arguments = (*PRODUCT, "--processes", "9", "--json", "--save", str(path))
    document = json.loads(run("plan", *arguments).stdout)
    made = Plan.from_json(path.read_text())
    assert made.id == document["id"]
    assert json.loads(made.to_json()) == document["plan"]
    assert made.counts.document() == document["counts"]
    assert [leaf.key for leaf in made.leaves] == [x["key"] for x in document["leaves"]]


def test_a_sparse_tensor_is_planned_by_its_entries(ask, tmp_path):
    """Its entries are dealt out; the others move to them."""
    path = tmp_path / "T.tns"
    path.write_text("1 1 1 1.0\n2 3 4 2.0\n4 4 4 1.0\n")
    arguments = ("ijk,ja,ka->ia", "--sizes", "a=16", "--processes", "4")
    made = ask("plan", *arguments, "--sparse", str(path))
    assert made["plan"]["nonzeros"] == 3
    assert made["counts"]["points"] < 2 * 3 * 16


def test_failures_have_the_code(run):
    """Too little memory, and sizes that are missing."""
    for extra in (("--memory", "1kB"), ("--memory", "much")):
        result = run("plan", *PRODUCT, "--processes", "4", *extra, "--json")
        assert result.exit_code == 1
        assert "plan-failed" in result.stderr
    result = run("plan", *PRODUCT[:3], "--processes", "4")
    assert result.exit_code == 1
    assert "no value of n" in result.stderr


def test_leaves_are_tuned(run, autotune, tmp_path):
    """Every different one, once; a failure ends only its own tuning."""
    path = tmp_path / "plan.json"
    chain = ("ij,jk,kl->il", "--sizes", "i=40,j=20,k=40,l=20", "--processes", "4")
    assert run("plan", *chain, "--save", str(path)).exit_code == 0
    made = Plan.from_json(path.read_text())
    n_leaves = len({leaf.key for leaf in made.leaves})
    seen = autotune()
    result = run("tune", "--plan", str(path), "--trials", "3")
    assert result.exit_code == 0, result.stderr
    assert f"tuned {n_leaves} of {n_leaves} leaves" in result.stdout
    assert seen["n_trials"] == 3
    assert canonicalize(seen["target"]).key in {leaf.key for leaf in made.leaves}
    autotune(n_recorded=0)
    failed = run("tune", "--plan", str(path))
    assert (failed.exit_code, failed.stdout.count("a leaf of the plan:")) == (
        1,
        n_leaves,
    )
    assert run("tune", "--plan", str(path), "ij->i").exit_code == 2
    assert run("tune", "--plan", str(path), "--from-misses", "x").exit_code == 2
    assert run("tune", "--plan", str(tmp_path / "none.json")).exit_code == 2
    path.write_text("{}")
    assert run("tune", "--plan", str(path)).exit_code == 1


def test_arrays_start_where_an_earlier_plan_leaves_them(run, tmp_path):
    """Operands with the names of its operands, or of its results."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    arguments = ("plan", *PRODUCT, "--processes", "4")
    assert run(*arguments, "--save", str(first)).exit_code == 0
    again = ("plan", "jk,kl->jl", "--sizes", "j=12,k=12,l=12", "--operands", "B,out")
    after = (*again, "--processes", "4", "--after", str(first), "--save", str(second))
    result = run(*after)
    assert result.exit_code == 0, result.stderr
    plans = [Plan.from_json(path.read_text()) for path in (first, second)]
    assert plans[1].starts["B"] == plans[0].starts["B"]
    assert plans[1].starts["out"] == plans[0].result
    assert run(*arguments, "--after", str(tmp_path / "none.json")).exit_code == 2
    first.write_text("{}")
    assert run(*arguments, "--after", str(first)).exit_code == 1


def test_a_picture_is_drawn(run, tmp_path):
    """Of up to 64 processes, in three formats."""
    for name in ("plan.svg", "plan.png"):
        result = run(
            "plan", *PRODUCT, "--processes", "4", "--picture", str(tmp_path / name)
        )
        assert result.exit_code == 0, result.stderr
    assert "<svg" in (tmp_path / "plan.svg").read_text()
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    for name, processes in (("a.gif", "4"), ("a.png", "65"), ("none/a.png", "4")):
        path = str(tmp_path / name)
        refused = run("plan", *PRODUCT, "--processes", processes, "--picture", path)
        assert refused.exit_code == 2
        assert "--picture" in refused.stderr


PROGRAM = """
Q[8,4]:<f8
K[8,4]:<f8
S[s,t] = sum x0*x1 : Q[s,d], K[t,d]
M[s] = max x0 : S[s,t]
-> M
"""


def test_a_program_is_planned_saved_and_drawn(run, ask, tmp_path):
    """From its text; the document has its key, and reads back."""
    source, path = tmp_path / "program.txt", tmp_path / "plan.json"
    source.write_text(PROGRAM)
    files = ("--save", str(path), "--picture", str(tmp_path / "graph.svg"))
    arguments = ("plan", "--program", str(source), "--processes", "4")
    document = ask(*arguments, *files)
    made = ProgramPlan.from_json(path.read_text())
    assert document["id"] == made.id
    assert document["key"] == program_key(made.program)
    assert document["counts"] == made.counts.document()
    drawn = (tmp_path / "graph.svg").read_text()
    assert drawn.startswith("<?xml")
    assert str(made) in run(*arguments).stdout


def test_what_cannot_be_planned_is_refused(run, tmp_path):
    """A program and an einsum, or neither; a file that is none, or nowhere."""
    missing = str(tmp_path / "missing" / "plan.json")
    for arguments, named in (
        (("ij->i", "--program", "a.txt"), ""),
        (("--program", "missing.txt"), "cannot read missing.txt: No such file"),
        ((), ""),
        (("--program", "a.txt", "--database", "facts.sqlite"), ""),
        ((*PRODUCT, "--save", missing), "--save"),
    ):
        result = run("plan", *arguments, "--processes", "4")
        assert result.exit_code == 2
        assert named in result.stderr
    source = tmp_path / "program.txt"
    source.write_text("what is this")
    result = run("plan", "--program", str(source), "--processes", "2", "--json")
    assert result.exit_code == 1
    assert "program-failed" in result.stderr


def test_a_saved_plan_is_shown_with_blocks_and_steps(run, tmp_path):
    """Every step of the rank on a line; the sends of all ranks are the messages."""
    path = tmp_path / "plan.json"
    run("plan", *PRODUCT, "--processes", "4", "--save", str(path))
    made = Plan.from_json(path.read_text())
    sent = 0
    for rank in range(4):
        shown = run("show", str(path), "--rank", str(rank), "--json")
        document = json.loads(shown.stdout)
        assert document["plan"] == str(made)
        assert len(document["steps"]) == len(made.steps[rank])
        sent += sum(step.startswith("send ") for step in document["steps"])
    assert sent == made.counts.messages
    text = run("show", str(path)).stdout
    assert "needs A[i,j]\n    0:300, 0:600  on 0,1" in text
    assert "\nreceive  A@0.0.0[0:300, 300:600] from 1" in text


def test_what_is_no_plan_cannot_be_shown(run, tmp_path):
    """A missing file, other JSON, a rank that it lacks, a rank of an einsum."""
    path = tmp_path / "plan.json"
    assert run("show", str(path)).exit_code == 2
    path.write_text("[]")
    assert run("show", str(path)).exit_code == 1
    run("plan", *PRODUCT, "--processes", "2", "--save", str(path))
    wrong = run("show", str(path), "--rank", "2")
    assert wrong.exit_code == 1
    assert "expected one from 0 to 1" in wrong.stderr
    assert run("show", "ij,j->i", "--rank", "0").exit_code == 2
