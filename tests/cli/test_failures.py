"""How failures end: one line, an exit code, never a traceback."""

from __future__ import annotations

import json

import feinsum.retrieval
from feinsum.errors import (
    BuildError,
    InvalidParameterError,
    StoreUnavailableError,
    UnknownTransformError,
)
from tests.cli.facts import MATVEC


def assert_is_one_line(result, code):
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"feinsum: [{code}] ")


BAD_USAGE = (
    (["canonicalize"], "usage", "SUBSCRIPTS"),
    (["canonicalize", "ij->i"], "usage", "'i'"),
    (["canonicalize", "ij->i", "--sizes", "i=3"], "usage", "'j'"),
    (["canonicalize", "ij->k", "--sizes", "i=3,j=4,k=3"], "invalid-einsum", "'k'"),
    (["--colour"], "usage", "--colour"),
    (["plan", "ij,jk->ik"], "usage", "; see 'feinsum"),
    (["tuna"], "usage", "'tune'"),
    (["query", *MATVEC, "--policy", "lax"], "usage", "lax"),
    (["tune", *MATVEC, "--trials", "0"], "usage", "--trials"),
    (["tune", *MATVEC, "--size", "n=few"], "usage", "n=few"),
    (["tune", "none.py"], "usage", "none.py"),
    (["explain", "none.py"], "usage", "none.py"),
    (["explain", "wave.txt"], "usage", "FILE.py"),
    (["tune", "kernels/wave.pyx"], "usage", "FILE.py"),
    (["explain", "ij->i"], "usage", "'i'"),
    (["query", "ij,j->i", "--sizes", "i=-1,j=4"], "usage", "a positive integer"),
    (["db"], "usage", "feinsum db --help"),
)


def test_bad_usage_is_exit_code_2(run):
    """One line on stderr that names the culprit; with ``--json`` also a document."""
    for arguments, code, word in BAD_USAGE:
        result = run(*arguments)
        assert result.exit_code == 2
        assert_is_one_line(result, code)
        assert word in result.stderr
        if arguments == ["db"]:  # a group does nothing by itself, and has no --json
            continue
        with_json = run(*arguments, "--json")
        assert (with_json.exit_code, with_json.stderr) == (2, result.stderr)
        error = json.loads(with_json.stdout)["error"]
        assert result.stderr == f"feinsum: [{error['code']}] {error['message']}\n"
        assert error["code"] == code


def test_of_the_options_only_a_similar_one_is_suggested(run):
    """Names are similar without their dashes; if none is, the help is named."""
    for option, advice in (
        ("--budgett", ". Did you mean '--budget'?"),
        ("--devise", ". Did you mean '--device'?"),
        ("--seconds", "; see 'feinsum tune --help'"),
        ("--second", "; see 'feinsum tune --help'"),
        ("-x", "; see 'feinsum tune --help'"),
    ):
        result = run("tune", *MATVEC, option, "20")
        assert result.stderr == f"feinsum: [usage] No such option: {option}{advice}\n"


def raising(error):
    def stand_in(*args, **options):
        raise error

    return stand_in


def test_the_exit_code_tells_bad_usage_from_failure(run, monkeypatch):
    """1 for what failed, 2 for what was asked wrongly; the code is the error's."""
    for error, exit_code in (
        (StoreUnavailableError("no such server"), 1),
        (BuildError("first line\nsecond line\n"), 1),
        (InvalidParameterError("lanes=7 is outside"), 2),
        (UnknownTransformError("no transform wavy@1"), 2),
    ):
        monkeypatch.setattr(feinsum.retrieval, "query", raising(error))
        result = run("query", *MATVEC, "--json")
        assert result.exit_code == exit_code
        assert_is_one_line(result, error.code)
        assert json.loads(result.stdout)["error"]["code"] == error.code


def test_no_device_is_a_failure(run):
    """A device that is not there is named."""
    result = run("query", *MATVEC, "--device", "no-such-device")
    assert result.exit_code == 1
    assert_is_one_line(result, "device-unavailable")
    assert "no-such-device" in result.stderr


def test_a_bug_ends_as_one_line(run, monkeypatch):
    """An unforeseen error is ``internal``, exit code 1; the traceback on demand."""
    for is_json in (False, True):
        for debug in ([], ["--debug"]):
            error = ZeroDivisionError("first line\nsecond line")
            monkeypatch.setattr(feinsum.retrieval, "query", raising(error))
            result = run(*debug, "query", *MATVEC, *["--json"] * is_json)
            assert result.exit_code == 1
            *traceback, last = result.stderr.splitlines()
            message = "ZeroDivisionError: first line second line"
            assert last == f"feinsum: [internal] {message}"
            assert ("Traceback" in "".join(traceback)) == bool(debug)
            assert bool(traceback) == bool(debug)
            if is_json:
                document = {"error": {"code": "internal", "message": message}}
                assert json.loads(result.stdout) == document
            else:
                assert result.stdout == ""


def test_an_interrupt_is_exit_code_130(run, monkeypatch):
    """Interrupting any command is no traceback."""
    monkeypatch.setattr(feinsum.retrieval, "query", raising(KeyboardInterrupt()))
    assert run("query", *MATVEC).exit_code == 130
