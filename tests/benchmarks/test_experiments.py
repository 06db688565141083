"""The command: isolation, terms, the file, tables and figures."""

from __future__ import annotations

import doctest
import subprocess
import sys
from io import StringIO

import pytest
from rich.console import Console

from benchmarks.experiments import command, entries, results
from benchmarks.experiments import report as reporting
from benchmarks.experiments.calls import show_calls
from benchmarks.experiments.contest import Task
from benchmarks.experiments.entries import SUITES, scaled_to
from benchmarks.experiments.figures import draw
from benchmarks.experiments.isolation import ChildError, held, in_child
from benchmarks.experiments.options import OPTIONS, parsed
from benchmarks.experiments.ours import OURS
from benchmarks.experiments.report import show
from benchmarks.experiments.results import Limits, Outcome, Report, Result
from benchmarks.experiments.terms import environment
from feinsum import open_store
from feinsum.ir import generalize
from feinsum.suites import EVERYDAY, NAMES
from feinsum.transforms import applicable_transforms, configurations
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
        entry = scaled_to(whole, 20) if suite == "tccg" else whole
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
    found = held(task, "fresh")
    assert found["tblis"].status == "crashed"
    assert "SIGSEGV" in found["tblis"].why
    assert found["numpy"].is_ok


def test_a_process_that_takes_too_long_is_stopped() -> None:
    """With all of its own children."""
    with pytest.raises(ChildError, match="stopped after 0 s"):
        in_child("limits", {}, "fresh", limit_s=0.2)


def test_reused_memory_is_not_paid_for_again() -> None:
    """An array of the size of one that was freed needs no new pages."""
    code = (
        "import ctypes, resource, numpy as np\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def use(): np.empty(10_000_000)[:] = 1\n"
        "use(); before = faults()\n"
        "for _ in range(5): use()\n"
        "print(faults() - before)"
    )
    fresh, reused = (
        int(subprocess.run([sys.executable, "-c", code], env=environment(terms),
                           capture_output=True, text=True, check=True).stdout)
        for terms in ("fresh", "reused")
    )  # fmt: skip
    assert reused < 50 < fresh


def test_the_command_runs_and_resumes(tmp_path, monkeypatch, capsys) -> None:
    """A recorded recipe is found, the file is whole, and nothing is run twice."""
    (entry,) = [e for e in SUITES["tccg"]() if e.name == "abc-bda-dc"]
    einsum = generalize(scaled_to(entry, 0.001).einsum())[0]
    spec = next(
        spec
        for transform in applicable_transforms(einsum)
        for spec in configurations(transform, einsum)
    )
    database = tmp_path / "facts.sqlite"
    with open_store(database) as store:
        store.add(fact(einsum, spec, speedup=1e3))
    monkeypatch.setattr(command, "measured_limits", lambda device: LIMITS)
    arguments = ["tccg", "--only=^abc-bda-dc$", "--max-gflop=0.001", "--rounds=3",
                 "--terms=reused", f"--database={database}", f"--out={tmp_path}",
                 *WITHOUT]  # fmt: skip
    command.main(arguments)
    first = capsys.readouterr().out
    (result,) = Report.load(tmp_path / "tccg.json").results.values()
    assert result.ours("reused").note == str(spec)
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
    show(report, console)
    lines = console.file.getvalue().splitlines()
    for name in report.results:
        assert sum(line.startswith(f"{name} ") for line in lines) == 2
    assert not [line for line in lines if "…" in line]
    n = len(report.results)
    assert f"tblis crashed: signal SIGSEGV [{n} entries]" in lines


def test_the_tables_of_calls_fit_a_terminal() -> None:
    """By size, by class, and every lost entry with its rival."""
    console = Console(width=80, file=StringIO())
    report = made_up(EVERYDAY)
    show_calls(report, console)
    said = console.file.getvalue()
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    for heading in ("medium and large", "product of matrices", "view"):
        assert any(line.startswith(heading) for line in lines)
    lost = [r.name for r in report.results.values() if r.against().ratio < 0.9]
    assert lost
    assert all(sum(line.startswith(f"{name} ") for line in lines) == 1 for name in lost)


def test_of_several_devices_each_is_shown_and_the_fastest_counts() -> None:
    entry = KINDS[0]
    times = {f"{OURS} on x": 2.0, f"{OURS} on y": 1.0, "numpy": 3.0}
    runs = {"fresh": {name: of_samples(t) for name, t in times.items()}}
    result = Result.of(entry, runs)
    console = Console(width=80, file=StringIO())
    show(Report("tccg", [], None, {entry.name: result}), console)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["entry", "x", "ratio", "y", "ratio"] in rows
    assert [entry.name, "2040", "1.50", "1020", "3.00"] in rows
    said = console.file.getvalue()
    assert "geometric mean against the best rival: 3.00 over 1 of 1 entries" in said
    assert "geometric mean against the best rival on x: 1.50 over 1 of 1" in said
    assert result.against().ratio == pytest.approx(3.0)


@pytest.mark.parametrize("suite", SUITES)
def test_the_figure_is_drawn(suite: str, tmp_path) -> None:
    """As PNG, also of a report without any time."""
    for report in (made_up(suite), Report(suite, [])):
        draw(report, tmp_path / "x.png")
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_rival_stands_with_its_better_terms() -> None:
    """And is compared with ours of the same process."""
    entry = KINDS[0]
    runs = {
        "fresh": {OURS: of_samples(1.0), "numpy": of_samples(4.0)},
        "reused": {OURS: of_samples(2.0), "numpy": of_samples(3.0)},
    }
    compared = Result.of(entry, runs).against()
    assert (compared.terms, compared.name) == ("reused", "numpy")
    assert compared.ratio == pytest.approx(1.5)
    assert not compared.is_tied
    assert Result.of(entry, runs).against("jax") is None


def test_einsums_are_drawn_for_calls_only(capsys) -> None:
    """In place of those of the everyday suite; other suites refuse the option."""
    options = parsed([EVERYDAY, "--drawn", "1", "--only", "1-[01]$"], "")
    assert [e.name for e in command.chosen(options)] == ["drawn-1-0", "drawn-1-1"]
    with pytest.raises(SystemExit):
        parsed(["tccg", "--drawn", "1"], "")
    assert "give the suite everyday" in capsys.readouterr().err


def test_every_option_is_described_by_the_help(capsys) -> None:
    """The page about performance leaves the options to ``--help``."""
    with pytest.raises(SystemExit):
        parsed(["--help"], "")
    text = capsys.readouterr().out
    assert not [option.flag for option in OPTIONS if f"  {option.flag}" not in text]
    assert all(option.help for option in OPTIONS)


@pytest.mark.parametrize("module", [entries, reporting, results])
def test_the_examples_of_docstrings_hold(module) -> None:
    """Doctests are executed here; benchmarks are no test paths."""
    outcome = doctest.testmod(module)
    assert outcome.attempted
    assert not outcome.failed


def test_a_share_of_the_roofline_is_of_what_limits_the_entry() -> None:
    """The better peak rate, or the intensity times the bandwidth."""
    entry = SUITES["tccg"]()[0]
    result = Result.of(entry, {})
    intensity = entry.flops / entry.footprint_bytes
    assert LIMITS.roofline(result) == min(70e9, 20e9 * intensity)
    assert Limits(1.0, 70e9, 60e9).roofline(result) == intensity
