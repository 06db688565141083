"""``feinsum export-c``."""

from __future__ import annotations

import json

import pytest

PRODUCT = ("export-c", "ij,jk->ik", "--sizes", "i=m,j=8,k=8", "--name", "product")


@pytest.fixture(autouse=True)
def _predicting(monkeypatch):
    monkeypatch.setenv("FEINSUM_EFFORT", "estimate")


def test_the_source_is_printed(run):
    """Only the source: it can be piped into a compiler."""
    result = run(*PRODUCT)
    assert result.exit_code == 0
    assert result.stdout.startswith("/*")
    assert "int product(double *out, const double *A, const double *B" in result.stdout


def test_source_and_header_are_written(run, tmp_path):
    """The declaration is printed, the files are whole."""
    source, header = tmp_path / "product.c", tmp_path / "product.h"
    result = run(*PRODUCT, "-o", str(source), str(header))
    assert result.exit_code == 0
    assert result.stdout.strip() in header.read_text()
    assert "int product(" in source.read_text()


def test_json_says_what_it_is(run, ask, tmp_path):
    """The recipe and its level, and the code or the files."""
    document = ask(*PRODUCT)
    assert document["level"] == "predicted"
    assert document["recipe"]
    assert document["signature"] in document["header"]
    files = [str(tmp_path / "a.c"), str(tmp_path / "a.h")]
    document = json.loads(run(*PRODUCT, "--json", "-o", *files).stdout)
    assert document["files"] == files
    assert "source" not in document


def test_files_that_cannot_be_are_refused_first(run, tmp_path):
    """Nothing is looked up, and nothing written."""
    for files, said in (
        (("a.c", "a.c"), "given twice"),
        (("a.txt", "a.h"), "must end in .c"),
        (("a.c", "a.hpp"), "must end in .h"),
        (("nowhere/a.c", "a.h"), "no folder"),
    ):
        result = run(*PRODUCT, "-o", *(str(tmp_path / name) for name in files))
        assert result.exit_code == 2
        assert said in result.stderr
        assert not list(tmp_path.iterdir())


def test_a_name_that_c_does_not_take_is_bad_usage(run):
    """With the name and what is expected."""
    for name in ("while", "3x"):
        result = run(*PRODUCT[:-1], name)
        assert result.exit_code == 2
        assert f"{name!r} is not a valid C identifier" in result.stderr


def test_untransformed_loops_are_exit_code_3(run, tmp_path):
    """They are written all the same; a recipe that nobody measured is none under the
    effort ``recorded``, whatever the policy.
    """
    files = tmp_path / "product.c", tmp_path / "product.h"
    out = ("--output", *map(str, files))
    only = ("--effort", "recorded", "--policy", "loose")
    result = run(*PRODUCT, *only, *out)
    assert result.exit_code == 3
    assert "no recipe was applied" in result.stderr
    assert all(path.is_file() for path in files)
