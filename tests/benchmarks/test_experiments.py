"""The command: isolation, terms, the file, tables and figures."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from benchmarks.experiments import command
from benchmarks.experiments.contest import Task
from benchmarks.experiments.entries import SUITES, limit_operations
from benchmarks.experiments.figures import draw_figure
from benchmarks.experiments.isolation import ChildError, run_contest, run_in_child
from benchmarks.experiments.ours import OURS
from benchmarks.experiments.report import show_report
from benchmarks.experiments.results import Limits, Outcome, Report, Result
from feinsum import open_store
from feinsum.ir import generalize
from feinsum.suites import EVERYDAY, NAMES
from feinsum.transforms import find_applicable_transforms, list_configurations
from tests.benchmarks.test_experiments_entries import KINDS
from tests.retrieval.facts import fact

LIMITS = Limits(20e9, 70e9, 60e9, "a device")
WITHOUT = [f"--without={name}" for name in ("jax", "torch", "torch.compile", "tblis")]
CRASHING = """
import os, signal
def set_num_threads(n): os.kill(os.getpid(), signal.SIGSEGV)
"""


def made_up(suite: str) -> Report:
    """A report with a time for everyone, of all entries."""
    report = Report(suite, [], LIMITS)
    for k, whole in enumerate(SUITES[suite]()):
        entry = limit_operations(whole, 20) if suite == "tccg" else whole
        least_s = max(entry.flops, 1) / 70e9
        ours = "feinsum untuned" if suite == EVERYDAY else OURS
        runs = {
            terms: {
                ours: of_samples(2 * least_s, "packed_contraction@1(x=1)"),
                "jax": of_samples((1.5 + k % 5) * least_s),
                "opt_einsum": of_samples((3 - 0.1 * (k % 3) - slower) * least_s),
                "tblis": Outcome("crashed", "signal SIGSEGV"),
            }
            for terms, slower in (("fresh", 0.0), ("reused", 0.5))
        }
        report.results[entry.name] = Result.of(entry, runs)
    return report


def of_samples(seconds: float, note: str = "") -> Outcome:
    samples = tuple(seconds * (1 + k / 100) for k in range(5))
    return Outcome("ok", note=note, first_s=1.0, error=0.0, samples_s=samples)


def test_a_crash_is_reported_and_the_rest_goes_on(tmp_path, monkeypatch) -> None:
    """A segmentation fault of one contender costs the others nothing."""
    (tmp_path / "pytblis.py").write_text(CRASHING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    entry, names = KINDS[0], ["tblis", "numpy"]
    task = Task(entry.suite, entry.name, entry.sizes, names, rounds=3)
    found = run_contest(task, "fresh")
    assert found["tblis"].status == "crashed"
    assert "SIGSEGV" in found["tblis"].why
    assert found["numpy"].is_ok


def test_a_process_that_takes_too_long_is_stopped() -> None:
    """With all of its own children."""
    with pytest.raises(ChildError, match="stopped after 0 s"):
        run_in_child("limits", {}, "fresh", limit_s=0.2)


def test_the_command_runs_and_resumes(tmp_path, monkeypatch, capsys) -> None:
    """A recorded recipe is found, the file is whole, and nothing is run twice."""
    (entry,) = [e for e in SUITES["tccg"]() if e.name == "abc-bda-dc"]
    einsum = generalize(limit_operations(entry, 0.001).make_einsum())[0]
    spec = next(
        spec
        for transform in find_applicable_transforms(einsum)
        for spec in list_configurations(transform, einsum)
    )
    database = tmp_path / "facts.sqlite"
    with open_store(database) as store:
        store.add(fact(einsum, spec, speedup=1e3))
    monkeypatch.setattr(command, "run_limits", lambda device: LIMITS)
    arguments = ["tccg", "--only=^abc-bda-dc$", "--max-gflop=0.001", "--rounds=3",
                 "--terms=reused", f"--database={database}", f"--out={tmp_path}",
                 *WITHOUT]  # fmt: skip
    command.main(arguments)
    first = capsys.readouterr().out
    (result,) = Report.load(tmp_path / "tccg.json").results.values()
    assert result.find_ours("reused").note == str(spec)
    assert {o.status for o in result.runs["reused"].values()} == {"ok"}
    monkeypatch.setattr(command, "run", None)
    command.main([*arguments, "--resume"])
    assert capsys.readouterr().out == first
    assert len(Report.load(tmp_path / "tccg.json").about) == 2
    assert (tmp_path / "tccg.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("suite", SUITES)
def test_a_file_gives_back_what_was_saved(suite: str, tmp_path) -> None:
    """Load after save is the identity."""
    report = made_up(suite)
    report.save(tmp_path / "x.json")
    assert Report.load(tmp_path / "x.json") == report
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("suite", NAMES)
def test_the_tables_fit_a_terminal(suite: str) -> None:
    """Two tables with every entry, nothing cut; absences are on one line."""
    console = Console(width=80, file=StringIO())
    report = made_up(suite)
    show_report(report, console)
    lines = console.file.getvalue().splitlines()
    for name in report.results:
        assert sum(line.startswith(f"{name} ") for line in lines) == 2
    assert not [line for line in lines if "…" in line]
    n = len(report.results)
    assert f"tblis crashed: signal SIGSEGV [{n} entries]" in lines


@pytest.mark.parametrize("suite", SUITES)
def test_the_figure_is_drawn(suite: str, tmp_path) -> None:
    """As PNG, also of a report without any time."""
    for report in (made_up(suite), Report(suite, [])):
        draw_figure(report, tmp_path / "x.png")
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_rival_stands_with_its_better_terms() -> None:
    """And is compared with ours of the same process."""
    entry = KINDS[0]
    runs = {
        "fresh": {OURS: of_samples(1.0), "numpy": of_samples(4.0)},
        "reused": {OURS: of_samples(2.0), "numpy": of_samples(3.0)},
    }
    compared = Result.of(entry, runs).compare()
    assert (compared.terms, compared.name) == ("reused", "numpy")
    assert compared.ratio == pytest.approx(1.5)
    assert not compared.is_tied
    assert Result.of(entry, runs).compare("jax") is None
