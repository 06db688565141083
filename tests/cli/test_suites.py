"""``feinsum tune --suite``: workloads of the package, and of files of one's own."""

from __future__ import annotations

import json

from feinsum.cli.tune.sources import read_suites

LINES = """
# matrices
ij,j->i  i=n,j=4 n=70
{cell}{dof}, {dof} -> {cell}  cell=90,dof=5   # words
i j, j -> i | A[N,3]:<f4 x[3]:<f4 | A x
"""
ROWS = """einsum,sizes,size,dtype
"ij,j->i","i=n,j=4",n=70,
"{cell}{dof}, {dof} -> {cell}",cell=90;dof=5,,float64
"i j, j -> i | A[N,3]:<f4 x[3]:<f4 | A x",,,
"""
OBJECTS = [
    {"einsum": "ij,j->i", "sizes": {"i": "n", "j": 4}, "size": {"n": 70}},
    {"einsum": "{cell}{dof}, {dof} -> {cell}", "sizes": "cell=90,dof=5"},
    {"einsum": "i j, j -> i | A[N,3]:<f4 x[3]:<f4 | A x"},
]


def _written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_a_file_has_workloads(tmp_path):
    """Lines, CSV and JSON say the same; each workload is there once."""
    for name, text in (
        ("own.txt", LINES),
        ("own.csv", ROWS),
        ("own.json", json.dumps(OBJECTS)),
    ):
        file = _written(tmp_path, name, text)
        first, words, whole = read_suites([file, file])
        assert (str(first.einsum.subscripts), first.sizes) == ("ij,j->i", {"n": 70})
        assert [op.shape for op in words.einsum.rows[0]] == [(90, 5), (5,)]
        assert {op.dtype.str for op in whole.einsum.operands} == {"<f4"}
        assert first.name.startswith(f"{file}, ")


def test_the_suites_are_workloads():
    """Each workload once: entries of one canonical form and size are one."""
    entries = read_suites(["dgfem", "dgfem"])
    assert 0 < len(entries) <= 40
    assert len({entry.name for entry in entries}) == len(entries)


def test_what_is_no_workload_is_named_with_its_line(run, tmp_path):
    """All at once, before anything is tuned."""
    for name, text, problems in (
        ("a.txt", "i->i i=3\n\nij->i i=3\nij->k i=3,j=4", ["line 3", "line 4"]),
        ("a.csv", 'einsum,sizes\n"i->i",i=3\n"i->i",i=x!\n', ["line 3", "x!"]),
        ("a.csv", "einsum,sizes\nij,j->i,i=3,j=4\n", ["line 2", "quote those"]),
        ("a.csv", "subscripts\ni->i\n", ["line 1", "'subscripts'"]),
        (
            "a.json",
            '[{"einsum": "i->i", "sizes": {"i": 3}}, {"sum": 1}, 7]',
            ["workload 2", "workload 3"],
        ),
        ("a.json", '[{"einsum": 3}]', ["workload 1", "einsum is 3"]),
        ("a.json", "{", ["not JSON"]),
        ("a.json", "{}", ["expected a list"]),
        ("a.txt", "# none", ["no workloads"]),
    ):
        ended = run("tune", "--suite", _written(tmp_path, name, text))
        assert ended.exit_code == 2
        assert not [problem for problem in problems if problem not in ended.stderr]


def test_a_file_is_tuned(run, autotune, tmp_path):
    """Every workload, at its sizes; a failure ends only its own."""
    seen = autotune()
    file = _written(tmp_path, "own.txt", LINES)
    said = run("tune", "--suite", file, "--trials", "2", "--workloads", "1")
    assert said.exit_code == 0, said.output
    assert (seen["sizes"], seen["n_trials"]) == ({"n": 70}, 2)
    assert "own.txt, line 3: ij,j->i" in said.stdout
    assert "tuned 1 of 1 workload\n" in said.stdout
    autotune(n_recorded=0)
    failed = run("tune", "--suite", file)
    assert failed.exit_code == 1
    assert "tuned 0 of 3 workloads" in failed.stdout


def test_a_suite_says_itself_what_is_tuned(run):
    """Whatever else would say it is bad usage."""
    for options, said in (
        (("--suite", "x"), "there is no suite or file 'x'"),
        (("ij,j->i", "--suite", "tccg"), "omit the einsum"),
        (("--suite", "tccg", "--sizes", "i=3"), "--sizes"),
        (("--suite", "tccg", "--from-misses", "x"), "give --suite or --from-misses"),
    ):
        ended = run("tune", *options)
        assert ended.exit_code == 2
        assert said in ended.stderr
