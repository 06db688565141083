"""Versions are compared in whole processes, and a slower one is reported."""

from __future__ import annotations

import pytest

from benchmarks import revisions
from benchmarks.processes import ChildFailedError
from benchmarks.revisions import ROOT, Comparison, main


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (2.0, 1)])
def test_a_slower_version_fails(factor, status, monkeypatch) -> None:
    """A ratio that certainly exceeds the limit is exit status 1."""
    comparison = Comparison("p", [1.0] * 9, [factor] * 9)
    monkeypatch.setattr(revisions, "compare", lambda *_: [comparison])
    assert main([str(ROOT), "--only", "import"]) == status


@pytest.mark.parametrize("name", revisions.PROGRAMS)
def test_every_program_runs(name, tmp_path) -> None:
    """It ends without an error, with the present version."""
    from benchmarks.processes import make_empty_caches

    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    variables |= make_empty_caches(str(tmp_path)) | {"FEINSUM_VERIFY": "off"}
    assert revisions.time_program(name, variables) > 0


def test_a_failing_program_is_named(monkeypatch) -> None:
    """With what it wrote to stderr."""
    monkeypatch.setitem(
        revisions.PROGRAMS, "import", "raise SystemExit('no such luck')"
    )
    with pytest.raises(ChildFailedError, match="no such luck"):
        main([str(ROOT), "--only", "import", "--rounds", "1"])
