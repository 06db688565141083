"""``feinsum transforms``."""

from __future__ import annotations

import pytest

from feinsum.transforms import REGISTRY, Space, Transform
from tests.cli.facts import MATVEC
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS


def _find_problem(parameters):
    return "no" if parameters == {"lanes": 8, "way": "c"} else None


@pytest.fixture
def families(monkeypatch):
    """Two families; the second fits no einsum."""
    monkeypatch.setattr("feinsum.transforms.registry.REGISTRY", REGISTRY)
    for key in list(REGISTRY):
        monkeypatch.delitem(REGISTRY, key)
    for name, space in [
        ("fits", {"lanes": (4, 8), "way": ("a", "b", "c")}),
        ("not", {"lanes": ()}),
    ]:
        family = Transform(
            name,
            1,
            f"the summary of {name}",
            lambda workload, space=space: Space(space, _find_problem),
            lambda t_unit, nest, parameters: t_unit,
        )
        monkeypatch.setitem(REGISTRY, (name, 1), family)


def test_every_registered_transform_is_listed(ask):
    """Name, version and summary of each."""
    listed = ask("transforms")["transforms"]
    assert [(t["name"], t["version"]) for t in listed] == sorted(REGISTRY)
    for entry in listed:
        assert entry["summary"] == REGISTRY[entry["name"], entry["version"]].summary


def test_with_an_einsum_only_those_that_fit(ask, families):
    """Also the number of configurations that meet the constraints."""
    listed = ask("transforms", *MATVEC)["transforms"]
    assert listed == [
        {
            "name": "fits",
            "version": 1,
            "summary": "the summary of fits",
            "configurations": 5,
        }
    ]


def test_the_tables_fit_80_columns(run, families):
    """Summaries are wrapped."""
    everything, fitting = run("transforms").stdout, run("transforms", *MATVEC).stdout
    assert "not@1" in everything
    assert "not@1" not in fitting
    assert "fits@1" in fitting
    assert "5" in fitting
    assert max(map(len, (everything + fitting).splitlines())) <= 80


def test_nothing_fits_is_said(run, families, monkeypatch):
    """No table without rows."""
    monkeypatch.delitem(REGISTRY, ("fits", 1))
    result = run("transforms", *MATVEC)
    assert (result.exit_code, result.stdout) == (0, "no transform fits this einsum\n")


@LOOPY_WARNINGS
@needs_nvrtc
def test_figures_of_kernels_are_printed(run, ask):
    """As a table, and as JSON."""
    given = ("transforms", "ij,j->i", "--sizes", "i=n,j=4", "--architecture", "sm_80")
    table = run(*given)
    assert table.exit_code == 0, table.output
    assert "occupancy" in table.stdout
    (first, *_) = ask(*given)["recipes"]
    assert first["registers"] > 0
    assert run("transforms", "--architecture", "sm_80").exit_code == 2
