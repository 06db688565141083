"""``feinsum explain``, and the user's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feinsum.cli.shared.user_file import is_file, read_translation_unit
from feinsum.db import open_store
from feinsum.records import TransformSpec
from feinsum.retrieval import explain
from feinsum.transforms import REGISTRY, Transform
from tests.cli.facts import matvec_record, sized


@pytest.fixture
def applicable_record(database, monkeypatch):
    """A fact about the user's kernel whose recipe is registered: the identity."""
    family = Transform(
        "identity",
        1,
        "nothing",
        lambda einsum: {"lanes": (8,)},
        lambda t_unit, nest, parameters: t_unit,
    )
    monkeypatch.setitem(REGISTRY, ("identity", 1), family)
    record = matvec_record(spec=TransformSpec("identity", 1, {"lanes": 8}))
    with open_store(database) as store:
        store.add(record)
    return record


def test_the_text_is_that_of_the_library(run, kernel_file, applicable_record):
    """The command prints :func:`feinsum.explain`, bounds below it, and ends with 0 if
    it applied.
    """
    result = run("explain", kernel_file)
    assert result.exit_code == 0
    text = explain(read_translation_unit(kernel_file))
    assert result.stdout.startswith(f"{text}\nbounds of ")
    assert "applied: identity@1(lanes=8)" in result.stdout
    assert result.stderr == "this goes to stderr\n"


def test_what_a_script_does_with_its_kernel_is_not_run(run, tmp_path):
    """It is run up to the last assignment to the kernel's name, not beyond."""
    script = tmp_path / "script.py"
    script.write_text(
        "import loopy as lp\n"
        "kernel = lp.make_kernel('{[i]: 0<=i<n}', 'y[i] = 2*x[i]', name='first',\n"
        "    lang_version=(2018, 2))\n"
        "print('between')\n"
        "if True:\n"
        "    kernel = kernel.with_kernel(kernel['first'].copy(name='second'))\n"
        "print('beyond')\n"
        "raise SystemExit(1)\n"
    )
    result = run("explain", f"{script}:kernel")
    assert "between" in result.stderr
    assert "beyond" not in result.stderr
    assert "line" not in result.stderr


def test_a_kernel_is_named_as_well_as_a_function(run, kernel_file, applicable_record):
    """A translation unit of the file is taken as it is, not called."""
    with Path(kernel_file).open("a") as file:
        file.write("\n\nkernel = build()\n")
    named = run("explain", f"{kernel_file}:kernel")
    assert named.exit_code == 0
    assert named.stdout == run("explain", kernel_file).stdout


def test_bounds_follow_where_they_are_known(run, ask, kernel_file, database):
    """What the einsum of the fact costs at least, under the text of the library."""
    spec = TransformSpec("identity", 1, {"lanes": 8})
    with open_store(database) as store:
        store.add(sized(matvec_record(spec=spec)))
    result = run("explain", kernel_file)
    lines = result.stdout.splitlines()
    assert result.stdout.startswith(explain(read_translation_unit(kernel_file)))
    assert any(line.startswith("bounds of ") for line in lines)
    assert any(line.startswith("at least: ") for line in lines)
    (nest,) = ask("explain", kernel_file)["nests"]
    assert nest["bound"]["compulsory_bytes"] == 8 * (1000 * 4 + 4 + 1000)


def test_json_says_the_same(run, kernel_file, applicable_record):
    """One document with the key, the level, the candidates and what was applied."""
    result = run("explain", kernel_file, "--json")
    document = json.loads(result.stdout)
    (nest,) = document["nests"]
    assert nest["key"] == applicable_record.workload
    assert nest["canonical"] == applicable_record.workload_text
    assert nest["level"] == "exact"
    assert [c["id"] for c in nest["candidates"]] == [applicable_record.id]
    assert nest["applied"] == "identity@1(lanes=8)"
    assert document["applied"] == ["identity@1(lanes=8)"]
    assert document["refused"] == []


def test_no_fact_is_exit_code_3(run, kernel_file):
    """The kernel is an einsum of which nothing is known."""
    result = run("explain", kernel_file, "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    (nest,) = document["nests"]
    assert nest["level"] == "miss"
    assert nest["tune"].startswith("feinsum tune ")
    assert nest["tune"] in run("explain", kernel_file).stdout
    assert document["applied"] == []


def test_no_einsum_is_exit_code_3(run, ask, kernel_file):
    """The rule that the kernel breaks is named."""
    text = run("explain", f"{kernel_file}:increment")
    document = ask("explain", f"{kernel_file}:increment")
    assert text.exit_code == 3
    assert text.stdout.startswith("not raised: ")
    assert (document["nests"], document["applied"]) == ([], [])
    (refused,) = document["refused"]
    assert f"broken rule: {refused['rule']}" in text.stdout


def test_options_reach_the_library(run, kernel_file):
    """A kernel that does not exist is the library's refusal, and bad usage."""
    result = run("explain", kernel_file, "--kernel-name", "other", "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "not-an-einsum"
    assert "kernel_name='other'" in error["message"]


def test_instructions_that_are_not_there_are_bad_usage(run, kernel_file):
    """What names no instruction says nothing of the kernel: exit code 2."""
    for match in ("id:nothing_of_this_name", "((", "in:"):
        result = run("explain", kernel_file, "--instructions", match)
        assert result.exit_code == 2
        assert "[not-an-einsum]" in result.stderr
        assert result.stdout == ""


def test_a_file_that_exits_is_bad_usage(run, tmp_path):
    """``sys.exit`` in a user's file ends with exit code 2, whatever its code."""
    path = tmp_path / "leaves.py"
    for command, code, text in (
        ("explain", "", "def build():\n    sys.exit({})\n"),
        ("explain", "3", "def build():\n    sys.exit({})\n"),
        ("explain", "0", "sys.exit({})\nbuild = None\n"),
        ("tune", "0", "def build():\n    sys.exit({})\n"),
        ("tune", "'words'", "sys.exit({})\nbuild = None\n"),
    ):
        path.write_text(f"import sys\n{text.format(code)}")
        result = run(command, str(path))
        assert result.exit_code == 2
        assert "SystemExit" in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_bad_function_is_bad_usage(run, kernel_file):
    """The line on stderr says what is wrong with the user's function, and where."""
    for function, words in (
        ("number", ["returns an int", "TranslationUnit"]),
        ("fails", ["line 40", "ZeroDivisionError"]),
        ("missing", ["'missing'", " build, ", " increment, "]),
    ):
        result = run("explain", f"{kernel_file}:{function}")
        assert result.exit_code == 2
        assert all(word in result.stderr for word in words), result.stderr


def test_a_file_may_import_its_neighbours_and_define_dataclasses(run, tmp_path):
    """The file runs as a script would."""
    (tmp_path / "cli_test_neighbour.py").write_text("VALUE = 3\n")
    path = tmp_path / "user.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import cli_test_neighbour\n"
        "@dataclass\n"
        "class Point:\n"
        "    x: int\n"
        "def build():\n"
        "    return Point(cli_test_neighbour.VALUE)\n"
    )
    assert "returns a Point" in run("explain", str(path)).stderr


def test_a_target_is_a_file_if_it_looks_like_one():
    """Subscripts never end in ``.py``."""
    for target, expected in (
        ("wave.py", True),
        ("a/b.py:grad", True),
        ("a:b/c.py", True),
        ("ij,j->i", False),
        ("{cell}{dof} -> {cell}", False),
    ):
        assert is_file(target) is expected


def test_an_unknown_name_is_refused_before_the_script_runs(run, tmp_path):
    """A mistyped name costs no minute, and leaves no trace of the script."""
    witness = tmp_path / "witness"
    script = tmp_path / "script.py"
    script.write_text(
        f"from pathlib import Path\nPath({str(witness)!r}).touch()\n"
        "def build():\n    hidden = 1\nkernel = build()\nn = 3\n"
    )
    result = run("explain", f"{script}:hidden")
    assert result.exit_code == 2
    assert f"{script} has no 'hidden'; " in result.stderr
    assert result.stderr.endswith("; names there: build, kernel\n")
    assert not witness.exists()
    result = run("explain", f"{script}:n")
    assert result.exit_code == 2
    assert "script.py:n is a value of type int; expected a kernel" in result.stderr


def test_a_name_that_only_running_shows_is_not_refused_early(run, tmp_path):
    """Whatever the file may bind is tried."""
    for line in (
        "from os import *",
        "globals()['made'] = 1",
        "import sys as made",
        "made = 1",
        "if True:\n    def made(): return 1",
        "def __getattr__(name): return 1",
    ):
        script = tmp_path / "script.py"
        script.write_text(f"raise RuntimeError('it ran')\n{line}\n")
        assert "it ran" in run("explain", f"{script}:made").stderr


def test_a_split_kernel_is_told_what_it_needs(run, tmp_path):
    """Tags of parallel axes are in the way; the message says how they go."""
    script = tmp_path / "script.py"
    script.write_text(SPLIT)
    result = run("explain", f"{script}:tagged")
    assert result.exit_code == 3, result.stderr
    assert "loopy.untag_inames" in result.stdout
    assert "raised: ij,j->i" in run("explain", f"{script}:plain").stdout


SPLIT = """
import loopy as lp
import numpy as np

def plain(**tags):
    kernel = lp.make_kernel(
        "{[i,j]: 0<=i<n and 0<=j<20}", "y[i] = sum(j, A[i,j]*x[j])",
        [lp.GlobalArg("A", np.float64, shape="n,20"),
         lp.GlobalArg("x", np.float64, shape="20"),
         lp.GlobalArg("y", np.float64, shape="n"), lp.ValueArg("n", np.int32)],
        lang_version=(2018, 2), target=lp.CTarget())
    return lp.split_iname(kernel, "i", 16, **tags)

def tagged():
    return plain(outer_tag="g.0", inner_tag="l.0")
"""


def test_a_kernel_has_no_options_of_einsums(run, kernel_file):
    """They are refused by name before the file is run."""
    for option in ("--sizes", "--operands", "--rows", "--program"):
        result = run("explain", kernel_file, option, "i=3")
        assert result.exit_code == 2
        assert f"{option}: this is an option of an einsum" in result.stderr


def test_an_error_of_syntax_names_the_line_of_the_file(run, tmp_path):
    """In one line, and not that of an unknown file."""
    path = tmp_path / "broken.py"
    path.write_text("import loopy\n\nbuild = (\n")
    result = run("explain", str(path))
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert f"{path}, line 3: SyntaxError: '(' was never closed" in line
    assert "<unknown>" not in line
