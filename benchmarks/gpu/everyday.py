"""Calls of the everyday suite on arrays of a GPU, untuned, beside rivals.

``python -m benchmarks.gpu.everyday --out FILE`` needs feinsum, CuPy, JAX and torch on
the machine with the GPU. Several processes build calls, the smallest entries first.
Then one at a time has the machine for timing, and a line is written for each entry;
those in the file already are skipped.

Contenders are timed in turns: one call that is waited for, and calls that follow each
other, of which only the last one is.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import feinsum
from benchmarks.experiments import functions
from benchmarks.experiments.entries import Entry, everyday
from benchmarks.gpu import contest, report
from benchmarks.gpu.contest import COMPILED
from benchmarks.gpu.report import OURS
from feinsum.calling.kernel_cache import Calls
from feinsum.memory import remembered
from feinsum.records import InMemoryStore
from feinsum.targets.cuda.cupy_errors import load_cupy
from feinsum.targets.cuda.cupy_session import CupySession

N_IN_A_ROW = 20
ROUNDS = 21
LONG_S = 0.02
"""A call that takes longer is timed in fewer rounds."""
START_S = 8.0
"""For which processes wait for one that still builds, and after the end."""
TIMING_SHARE = 0.35
"""Of the budget, for timing."""


def main() -> int:
    options = _options()
    load_cupy()
    if options.worker is not None:
        work(options)
        return 0
    options.end = time.time() + options.budget
    for place in Path(options.out).parent.glob(Path(options.out).name + ".*.built"):
        place.unlink()
    command = [sys.executable, "-m", "benchmarks.gpu.everyday", *sys.argv[1:]]
    workers = [
        subprocess.Popen([*command, "--worker", str(k), "--end", str(options.end)])
        for k in range(options.jobs)
    ]
    has_failed = not have_ended(workers, options.end + START_S)
    print(summary(options.out))
    return int(has_failed)


def have_ended(workers: Sequence[subprocess.Popen[bytes]], limit: float) -> bool:
    """Wait for processes, and kill them at the limit; whether all ended well."""
    for worker in workers:
        try:
            worker.wait(max(limit - time.time(), 0.1))
        except subprocess.TimeoutExpired:
            worker.kill()
    return not any(worker.wait() for worker in workers)


def work(options: argparse.Namespace) -> None:
    """One process's share of the entries: build all, wait for the others, time all."""
    for module in (functions, report):  # as beside a contest
        sys.path.insert(0, str(Path(str(module.__file__)).parent))
    _time_alone(options.out)
    messages = _Messages()
    logger = logging.getLogger("feinsum.calling.gpu.contenders")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(messages)
    done = {line["name"] for line in report.read(options.out)}
    entries = [e for e in everyday() if e.group in options.sizes]
    rivals = [name for name in contest.RIVALS if options.compiled or name != COMPILED]
    store, built = InMemoryStore(), []
    for entry in share_of(entries, options.worker, options.jobs, done):
        if time.time() > options.end - TIMING_SHARE * options.budget:
            break
        messages.said.clear()
        calls, found = prepared(entry, store, rivals)
        found["said"] = [*messages.said]
        load_cupy().get_default_memory_pool().free_all_blocks()
        built.append((calls, found))
    _meet(options)
    time_all(built, options.out, options.end)


def time_all(built: Sequence[tuple[Any, Any]], path: str, end: float) -> None:
    """Write a line for each entry whose calls failed, or are timed before the end.

    The others have none, so a resumed run takes them.
    """
    for calls, found in built:
        if calls and time.time() > end:
            continue
        if calls:
            with _alone(path):
                found["one_s"], found["seconds"] = timed(calls)
        contest.say(path, found)


def share_of(
    entries: Sequence[Entry], worker: int, jobs: int, done: Collection[str]
) -> list[Entry]:
    """What one of several processes builds: the smallest entries first."""
    by_size = sorted(entries, key=lambda entry: entry.footprint_bytes)
    return [entry for entry in by_size[worker::jobs] if _name(entry) not in done]


def _meet(options: argparse.Namespace) -> None:
    """Until all processes have built their entries, or the time for that is over."""
    places = [Path(f"{options.out}.{k}.built") for k in range(options.jobs)]
    places[options.worker].touch()
    limit = options.end - TIMING_SHARE * options.budget + START_S
    while time.time() < limit and not all(place.exists() for place in places):
        time.sleep(0.1)


class _Messages(logging.Handler):
    """What is said of contenders."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage()[:300])


@contextmanager
def _alone(path: str) -> Iterator[None]:
    """While no other process of this run times anything."""
    with Path(path + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _time_alone(path: str) -> None:
    """Let our calls choose among contenders while nothing else is timed."""
    timed = CupySession.timed

    def alone(session: CupySession, run: Any, stream: Any = None) -> float:
        with _alone(path):
            return timed(session, run, stream)

    CupySession.timed = alone  # type: ignore[method-assign]


def _name(entry: Entry) -> str:
    return f"{entry.name} {entry.group}"


def values_of(entry: Entry, xp: Any) -> dict[str, Any]:
    """Uniform in 0.5 to 1.5, real and imaginary parts, or whole numbers from 0 to 9.

    Args:
        xp: CuPy, or numpy.
    """
    rng, dtype = xp.random.default_rng(0), np.dtype(entry.dtype)
    factor, least = (1.0, 0.5) if dtype.kind in "fc" else (10.0, 0.0)

    def drawn(shape: tuple[int, ...]) -> Any:
        values = rng.random(shape) * factor + least
        if dtype.kind == "c":
            values = values + 1j * (rng.random(shape) * factor + least)
        return values.astype(dtype)

    return {name: drawn(shape) for name, shape in entry.arrays.items()}


def prepared(
    entry: Entry, store: InMemoryStore, rivals: Sequence[str]
) -> tuple[dict[str, Any], Any]:
    """The contenders, and what is known of them: how far results are from CuPy's."""
    cupy = load_cupy()
    values = values_of(entry, cupy)
    operands = [values[f.name] for row in entry.rows for f in row]
    stream = cupy.cuda.get_current_stream()
    found: dict[str, Any] = {
        "name": _name(entry),
        "subscripts": entry.subscripts,
        "dtype": entry.dtype,
        "flops": entry.flops,
        "entry_bytes": entry.footprint_bytes,
    }

    def ours() -> Any:
        return feinsum.call_einsum(entry.subscripts, *operands, database=store)

    try:
        for key in ("first_s", "second_s", "third_s"):
            start = time.perf_counter()
            result = ours()
            stream.synchronize()
            found[key] = time.perf_counter() - start
    except feinsum.FeinsumError as error:
        return {}, {**found, "failed": f"{error!r:.300}"}
    found["choice"] = _choice()
    calls: dict[str, Any] = {OURS: (ours, lambda _: stream.synchronize())}
    _add_rivals(calls, rivals, entry, values, found)
    if "cupy" in calls:
        results = {name: call() for name, (call, _) in calls.items() if name != OURS}
        found["errors"] = errors_of({OURS: [result], **results}, cupy)
    return calls, found


def errors_of(results: Mapping[str, Any], xp: Any) -> dict[str, float]:
    """How far each is from what CuPy has, relative to its largest entry.

    Args:
        xp: CuPy, or numpy.
    """
    (expected,) = results["cupy"]
    # integers wrap around, booleans have no difference, halves overflow
    wide = np.result_type(expected.dtype, np.float64)
    expected = expected.astype(wide)
    scale = float(abs(expected).max()) or 1.0
    return {
        name: float(abs(xp.from_dlpack(result).astype(wide) - expected).max()) / scale
        for name, (result,) in results.items()
    }


def _choice() -> str:
    """The call that was built last."""
    made = [kept.made for kept in remembered(Calls).gpu.values() if kept.made]
    return repr(made[-1]) if made else ""


def _add_rivals(
    calls: dict[str, Any],
    rivals: Sequence[str],
    entry: Entry,
    values: Any,
    found: dict[str, Any],
) -> None:
    rows = [[{"kind": "Plain", "name": f.name} for f in row] for row in entry.rows]
    workload = {"subscripts": entry.subscripts, "rows": rows}
    for name in rivals:
        try:
            call, finish = contest.RIVALS[name](workload, values)
            finish(call())
            calls[name] = call, finish
        except Exception as error:  # noqa: BLE001  (whatever a rival's library raises)
            found.setdefault("refused", {})[name] = f"{error!r:.200}"


Samples = dict[str, list[float]]


def timed(calls: Mapping[str, Any]) -> tuple[Samples, Samples]:
    """Seconds of one call that is waited for, and of each of some in a row."""
    one: Samples = {name: [] for name in calls}
    row: Samples = {name: [] for name in calls}
    longest = max(_seconds(*call, 1) for call in calls.values())
    for _ in range(3 if longest > LONG_S else ROUNDS):
        for name, (call, finish) in calls.items():
            one[name].append(_seconds(call, finish, 1))
            row[name].append(_seconds(call, finish, N_IN_A_ROW))
    return one, row


def _seconds(call: Any, finish: Any, n: int) -> float:
    start = time.perf_counter()
    for _ in range(n):
        last = call()
    finish(last)
    return (time.perf_counter() - start) / n


def summary(path: str) -> str:
    """What calls failed, and what was measured."""
    lines = report.read(path)
    return "\n".join([*report.failures(lines), report.text(report.measurements(lines))])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--budget", type=float, default=90.0)
    parser.add_argument("--out", required=True)
    parser.add_argument("--sizes", nargs="+", default=["large"])
    parser.add_argument("--compiled", action="store_true",
                        help="torch.compile, too: seconds for each entry")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--worker", type=int)
    parser.add_argument("--end", type=float)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
