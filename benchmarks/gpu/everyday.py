"""Calls of the everyday suite on arrays of a GPU, untuned, beside rivals.

``python -m benchmarks.gpu.everyday --out FILE`` needs feinsum, CuPy, JAX and torch on
the machine with the GPU. Contenders are timed in turns as in a contest; entries in
the file already are skipped.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import cupy
import numpy as np

import feinsum
from benchmarks.experiments import functions
from benchmarks.experiments.entries import Entry, everyday
from benchmarks.gpu import contest
from feinsum.records import InMemoryStore

sys.path.insert(0, str(Path(functions.__file__).parent))  # as beside a contest

WITHOUT = "torch.compile"
"""It takes seconds for each entry."""


def main() -> None:
    options = _options()
    end = time.monotonic() + options.budget
    done = {line["name"] for line in contest.read(options.out)}
    store = InMemoryStore()
    entries = [e for e in everyday() if e.group in options.sizes]
    for entry in entries:
        if time.monotonic() > end:
            break
        if _name(entry) not in done:
            contest.say(options.out, {"name": _name(entry), **measured(entry, store)})
    print(summary(options.out))


def _name(entry: Entry) -> str:
    return f"{entry.name} {entry.group}"


def measured(entry: Entry, store: InMemoryStore) -> dict[str, Any]:
    """Seconds of all contenders, and how far our result is from CuPy's."""
    values = {name: cupy.asarray(value) for name, value in entry.values().items()}
    operands = [values[f.name] for row in entry.rows for f in row]
    stream = cupy.cuda.get_current_stream()
    found: dict[str, Any] = {
        "subscripts": entry.subscripts,
        "dtype": entry.dtype,
        "flops": entry.flops,
        "bytes": entry.footprint_bytes,
    }

    def ours() -> Any:
        return feinsum.call_einsum(entry.subscripts, *operands, database=store)

    workload = {
        "subscripts": entry.subscripts,
        "rows": [
            [{"kind": "Plain", "name": f.name} for f in row] for row in entry.rows
        ],
    }
    calls: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        result = ours()
        stream.synchronize()
        calls[contest.OURS] = ours, lambda _: stream.synchronize()
    except feinsum.FeinsumError as error:
        return {**found, "failed": f"{error!r:.300}"}
    found["first_s"] = time.perf_counter() - start
    for name, prepare in contest.RIVALS.items():
        if name == WITHOUT:
            continue
        try:
            call, finish = prepare(workload, values)
            finish(call())
            calls[name] = call, finish
        except Exception as error:  # noqa: BLE001  (whatever a rival's library raises)
            found.setdefault("refused", {})[name] = f"{error!r:.200}"
    if "cupy" in calls:
        (expected,) = calls["cupy"][0]()
        scale = float(cupy.abs(expected).max()) or 1.0
        found["error"] = float(cupy.abs(result - expected).max()) / scale
    found["seconds"] = contest.timed(calls)
    return found


def summary(path: str) -> str:
    """The ratio of the best rival's time to ours, entry by entry and in the mean."""
    ratios, lines = [], []
    for found in contest.read(path):
        if "seconds" not in found:
            lines.append(f"{found['name']:28} {found['failed']}")
            continue
        seconds = {name: median(s) for name, s in found["seconds"].items()}
        ours = seconds.pop(contest.OURS)
        best = min(seconds, key=seconds.__getitem__)
        ratios.append(seconds[best] / ours)
        lines.append(
            f"{found['name']:28} {ours * 1e6:9.1f} us {ratios[-1]:6.2f} {best:6} "
            f"{found.get('error', np.nan):8.1e} {found['subscripts']} {found['dtype']}"
        )
    if ratios:
        lost = sum(ratio < 0.9 for ratio in ratios)
        lines.append(
            f"{len(ratios)} entries, {geometric_mean(ratios):.2f} in the mean, "
            f"{lost} below 0.9, worst {min(ratios):.2f}"
        )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--out", required=True)
    parser.add_argument("--sizes", nargs="+", default=["large"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
