"""Verifies and times the kernels of a bundle on a GPU.

python3 runner.py FOLDER [--budget SECONDS] [--limit SECONDS] [--jobs N] [--out FILE]

The folder has bundle.json and kernels.zip. This needs Python 3.10 or newer, numpy and
CuPy, and nothing of feinsum. Kernels with a result are skipped, so the same command
resumes an interrupted run. Every workload runs in a separate process; a kernel that
ends its process, or takes too long, costs nothing but itself. The best kernels of a
workload, of all runs, are timed together at the end. Several processes draw arguments
and check results, while one of them has the GPU. Exit codes: 0 done, 1 kernels are left
(mostly because the time ran out), 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

UNFINISHED, NO_GPU, BROKEN_GPU = 1, 2, 3
START_S = 3.0
"""From the start of a process to its first kernel: Python, CuPy and a context."""
LAST_S = 10.0
"""For the last kernel of a process, and to time the best; then the process is ended."""
PATIENCE_S = 10.0
"""For a kernel to be compiled, and to run, each."""
MOST_STARTS = 3
"""Processes in a row without an outcome, after which a workload is given up."""
STOPS = {-signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM}
"""Exit codes of processes that a user or the system ended."""
ROUNDS, FINALISTS = 20, 6
WIDE = 0.2
"""Above this spread over the median, samples are taken once more: clocks change."""
MOST_JOBS = 6
HEAD_START_S = 1e-4
"""For which the GPU is kept busy while the host enqueues what is timed: otherwise the
time of a short kernel is that of its launch.
"""
CLOCK_RATE = 13
"""``cudaDevAttrClockRate``, which the properties of CUDA 13 no longer have."""
OPTIONS = ("--std=c++17", "-default-device")
DELAY = """
extern "C" __global__ void feinsum_delay(long long n)
{ for (long long const start = clock64(); clock64() - start < n;); }
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget", type=float, default=180.0)
    parser.add_argument("--limit", type=float, default=60.0)
    jobs = min(MOST_JOBS, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=jobs)
    parser.add_argument("--out", type=Path, help="by default FOLDER/results.jsonl")
    parser.add_argument("--workload", type=int)
    options = parser.parse_args()
    options.out = options.out or options.folder / "results.jsonl"
    bundle = json.loads((options.folder / "bundle.json").read_text())
    if options.workload is not None:
        run_workload(bundle, options.workload, options)
        return 0
    return run_all(bundle, options)


def run_all(bundle: Any, options: Any) -> int:
    """Every workload that has time left, each in a separate process."""
    end = time.monotonic() + options.budget
    n = len(bundle["workloads"])
    share = max(options.jobs * options.budget / n, START_S)

    def tried(k: int) -> int:
        return run_to_end(bundle, k, share, end, options)

    with ThreadPoolExecutor(options.jobs) as pool:
        codes = set(pool.map(tried, range(n)))
    if NO_GPU in codes:
        return NO_GPU
    if UNFINISHED in codes:
        note("kernels are left; run this again to resume")
        return UNFINISHED
    return 0


def run_to_end(bundle: Any, k: int, share: float, end: float, options: Any) -> int:
    """One workload, in another process after each that crashed."""
    n_starts, before = 0, progress_of(bundle, k, options.out)
    while not before.is_done:
        left = end - time.monotonic() - LAST_S
        if left < START_S:
            return UNFINISHED
        code = run_child(k, min(share, options.limit, left), options)
        if code == NO_GPU:
            return NO_GPU
        after = progress_of(bundle, k, options.out)
        if code in (0, None, *STOPS):
            return 0 if after.is_done else UNFINISHED
        if after.n_lines > before.n_lines and after.started is not None:
            blame(k, after.started, options.out, code)
            after = progress_of(bundle, k, options.out)
        n_starts = n_starts + 1 if after == before else 0
        if n_starts == MOST_STARTS:
            note(f"workload {k} is given up: its process ended with {code} each time")
            return UNFINISHED
        before = after
    return 0


def run_child(k: int, limit: float, options: Any) -> int | None:
    """The exit code of a workload's process; None if it was ended at the limit."""
    command = [
        sys.executable,
        __file__,
        str(options.folder),
        "--workload",
        str(k),
        "--out",
        str(options.out),
        "--limit",
        str(limit),
    ]
    try:
        ended = subprocess.run(command, timeout=limit + LAST_S, check=False)
        return ended.returncode
    except subprocess.TimeoutExpired:
        return None


def lines_of(path: Path) -> list[Any]:
    """The complete lines of a file of results; none if there is no such file."""
    if not path.exists():
        return []
    found: list[Any] = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def say(out: Path, *lines: Any) -> None:
    with out.open("a") as file:  # one write, which other processes do not tear
        file.write("".join(f"{json.dumps(line)}\n" for line in lines))


@dataclass
class Progress:
    """What the file of results has of a workload.

    Two are equal if they have the same outcomes.

    Attributes:
        states: how each candidate ended.
        seconds: of those that were tried; the first ones, so that the best stay so.
        timed: candidates that were timed together with others.
        started: the candidate that was started last, if nothing came after that.
    """

    n_candidates: int
    baseline: int
    states: dict[int, str] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    timed: set[int] = field(default_factory=set)
    started: int | None = field(default=None, compare=False)
    n_lines: int = field(default=0, compare=False)

    def read(self, line: Any) -> None:
        c, state = line["candidate"], line.get("state")
        self.n_lines += 1
        self.started = c if state == "started" else None
        if state == "tried":
            self.seconds.setdefault(c, line["seconds"])
        if state is None:
            self.timed.add(c)
        elif state != "started":
            self.states[c] = state

    @property
    def missing(self) -> list[int]:
        """Candidates that have no outcome yet, the baseline first."""
        missing = [c for c in range(self.n_candidates) if c not in self.states]
        return sorted(missing, key=lambda c: c != self.baseline)

    @property
    def best(self) -> list[int]:
        """The baseline and the fastest candidates of all starts, if there are both."""
        right = [c for c, state in self.states.items() if state == "tried"]
        others = sorted({*right} - {self.baseline}, key=self.seconds.__getitem__)
        is_any = self.baseline in right and others
        return [self.baseline, *others[:FINALISTS]] if is_any else []

    @property
    def is_timed(self) -> bool:
        return {*self.best[1:]} <= self.timed

    @property
    def is_done(self) -> bool:
        return not self.missing and self.is_timed


def progress_of(bundle: Any, k: int, out: Path) -> Progress:
    workload = bundle["workloads"][k]
    progress = Progress(len(workload["candidates"]), workload["baseline"])
    for line in lines_of(out):
        if line.get("workload") == k:
            progress.read(line)
    return progress


def blame(k: int, c: int, out: Path, code: int | None) -> None:
    """Write down that a candidate ended its process."""
    how = f"ended its process with {code}"
    if code == -signal.SIGALRM:
        how = f"took longer than {PATIENCE_S:g} s"
    say(out, {"workload": k, "candidate": c, "state": "crashed", "reason": how})


def run_workload(bundle: Any, k: int, options: Any) -> None:
    """Try what is missing while there is time, and time the best of all together."""
    end = time.monotonic() + options.limit
    try:
        gpu = Gpu(bundle, options.folder, options.out)
    except Exception as error:  # noqa: BLE001  (CuPy has many)
        note(f"CuPy finds no GPU: {error}")
        sys.exit(NO_GPU)
    trials = Trials(gpu, bundle, k, options.out)
    for c in trials.progress.missing:
        trials.make(c)
        trials.keep_best()
        if time.monotonic() > end:
            break
    if not trials.progress.is_timed:
        trials.finish()


class Trials:
    """Of the candidates of a workload, in one process.

    Attributes:
        kernels: those that are right, with their errors.
    """

    def __init__(self, gpu: Any, bundle: Any, k: int, out: Path) -> None:
        self.gpu, self.k, self.out = gpu, k, out
        self.workload = bundle["workloads"][k]
        self.progress = progress_of(bundle, k, out)
        self.case = Case(gpu, bundle["seed"], self.workload)
        self.kernels: dict[int, tuple[Any, float]] = {}

    def make(self, c: int) -> None:
        """Run a candidate, verify and time it, and write it down."""
        self.say(c, "started")
        try:
            with patience():
                kernel = self.gpu.kernel(self.workload["candidates"][c], self.case)
            with self.gpu.turn(), patience():
                results = self.case.results(kernel)
                seconds = min(self.gpu.seconds(kernel) for _ in range(3))
        except GpuError as refusal:
            self.say(c, "failed", reason=str(refusal)[:500])
            if refusal.is_lasting:
                sys.exit(BROKEN_GPU)
            return
        off = self.case.error(results)
        if not off <= self.workload["tolerance"]:
            self.say(c, "wrong", error=repr(off))
            return
        self.say(c, "tried", seconds=seconds, error=off)
        self.kernels[c] = kernel, off

    def say(self, c: int, state: str, **more: Any) -> None:
        line = {"workload": self.k, "candidate": c, "state": state, **more}
        self.progress.read(line)
        say(self.out, line)

    def keep_best(self) -> None:
        """Free the temporaries of all others."""
        kept = {self.workload["baseline"], *self.progress.best}
        self.kernels = {c: one for c, one in self.kernels.items() if c in kept}

    def finish(self) -> None:
        """Time the best in turns; those of earlier processes are verified again."""
        chosen, baseline = self.progress.best, self.workload["baseline"]
        for c in chosen:
            if c not in self.kernels:
                self.make(c)
        kernels = {c: self.kernels[c][0] for c in chosen if c in self.kernels}
        if baseline not in kernels:
            return
        with self.gpu.turn():
            samples = samples_of(self.gpu, kernels)
        finals = [self.final(c, samples) for c in kernels if c != baseline]
        say(self.out, *finals)

    def final(self, c: int, samples: dict[int, list[float]]) -> dict[str, Any]:
        return {
            "workload": self.k,
            "candidate": c,
            "final": True,
            "samples_s": samples[c],
            "baseline_s": samples[self.workload["baseline"]],
            "error": self.kernels[c][1],
            "device": self.gpu.facts,
            "bundle": self.gpu.bundle,
        }


@contextmanager
def patience() -> Iterator[None]:
    """End this process if what is within takes too long, even if it never returns.

    The default of the signal does that in a call of a library, too.
    """
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def samples_of(gpu: Any, kernels: dict[int, Any]) -> dict[int, list[float]]:
    """Seconds of kernels in turns; once more if they are wide, as clocks change."""
    for _attempt in range(2):
        samples: dict[int, list[float]] = {c: [] for c in kernels}
        for _round in range(ROUNDS):
            for c, kernel in kernels.items():
                samples[c].append(gpu.seconds(kernel))
        if not any(map(is_wide, samples.values())):
            break
    return samples


def note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def spread(samples: Sequence[float]) -> float:
    low, _, high = quantiles(samples, n=4)
    return (high - low) / median(samples)


def is_wide(samples: Sequence[float]) -> bool:
    return spread(samples) > WIDE


LASTING = ("illegal", "misaligned", "launch failure", "launch timed out", "assert",
           "invalid program counter", "hardware stack", "uncorrectable")  # fmt: skip
"""Words in the driver's messages after which it refuses everything to a process."""


class GpuError(Exception):
    """The GPU refuses something; everything from now on if ``is_lasting``."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        text = said.lower()
        self.is_lasting = any(words in text for words in LASTING)


class Gpu:
    """The first GPU, by CuPy, with the kernels of a folder."""

    def __init__(self, bundle: Any, folder: Path, out: Path) -> None:
        import cupy
        import numpy as np

        self.cupy, self.bundle = cupy, bundle["id"]
        self.lock, self.has_turn = out.with_suffix(".lock"), False
        runtime = cupy.cuda.runtime
        has = runtime.getDeviceProperties(0)
        version = runtime.driverGetVersion()
        clock_khz = runtime.deviceGetAttribute(CLOCK_RATE, 0)
        self.capability = 10 * has["major"] + has["minor"]
        self.facts = {
            "name": has["name"].decode(),
            "capability": [has["major"], has["minor"]],
            "multiprocessors": has["multiProcessorCount"],
            "clock_khz": clock_khz,
            "memory_bytes": has["totalGlobalMem"],
            "driver": f"{version // 1000}.{version % 1000 // 10}",
            "cupy": cupy.__version__,
            "python": sys.version.split()[0],
        }
        self.errors = (
            runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
            cupy.cuda.compiler.CompileException,
            cupy.cuda.memory.OutOfMemoryError,
        )
        self.extracted = TemporaryDirectory()
        self.archive = zipfile.ZipFile(folder / "kernels.zip")
        module = cupy.RawModule(code=DELAY, backend="nvrtc", options=OPTIONS)
        self.delay = module.get_function("feinsum_delay")
        self.head_start = np.int64(HEAD_START_S * 1e3 * (clock_khz or 2e6))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The GPU for this process alone: nothing else is timed or copied meanwhile.

        Turns can be nested.
        """
        if self.has_turn:
            yield
            return
        with self.lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            self.has_turn = True
            try:
                yield
            finally:
                self.has_turn = False

    def kernel(self, candidate: Any, case: Any) -> list[Any]:
        """The launches of a candidate, ready to be made."""
        try:
            module = self._module(candidate)
            extra = {
                name: self.cupy.empty(n, dtype)
                for name, (n, dtype) in candidate["temporaries"].items()
            }
            return [
                self._launch(module, one, case, extra) for one in candidate["launches"]
            ]
        except self.errors as error:
            raise GpuError(str(error)) from error

    def _module(self, candidate: Any) -> Any:
        name = f"{candidate['code']}.sm_{self.capability}"
        if name in self.archive.namelist():
            path = self.archive.extract(name, self.extracted.name)
            return self.cupy.RawModule(path=path)
        source = self.archive.read(f"{candidate['code']}.cu").decode()
        return self.cupy.RawModule(code=source, backend="nvrtc", options=OPTIONS)

    def _launch(self, module: Any, launch: Any, case: Any, extra: Any) -> Any:
        values = {**case.arrays, **case.scalars, **extra}
        if launch.get("product"):
            arrays = [values[name] for name in launch["product"]["arrays"]]
            return lambda: self.multiply(launch["product"]["call"], *arrays)
        function = module.get_function(launch["name"])
        if launch["shared_bytes"]:
            function.max_dynamic_shared_size_bytes = launch["shared_bytes"]
        arguments = tuple(values[name] for name in launch["arguments"])
        grid, block = tuple(launch["grid"]), tuple(launch["block"])
        return lambda: function(
            grid, block, arguments, shared_mem=launch["shared_bytes"]
        )

    def multiply(self, call: Any, first: Any, second: Any, result: Any) -> None:
        """Products of matrices by cuBLAS, in the order of its arguments."""
        import numpy as np

        library = importlib.import_module("cupy_backends.cuda.libs.cublas")
        name = "dgemm" if result.dtype == np.float64 else "sgemm"
        one, zero = (np.full(1, x, result.dtype).ctypes for x in (1, 0))
        left, right = (first.data.ptr, *call[5:7]), (second.data.ptr, *call[7:9])
        into = result.data.ptr, *call[9:11]
        n = 3 if call[11] > 1 else 2  # without steps, there is one product
        gemm = getattr(library, name if n == 2 else f"{name}StridedBatched")
        gemm(
            self.cupy.cuda.device.get_cublas_handle(), *call[:5], one.data,
            *left[:n], *right[:n], zero.data, *into[:n], *call[11 : 9 + n],
        )  # fmt: skip

    def seconds(self, kernel: Any) -> float:
        """Between two events around all launches."""
        cuda = self.cupy.cuda
        first, last = cuda.Event(), cuda.Event()
        try:
            self.delay((1,), (1,), (self.head_start,))
            first.record()
            for launch in kernel:
                launch()
            last.record()
            last.synchronize()
            return max(float(cuda.get_elapsed_time(first, last)) * 1e-3, 1e-9)
        except self.errors as error:
            raise GpuError(str(error)) from error


class Case:
    """The arguments of a workload, and its expected results."""

    def __init__(self, gpu: Any, seed: int, workload: Any) -> None:
        import numpy as np

        self.np, self.gpu, self.workload = np, gpu, workload
        rng = np.random.default_rng(seed)
        self.scalars: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}
        for name, dtype, shape, kind in workload["arguments"]:
            if kind in ("size", "scalar"):
                self.scalars[name] = np.dtype(dtype).type(shape)
            else:
                values = drawn(np, rng, kind, dtype, shape)
                with gpu.turn():
                    self.arrays[name] = gpu.cupy.asarray(values)
        for name, dtype, shape, _checks in workload["outputs"]:
            self.arrays[name] = gpu.cupy.empty(tuple(shape), dtype)

    def largest_error(self, kernel: Any) -> float:
        return self.error(self.results(kernel))

    def results(self, kernel: Any) -> list[Any]:
        """What a kernel writes into poisoned outputs, on the host."""
        arrays = [self.arrays[name] for name, *_ in self.workload["outputs"]]
        with self.gpu.turn():
            for array in arrays:
                array.data.memset(0xFF, array.nbytes)  # NaN, or -1
            self.gpu.seconds(kernel)
            return [array.get() for array in arrays]

    def error(self, results: list[Any]) -> float:
        """Over the checked entries, and a weighted sum of all."""
        np, worst = self.np, 0.0
        for (*_, checks), result in zip(self.workload["outputs"], results, strict=True):
            found = result.astype(np.float64)
            if not np.isfinite(found).all():
                return float("inf")
            total = abs(weighted_sum(np, found) - checks["weighted"])
            scale = (checks["largest"] or 1.0) * np.sqrt(found.size)
            worst = max(worst, entries_error(np, checks, found), total / scale)
        return worst


def entries_error(np: Any, checks: Any, result: Any) -> float:
    """The largest error of the checked entries, relative to the largest of them."""
    values = np.array(checks["values"])
    flat = result.reshape(-1)
    off = np.abs(flat[checked(np, flat.size, values.size)] - values)
    if not np.isfinite(off).all():
        return float("inf")
    return float(off.max()) / (checks["largest"] or 1.0)


def checked(np: Any, n: int, n_checked: int) -> Any:
    """Places of the entries of a result that are compared one by one: at most all."""
    if n_checked >= n:
        return np.arange(n)
    return np.random.default_rng(n).integers(n, size=n_checked)


def drawn(np: Any, rng: Any, kind: str, dtype: str, shape: Any) -> Any:
    """Entries of an operand; the same as where the bundle was made."""
    if kind == "integers":
        return rng.integers(1, 10, tuple(shape)).astype(dtype, copy=False)
    return rng.uniform(0.5, 1.5, tuple(shape)).astype(dtype, copy=False)


def weights(np: Any, axis: int, n: int) -> Any:
    """Factors along an axis of a sum in which wrong entries are unlikely to cancel.

    A weight is the product of one factor for each axis, so that the sum can be computed
    without the result. Its mean square is 1.
    """
    return np.random.default_rng((axis, n)).uniform(-(3**0.5), 3**0.5, n)


def weighted_sum(np: Any, result: Any) -> float:
    """Of all entries of a result; see :func:`weights`."""
    for axis, n in reversed(list(enumerate(result.shape))):
        result = result.reshape(-1, n) @ weights(np, axis, n)
    return float(result.sum())


if __name__ == "__main__":
    sys.exit(main())
