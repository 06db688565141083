"""The files of results of GPU benchmarks, and their table.

``python -m benchmarks.gpu.report FOLDER`` prints the means of ``contest.jsonl`` and
``everyday.jsonl``, and reasons of missing times. Each appended line also updates the
table ``gpu-NAME.txt``, with the name of the GPU, so that it is complete after an
interruption. ``make gpu-table`` writes it into the documentation. Requires only Python.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

OURS = "feinsum"
CONTENDERS = OURS, "jax", "torch", "torch.compile", "cupy", "cutensor"
"""The columns of the table."""
SLOW = 0.9
"""Ratio of the best rival's time to ours below which an entry counts as slower."""
KINDS = {"seconds": "", "one_s": ", one call"}
"""Kinds of samples, and the suffix of the suite's name."""
FILES = "contest.jsonl", "everyday.jsonl"
"""Files of results, in the order of the table."""
COMMAND = "benchmarks/gpu.sh gpu-pack"


@dataclass(frozen=True)
class Measured:
    """The median seconds of an entry, by contender.

    Attributes:
        n_flops, n_bytes: work of the entry, for rates.
    """

    suite: str
    name: str
    seconds: Mapping[str, float]
    n_flops: float
    n_bytes: float

    @property
    def is_ok(self) -> bool:
        """Return whether ours and a rival were timed."""
        return OURS in self.seconds and len(self.seconds) > 1

    @property
    def ratio(self) -> float:
        """Return the time of the fastest rival over ours."""
        return min(s for n, s in self.seconds.items() if n != OURS) / self.seconds[OURS]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    lines = [*read_all(parser.parse_args().folder)]
    print(summarize(lines))
    return 0 if list_measurements(lines) else 1


def read_lines(path: str | Path) -> list[Any]:
    """Read the complete lines of a file of results; there are none without the file."""
    lines: list[Any] = []
    if not Path(path).exists():
        return lines
    for line in Path(path).read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # its process was killed while it wrote
            continue
    return lines


def read_all(folder: Path) -> Iterable[Any]:
    return chain.from_iterable(read_lines(folder / name) for name in FILES)


def is_result(line: Mapping[str, Any]) -> bool:
    """Return whether a line is the final one of its entry."""
    return bool({"seconds", "failed"} & {*line})


def append_line(path: str | Path, line: Mapping[str, Any]) -> None:
    """Append a line to a file of results, and update the table of its folder."""
    with Path(path).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the last writer has all lines
        file.write(json.dumps(line) + "\n")
        file.flush()
        _write_table(Path(path).parent)


def _write_table(folder: Path) -> None:
    lines = [*read_all(folder)]
    gpu = next((line["device"] for line in lines if "device" in line), None)
    if gpu is None or not list_measurements(lines):
        return
    name = "-".join(re.findall(r"[a-z0-9]+", gpu["name"].lower()))
    partial = folder / ".table"  # readers never see a partial table
    partial.write_text(format_table(lines, gpu))
    partial.replace(folder / f"gpu-{name}.txt")


def format_table(lines: Sequence[Mapping[str, Any]], gpu: Mapping[str, Any]) -> str:
    """Format the table: a row for each entry, with microseconds of all contenders."""
    versions = ", ".join(f"{k} {v}" for k, v in gpu.get("versions", {}).items())
    rows = [
        ["suite", "entry", *CONTENDERS, "MB", "MFLOP"],
        ["---"] * (4 + len(CONTENDERS)),
        *(_format_row(entry) for entry in list_measurements(lines)),
    ]
    return "".join([
        f"# command: {COMMAND}\n",
        f"# processor: {gpu['name']} (CUDA {gpu['driver']}, {versions})\n",
        f"# date: {time.strftime('%Y-%m-%d', time.gmtime())}\n",
        *(f"| {' | '.join(row)} |\n" for row in rows),
        *(f"{reason}\n" for reason in list_failures(lines)),
    ])  # fmt: skip


def _format_row(entry: Measured) -> list[str]:
    times = (entry.seconds.get(name) for name in CONTENDERS)
    return [
        entry.suite,
        entry.name,
        *("-" if s is None else f"{s * 1e6:.4g}" for s in times),
        f"{entry.n_bytes / 1e6:.4g}",
        f"{entry.n_flops / 1e6:.4g}",
    ]


def summarize(lines: Sequence[Mapping[str, Any]]) -> str:
    """Summarize missing times of ours, and the means of each suite."""
    measured = list_measurements(lines)
    suites = dict.fromkeys(entry.suite for entry in measured)
    means = (
        _format_mean(suite, [x for x in measured if x.suite == suite])
        for suite in suites
    )
    return "\n".join([*list_failures(lines), *means])


def _format_mean(suite: str, measured: Sequence[Measured]) -> str:
    compared = [entry for entry in measured if entry.is_ok]
    if not compared:
        return f"{suite}: nothing was compared"
    worst = min(compared, key=lambda entry: entry.ratio)
    mean = geometric_mean(entry.ratio for entry in compared)
    n_slower = sum(entry.ratio < SLOW for entry in compared)
    return (
        f"{suite}, {len(compared)} entries: {mean:.2f} x as fast as the best rival, "
        f"{n_slower} below {SLOW}, the worst {worst.ratio:.2f} ({worst.name})"
    )


def list_measurements(lines: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """Return the medians of all lines; everyday calls form two suites."""
    return [
        Measured(
            line.get("suite", "everyday") + suffix,
            line["name"],
            {name: median(samples) for name, samples in line[kind].items()},
            line["flops"],
            line["entry_bytes"],
        )
        for kind, suffix in KINDS.items()
        for line in lines
        if line.get(kind)
    ]


def list_failures(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the reasons of missing times of ours, or of a rival."""
    refused = Counter(
        pair for line in lines for pair in line.get("refused", {}).items()
    )
    finished = {line["name"] for line in lines if is_result(line)}
    starts = Counter(
        line["name"]
        for line in lines
        if line["name"] not in finished and "is_cut" not in line
    )
    return [
        *(
            f"{line['name']}: {'; '.join(line['failed'])}"
            for line in lines
            if "failed" in line and OURS not in line.get("seconds", {})
        ),
        *(f"{name}: started {n} x, no result" for name, n in starts.items()),
        *(f"{n} x refused by {rival}: {why}" for (rival, why), n in refused.items()),
    ]


if __name__ == "__main__":
    sys.exit(main())
