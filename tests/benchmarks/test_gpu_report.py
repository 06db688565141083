"""What is made of measurements on a GPU: a table, JSON and a figure."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu import report


def line(name, suite="tccg", **seconds):
    return {"name": name, "suite": suite, "seconds": seconds, "flops": 2e9,
            "entry_bytes": 8e6}  # fmt: skip


LINES = [
    {"name": "abc-bda-dc"},  # that it was started
    line("abc-bda-dc", feinsum=[1e-3, 2e-3, 9e-3], jax=[8e-3], torch=[4e-3]),
    line("abcd-ea-ebcd", feinsum=[2e-3], cupy=[1e-3]),
    line("abcdef-dega-gfbc" + 9 * "-long", jax=[1.0]),
    {**line("matmul large", "", feinsum=[1e-3], jax=[1e-3]), "one_s":
     {"feinsum": [1e-3], "jax": [3e-3]}},
    {"name": "outer large", "failed": ["DeviceUnavailableError('no memory')"]},
    *[{"name": "abcd-aebf-dfce"}] * 2,  # started twice, to no end
]  # fmt: skip
LINES[4].pop("suite")


def test_means_are_of_entries_with_ours_and_a_rival():
    """Medians; JAX where it ran; entries without ours are named."""
    tccg = report.means(report.measurements(LINES))["tccg"]
    assert tccg["entries"] == 2
    assert tccg["against_jax"] == pytest.approx(4)
    assert tccg["against_best_rival"] == pytest.approx((2 * 0.5) ** 0.5)
    assert tccg["slower"] == 1
    assert tccg["worst"]["name"] == "abcd-ea-ebcd"
    assert len(tccg["without_ours"]) == 1


def test_tables_fit_a_terminal():
    lines = report.text(report.measurements(LINES)).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("not measured" in line for line in lines)


def test_files_become_a_document_and_a_figure(tmp_path, monkeypatch, capsys):
    """Of lines that are complete; failures are said."""
    file, torn = tmp_path / "contest.jsonl", '{"name": "torn'
    file.write_text("\n".join([*map(json.dumps, LINES), torn]))
    out = tmp_path / "out"
    files = [str(file), str(tmp_path / "nothing")]
    monkeypatch.setattr("sys.argv", ["report", str(out), *files])
    assert report.main() == 0
    assert "outer large: DeviceUnavailableError" in capsys.readouterr().out
    document = json.loads((out / "gpu.json").read_text())
    assert {*document["suites"]} == {"tccg", "everyday", "everyday, single"}
    assert (out / "gpu.png").read_bytes().startswith(b"\x89PNG")


def test_the_summary_has_failures_and_measurements():
    """Also entries that ended their process; reasons only where ours has no time."""
    lines = [*LINES, {**line("ok", feinsum=[1.0], jax=[1.0]), "failed": ["a recipe"]}]
    text = report.summary(lines)
    assert "outer large: DeviceUnavailableError('no memory')" in text
    assert "abcd-aebf-dfce: started 2 x, no result" in text
    assert "abc-bda-dc: started" not in text
    assert "a recipe" not in text
    assert "everyday, 1 entries: 1.00 against JAX" in text
