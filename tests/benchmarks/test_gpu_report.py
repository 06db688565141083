"""What is made of measurements on a GPU: a table, and means."""

from __future__ import annotations

import json

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


GPU = {"name": "A GPU", "driver": "13.0", "versions": {"cupy": "14.2", "jax": "0.11"}}


def test_the_table_has_all_contenders_side_by_side():
    """Medians in microseconds; entries without a time of ours have the reason below."""
    text = report.format_table(LINES, GPU)
    assert text.startswith(
        "# command: benchmarks/gpu.sh gpu-pack\n# processor: A GPU ("
    )
    assert "(CUDA 13.0, cupy 14.2, jax 0.11)" in text
    assert "| tccg | abc-bda-dc | 2000 | 8000 | 4000 | - | - | - | 8 | 2000 |" in text
    assert "| everyday, one call | matmul large | 1000 | 3000 | - |" in text
    assert "outer large: DeviceUnavailableError" in text


def test_the_table_is_written_with_each_line(tmp_path):
    """Beside the file, of all files there, once a GPU has run something."""
    for name, lines in (("contest", LINES), ("everyday", LINES[4:5])):
        for one in lines:
            report.append_line(tmp_path / f"{name}.jsonl", one)
    assert not list(tmp_path.glob("gpu-*"))
    report.append_line(
        tmp_path / "contest.jsonl", {**line("last", cupy=[1.0]), "device": GPU}
    )
    table = (tmp_path / "gpu-a-gpu.txt").read_text()
    assert table.count("\n| ") == 2 + 5 + 1 + 2
    assert "| tccg | last | - | - | - | - | 1e+06 | - |" in table


def test_the_summary_has_failures_and_means(tmp_path, monkeypatch, capsys):
    """Of lines that are complete; reasons only where ours has no time."""
    ok = {**line("ok", feinsum=[1.0], jax=[1.0]), "failed": ["a recipe"],
          "refused": {"cutensor": "ImportError()"}}  # fmt: skip
    lines = [*map(json.dumps, [*LINES, ok]), '{"name": "torn']
    (tmp_path / "contest.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr("sys.argv", ["report", str(tmp_path)])
    assert report.main() == 0
    text = capsys.readouterr().out
    assert "outer large: DeviceUnavailableError('no memory')" in text
    assert "abcd-aebf-dfce: started 2 x, no result" in text
    assert "abc-bda-dc: started" not in text
    assert "a recipe" not in text
    assert "1 x refused by cutensor: ImportError()" in text
    assert "tccg, 3 entries: 1.00 x as fast as the best rival, 1 below 0.9" in text
    assert "the worst 0.50 (abcd-ea-ebcd)" in text
    assert "everyday, one call, 1 entries: 3.00" in text
