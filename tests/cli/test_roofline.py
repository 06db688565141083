"""``feinsum roofline``."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

import feinsum.drawing
import feinsum.measure
from feinsum.cli.roofline import FOOTNOTE, TOO_LOW
from feinsum.db import open_store
from feinsum.measure import measure_ladder, measure_peaks, open_device
from feinsum.measure.disturbance import Watch
from feinsum.records import TransformSpec
from tests.cli.facts import MATVEC, fast_peaks, matvec_record
from tests.db.factories import make_processor


@pytest.fixture(autouse=True)
def peaks(database):
    """Limits of the default device, as if they had been measured."""
    peaks = fast_peaks(open_device().device)
    with open_store(database) as store:
        store.add(peaks)
    return peaks


def document(run, *arguments):
    result = run("roofline", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


SUITES = []
"""All workloads of both suites, as the first test that needs them was answered."""


def suites(run):
    if not SUITES:  # it takes some seconds
        SUITES.extend(document(run)["workloads"])
    return SUITES


def test_the_table_of_both_suites_fits_80_columns(run):
    """Without a workload all 88 are shown, none of them cut."""
    result = run("roofline")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in result.stdout
    shown = suites(run)
    assert len(shown) == 88
    for entry in shown:
        assert sum(line.startswith(f" {entry['name']} ") for line in lines) == 1


def test_the_bound_is_the_lower_of_slope_and_peak(run, peaks):
    """For every workload: bandwidth times intensity, or the peak."""
    for entry in suites(run):
        (operations,) = entry["operations"].values()
        intensity = entry["operations_per_byte"]
        assert intensity == operations / entry["footprint_bytes"]
        slope = intensity * peaks.bandwidth_bytes_per_s
        bound = min(slope, peaks.operations_per_s["<f8"])
        assert entry["roofline_operations_per_s"] == pytest.approx(bound)


def test_levels_show_what_each_must_move(run, database):
    """Megabytes for every level beyond the registers, never below all arrays once."""
    arguments = ("ij,jk->ik", "--sizes", "i=900,j=900,k=900", "--levels")
    (entry,) = document(run, *arguments)["workloads"]
    moved = [level["bytes"] for level in entry["levels"]]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] >= entry["footprint_bytes"]
    assert entry["levels"][-1]["seconds"] > 0
    shown = run("roofline", *arguments).stdout
    assert "DRAM MB" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_single_precision_halves_the_bytes(run, database):
    """``--dtype`` is that of the suites."""
    device = open_device().device
    later = replace(fast_peaks(device), operations_per_s={"<f4": 1e11, "<f8": 1e11},
                    measured_at="2026-01-01T00:00:00+00:00")  # fmt: skip
    with open_store(database) as store:
        store.add(later)
    double = [one for one in suites(run) if one["group"].startswith("dgfem")]
    single = document(run, "--suite", "dgfem", "--dtype", "float32")["workloads"]
    for a, b in zip(double, single, strict=True):
        assert a["footprint_bytes"] == pytest.approx(2 * b["footprint_bytes"])


def test_a_scaled_contraction_has_at_most_so_many_operations(run):
    """``--max-gflop`` shrinks TCCG, and leaves the operators alone."""
    scaled = document(run, "--max-gflop", "6")["workloads"]
    for a, b in zip(suites(run), scaled, strict=True):
        assert sum(b["operations"].values()) <= max(6e9, sum(a["operations"].values()))
        if a["group"].startswith("dgfem"):
            assert a == b
        else:
            assert sum(b["operations"].values()) <= 6e9


def test_the_best_fact_of_the_device_is_shown(run, known_records):
    """With its own operations, rate and share; a workload without one has none."""
    entry, other = document(run, *MATVEC[:1], "ij->i", *MATVEC[1:])["workloads"]
    best = matvec_record()
    assert entry["record"] in {record.id for record in known_records}
    assert entry["operations"] == dict(best.measurement.operations)
    assert entry["fraction_of_roofline"] == pytest.approx(
        entry["operations_per_s"] / entry["roofline_operations_per_s"]
    )
    assert (other["record"], other["operations_per_s"]) == (None, None)


def elsewhere(processor):
    """A fact of a machine with that processor, whose recipe is of any vectors."""
    here = matvec_record(0)
    there = replace(here.environment.device, processor=processor)
    spec = TransformSpec.parse("generic@3(block=8)")
    environment = replace(here.environment, device=there)
    return replace(here, spec=spec, environment=environment)


@pytest.mark.parametrize("processor", [None, make_processor()], ids=["unknown", "zen5"])
def test_a_share_by_another_machine_is_marked(run, database, processor):
    """Below 100 % and above: the limits are not those of the machine that was measured;
    a footnote and the JSON say so.
    """
    here, there = matvec_record(0), elsewhere(processor)
    fast = replace(there.measurement, samples_s=(1e-5,))
    with open_store(database) as store:
        store.add(replace(there, measurement=fast))
    printed = run("roofline", *MATVEC).stdout
    assert "400%*\n" in printed.replace(" \n", "\n")
    assert "* Measured on another machine" in printed
    assert "above 100%" in printed
    assert max(map(len, printed.splitlines())) <= 80
    (entry,) = document(run, *MATVEC)["workloads"]
    assert entry["is_of_this_device"] is False
    assert entry["measured_on"] == str(there.environment.device)
    with open_store(database) as store:
        store.add(here)
    printed = run("roofline", *MATVEC).stdout
    assert "*" not in printed
    (entry,) = document(run, *MATVEC)["workloads"]
    assert (entry["record"], entry["is_of_this_device"]) == (here.id, True)


def test_a_picture_with_other_machines_says_so(run, database, monkeypatch, tmp_path):
    """In its title; else the points above the roof would be a riddle."""
    charts = []
    monkeypatch.setattr(feinsum.drawing, "draw_roofline", lambda c, _: charts.append(c))
    for record in (elsewhere(make_processor()), matvec_record(0)):
        with open_store(database) as store:
            store.add(record)
        document(run, *MATVEC, "--png", str(tmp_path / "roof.png"))
    words = "some rates are from other machines"
    assert [words in chart.title for chart in charts] == [True, False]


def test_sizes_without_a_fact_are_those_given(run):
    """``--size`` gives a value; a name that nothing has is bad usage."""
    (entry,) = document(run, *MATVEC, "--size", "n=1000")["workloads"]
    assert entry["operations"] == {"<f8": 7000}
    result = run("roofline", *MATVEC, "--size", "k=3")
    assert result.exit_code == 2
    assert "there are n" in result.stderr


def test_the_einsums_of_a_file_are_workloads(run, kernel_file):
    """By the name of the file; a kernel that is no einsum is refused."""
    (entry,) = document(run, kernel_file, "--size", "n=1000")["workloads"]
    assert (entry["name"], entry["operations"]) == (kernel_file, {"<f8": 7000})
    assert run("roofline", f"{kernel_file}:increment").exit_code == 1


def test_the_picture_is_written(run, tmp_path):
    """As PNG; a file that cannot be written is bad usage, before anything runs."""
    path = tmp_path / "roof.png"
    assert document(run, *MATVEC, "--png", str(path))["png"] == str(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    for bad in ("roof.svg", "no/such/folder/roof.png"):
        result = run("roofline", *MATVEC, "--png", str(tmp_path / bad))
        assert result.exit_code == 2
        assert "--png" in result.stderr


def test_the_ladder_is_shown(run, monkeypatch, tmp_path):
    """``--measure`` adds the kernels of rising intensity to table, JSON and picture."""
    small = partial(measure_ladder, steps=(1, 8), array_bytes=1 << 18, rounds=3)
    monkeypatch.setattr(feinsum.measure, "measure_ladder", small)
    shown = document(run, *MATVEC, "--measure")["ladder"]
    assert [rung["multiply_adds"] for rung in shown] == [1, 8]
    assert [len(rung["samples_s"]) for rung in shown] == [3, 3]
    png = str(tmp_path / "roof.png")
    printed = run("roofline", *MATVEC, "--measure", "--png", png).stdout
    assert "multiply-adds" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_limits_that_are_missing_are_measured_once(run, tmp_path, monkeypatch):
    """They are stored, if need be in a new database, and the next call reads them."""
    quick = partial(measure_peaks, array_bytes=1 << 16, min_run_s=1e-5, repeats=1)
    monkeypatch.setattr(feinsum.measure, "measure_peaks", quick)
    monkeypatch.setattr(Watch, "disturbance", lambda watch: "")
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "fresh.sqlite"))
    first = run("roofline", *MATVEC)
    assert "measuring" in first.stderr
    second = run("roofline", *MATVEC)
    assert "measuring" not in second.stderr
    assert second.stdout == first.stdout


def test_notes_below_the_table_fit_80_columns():
    """Whatever the processor of this machine, and so whichever note is printed."""
    for note in (FOOTNOTE, TOO_LOW):
        assert max(map(len, note.splitlines())) <= 80


def test_facts_above_the_limits_of_their_device_are_told(run, database):
    """A share of more than 100 % on this machine says that the limits are too low, and
    how to measure them again.
    """
    device = open_device().device
    fact = matvec_record()
    here = replace(fact.environment, device=device)
    with open_store(database) as store:
        store.add(replace(fact, environment=here))
        known = store.peaks(device.id)
        store.add(
            replace(
                known,
                bandwidth_bytes_per_s=1e6,
                operations_per_s={"<f8": 1e6},
                measured_at="2025-02-01T00:00:00",
            )
        )
    if device.is_identified:
        assert "feinsum devices --again" in run("roofline", *MATVEC).stdout
