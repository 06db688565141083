"""What contests and calls on a GPU measured: files of results, and their table.

``python -m benchmarks.gpu.report FOLDER`` prints the means of what the files there have
(``contest.jsonl`` and ``everyday.jsonl``), and why entries have no time. Whoever adds a
line to such a file writes the table beside it anew, ``gpu-NAME.txt``, with the name of
the GPU: an interrupted run leaves it complete. Documentation is made of this table by
``make gpu-table``. Only Python is needed.
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
"""The best rival's time over ours, below which an entry is counted as slower."""
KINDS = {"seconds": "", "one_s": ", one call"}
"""Samples of a line, and the suffix of the name of its suite."""
FILES = "contest.jsonl", "everyday.jsonl"
"""Files of results, in the order of their suites in the table."""
COMMAND = "benchmarks/gpu.sh gpu-pack"


@dataclass(frozen=True)
class Measured:
    """The median seconds of an entry, by contender.

    Attributes:
        n_flops, n_bytes: of the entry, for rates.
    """

    suite: str
    name: str
    seconds: Mapping[str, float]
    n_flops: float
    n_bytes: float

    @property
    def is_ok(self) -> bool:
        """Whether ours and a rival ran."""
        return OURS in self.seconds and len(self.seconds) > 1

    @property
    def ratio(self) -> float:
        """The time of the fastest rival over ours."""
        return min(s for n, s in self.seconds.items() if n != OURS) / self.seconds[OURS]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    lines = [*read_all(parser.parse_args().folder)]
    print(summary(lines))
    return 0 if measurements(lines) else 1


def read(path: str | Path) -> list[Any]:
    """The complete lines of a file of results; none if there is no such file."""
    lines: list[Any] = []
    if not Path(path).exists():
        return lines
    for line in Path(path).read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # its process was ended while it wrote
            continue
    return lines


def read_all(folder: Path) -> Iterable[Any]:
    return chain.from_iterable(read(folder / name) for name in FILES)


def is_result(line: Mapping[str, Any]) -> bool:
    """Whether nothing more is to be expected of the line's entry."""
    return bool({"seconds", "failed"} & {*line})


def append(path: str | Path, line: Mapping[str, Any]) -> None:
    """Add a line to a file of results, and write the table of its folder."""
    with Path(path).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the last one writes the table of all lines
        file.write(json.dumps(line) + "\n")
        file.flush()
        _write_table(Path(path).parent)


def _write_table(folder: Path) -> None:
    lines = [*read_all(folder)]
    gpu = next((line["device"] for line in lines if "device" in line), None)
    if gpu is None or not measurements(lines):
        return
    name = "-".join(re.findall(r"[a-z0-9]+", gpu["name"].lower()))
    unfinished = folder / ".table"  # readers see a whole one, even after a cut
    unfinished.write_text(table(lines, gpu))
    unfinished.replace(folder / f"gpu-{name}.txt")


def table(lines: Sequence[Mapping[str, Any]], gpu: Mapping[str, Any]) -> str:
    """The result file: a row for each entry, with microseconds of all contenders."""
    versions = ", ".join(f"{k} {v}" for k, v in gpu.get("versions", {}).items())
    rows = [
        ["suite", "entry", *CONTENDERS, "MB", "MFLOP"],
        ["---"] * (4 + len(CONTENDERS)),
        *(_row(one) for one in measurements(lines)),
    ]
    return "".join([
        f"# command: {COMMAND}\n",
        f"# processor: {gpu['name']} (CUDA {gpu['driver']}, {versions})\n",
        f"# date: {time.strftime('%Y-%m-%d', time.gmtime())}\n",
        *(f"| {' | '.join(row)} |\n" for row in rows),
        *(f"{reason}\n" for reason in failures(lines)),
    ])  # fmt: skip


def _row(one: Measured) -> list[str]:
    times = (one.seconds.get(name) for name in CONTENDERS)
    return [
        one.suite,
        one.name,
        *("-" if s is None else f"{s * 1e6:.4g}" for s in times),
        f"{one.n_bytes / 1e6:.4g}",
        f"{one.n_flops / 1e6:.4g}",
    ]


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """Why entries have no time of ours, and the means of each suite."""
    measured = measurements(lines)
    suites = dict.fromkeys(one.suite for one in measured)
    means = (
        _mean(suite, [x for x in measured if x.suite == suite]) for suite in suites
    )
    return "\n".join([*failures(lines), *means])


def _mean(suite: str, measured: Sequence[Measured]) -> str:
    ran = [one for one in measured if one.is_ok]
    if not ran:
        return f"{suite}: nothing was compared"
    worst = min(ran, key=lambda one: one.ratio)
    return (
        f"{suite}, {len(ran)} entries: "
        f"{geometric_mean(one.ratio for one in ran):.2f} x as fast as the best rival, "
        f"{sum(one.ratio < SLOW for one in ran)} below {SLOW}, the worst "
        f"{worst.ratio:.2f} ({worst.name})"
    )


def measurements(lines: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """The measurements of all suites; calls of the everyday suite are two suites."""
    return [
        Measured(
            line.get("suite", "everyday") + added,
            line["name"],
            {name: median(samples) for name, samples in line[kind].items()},
            line["flops"],
            line["entry_bytes"],
        )
        for kind, added in KINDS.items()
        for line in lines
        if line.get(kind)
    ]


def failures(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why entries have no time of ours, or of a rival."""
    refused = Counter(
        pair for line in lines for pair in line.get("refused", {}).items()
    )
    done = {line["name"] for line in lines if is_result(line)}
    starts = Counter(
        line["name"]
        for line in lines
        if line["name"] not in done and "is_cut" not in line
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
