"""Verify and time the kernels of a bundle on a GPU.

python3 runner.py FOLDER [--budget SECONDS] [--limit SECONDS] [--jobs N] [--out FILE]

FOLDER has bundle.json and kernels.zip. This requires Python 3.10 or newer, numpy and
CuPy, but not feinsum. Kernels with a result are skipped, so that the same command
resumes an interrupted run. Every workload runs in a separate process, so that a kernel
that crashes or hangs affects no other. The best kernels of a workload, of all runs, are
timed together at the end. Several processes draw arguments and check results, while one
of them uses the GPU. Exit codes: 0 finished, 1 kernels are left (mostly because the
time is over), 2 there is no GPU.
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
"""Time from the start of a process to its first kernel: Python, CuPy and a context."""
LAST_S = 10.0
"""Time for the last kernel, and to time the best; then the process is killed."""
KERNEL_LIMIT_S = 10.0
"""Limit for the compilation of a kernel, and for its run."""
MOST_STARTS = 3
"""Number of consecutive processes without an outcome, after which a workload is
skipped.
"""
STOPS = {-signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM}
"""Exit codes of processes that a user or the system stopped."""
ROUNDS, FINALISTS = 20, 6
WIDE = 0.2
"""Spread over the median above which sampling is repeated: clocks change."""
MOST_JOBS = 6
HEAD_START_S = 1e-4
"""Duration of a delay on the GPU while the host enqueues the timed kernels: otherwise
the time of a short kernel would be that of its launch.
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
    """Run every workload in a separate process, while there is time."""
    end = time.monotonic() + options.budget
    n = len(bundle["workloads"])
    share = max(options.jobs * options.budget / n, START_S)

    def run(k: int) -> int:
        return run_to_end(bundle, k, share, end, options)

    with ThreadPoolExecutor(options.jobs) as pool:
        codes = set(pool.map(run, range(n)))
    if NO_GPU in codes:
        return NO_GPU
    if UNFINISHED in codes:
        warn("kernels are left; run this again to resume")
        return UNFINISHED
    return 0


def run_to_end(bundle: Any, k: int, share: float, end: float, options: Any) -> int:
    """Run a workload, and start another process after each crash."""
    n_starts, before = 0, read_progress(bundle, k, options.out)
    while not before.is_done:
        left = end - time.monotonic() - LAST_S
        if left < START_S:
            return UNFINISHED
        code = run_child(k, min(share, options.limit, left), options)
        if code == NO_GPU:
            return NO_GPU
        after = read_progress(bundle, k, options.out)
        if code in (0, None, *STOPS):
            return 0 if after.is_done else UNFINISHED
        if after.n_lines > before.n_lines and after.started is not None:
            record_crash(k, after.started, options.out, code)
            after = read_progress(bundle, k, options.out)
        n_starts = n_starts + 1 if after == before else 0
        if n_starts == MOST_STARTS:
            warn(f"workload {k} is given up: its process ended with {code} each time")
            return UNFINISHED
        before = after
    return 0


def run_child(k: int, limit: float, options: Any) -> int | None:
    """Run the process of a workload; return its exit code, or None at the limit."""
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


def read_lines(path: Path) -> list[Any]:
    """Read the complete lines of a file of results; there are none without the file."""
    if not path.exists():
        return []
    lines: list[Any] = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def append_lines(out: Path, *lines: Any) -> None:
    with out.open("a") as file:  # one write: lines of other processes stay whole
        file.write("".join(f"{json.dumps(line)}\n" for line in lines))


@dataclass
class Progress:
    """The outcomes of a workload in the file of results.

    Instances are equal if they have the same outcomes.

    Attributes:
        states: state of each candidate.
        seconds: first time of each tried candidate; later ones would change the order.
        timed: candidates that were timed in interleaved rounds.
        started: the last candidate, if it has no outcome.
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
        """Return the candidates without an outcome, the baseline first."""
        missing = [c for c in range(self.n_candidates) if c not in self.states]
        return sorted(missing, key=lambda c: c != self.baseline)

    @property
    def best(self) -> list[int]:
        """Return the baseline and the fastest candidates of all runs, if both exist."""
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


def read_progress(bundle: Any, k: int, out: Path) -> Progress:
    workload = bundle["workloads"][k]
    progress = Progress(len(workload["candidates"]), workload["baseline"])
    for line in read_lines(out):
        if line.get("workload") == k:
            progress.read(line)
    return progress


def record_crash(k: int, c: int, out: Path, code: int | None) -> None:
    """Record that a candidate crashed its process."""
    reason = f"ended its process with {code}"
    if code == -signal.SIGALRM:
        reason = f"took longer than {KERNEL_LIMIT_S:g} s"
    append_lines(
        out, {"workload": k, "candidate": c, "state": "crashed", "reason": reason}
    )


def run_workload(bundle: Any, k: int, options: Any) -> None:
    """Try missing candidates while there is time, then time the best together."""
    end = time.monotonic() + options.limit
    try:
        gpu = Gpu(bundle, options.folder, options.out)
    except Exception as error:  # noqa: BLE001  (CuPy has many)
        warn(f"CuPy finds no GPU: {error}")
        sys.exit(NO_GPU)
    trials = Trials(gpu, bundle, k, options.out)
    for c in trials.progress.missing:
        trials.try_candidate(c)
        trials.keep_best()
        if time.monotonic() > end:
            break
    if not trials.progress.is_timed:
        trials.finish()


class Trials:
    """Trials of the candidates of a workload, in one process.

    Attributes:
        kernels: kernels with right results, and their errors.
    """

    def __init__(self, gpu: Any, bundle: Any, k: int, out: Path) -> None:
        self.gpu, self.k, self.out = gpu, k, out
        self.workload = bundle["workloads"][k]
        self.progress = read_progress(bundle, k, out)
        self.case = Case(gpu, bundle["seed"], self.workload)
        self.kernels: dict[int, tuple[Any, float]] = {}

    def try_candidate(self, c: int) -> None:
        """Run, verify and time a candidate, and record the outcome."""
        self.record(c, "started")
        try:
            with limit_time():
                kernel = self.gpu.load_kernel(self.workload["candidates"][c], self.case)
            with self.gpu.reserve(), limit_time():
                results = self.case.run(kernel)
                seconds = min(self.gpu.time(kernel) for _ in range(3))
        except GpuError as refusal:
            self.record(c, "failed", reason=str(refusal)[:500])
            if refusal.is_lasting:
                sys.exit(BROKEN_GPU)
            return
        error = self.case.compute_error(results)
        if not error <= self.workload["tolerance"]:
            self.record(c, "wrong", error=repr(error))
            return
        self.record(c, "tried", seconds=seconds, error=error)
        self.kernels[c] = kernel, error

    def record(self, c: int, state: str, **more: Any) -> None:
        line = {"workload": self.k, "candidate": c, "state": state, **more}
        self.progress.read(line)
        append_lines(self.out, line)

    def keep_best(self) -> None:
        """Free the temporaries of all other kernels."""
        best = {self.workload["baseline"], *self.progress.best}
        self.kernels = {c: kernel for c, kernel in self.kernels.items() if c in best}

    def finish(self) -> None:
        """Time the best in interleaved rounds; those of earlier runs are verified
        again.
        """
        best, baseline = self.progress.best, self.workload["baseline"]
        for c in best:
            if c not in self.kernels:
                self.try_candidate(c)
        kernels = {c: self.kernels[c][0] for c in best if c in self.kernels}
        if baseline not in kernels:
            return
        with self.gpu.reserve():
            samples = sample_in_turns(self.gpu, kernels)
        finals = [self._make_final(c, samples) for c in kernels if c != baseline]
        append_lines(self.out, *finals)

    def _make_final(self, c: int, samples: dict[int, list[float]]) -> dict[str, Any]:
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
def limit_time() -> Iterator[None]:
    """Kill this process if the block takes too long.

    The signal has its default action, which also ends calls that never return.
    """
    signal.setitimer(signal.ITIMER_REAL, KERNEL_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def sample_in_turns(gpu: Any, kernels: dict[int, Any]) -> dict[int, list[float]]:
    """Time kernels in interleaved rounds, twice if the spread is large."""
    for _attempt in range(2):
        samples: dict[int, list[float]] = {c: [] for c in kernels}
        for _round in range(ROUNDS):
            for c, kernel in kernels.items():
                samples[c].append(gpu.time(kernel))
        if not any(map(is_wide, samples.values())):
            break
    return samples


def warn(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def compute_spread(samples: Sequence[float]) -> float:
    low, _, high = quantiles(samples, n=4)
    return (high - low) / median(samples)


def is_wide(samples: Sequence[float]) -> bool:
    return compute_spread(samples) > WIDE


LASTING = ("illegal", "misaligned", "launch failure", "launch timed out", "assert",
           "invalid program counter", "hardware stack", "uncorrectable")  # fmt: skip
"""Words in messages of the driver after which all calls of the process fail."""


class GpuError(Exception):
    """The GPU refuses something; ``is_lasting`` if everything from now on."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        text = message.lower()
        self.is_lasting = any(words in text for words in LASTING)


class Gpu:
    """The first GPU, by CuPy, with the kernels of a bundle."""

    def __init__(self, bundle: Any, folder: Path, out: Path) -> None:
        import cupy
        import numpy as np

        self.cupy, self.bundle = cupy, bundle["id"]
        self.lock, self.has_turn = out.with_suffix(".lock"), False
        runtime = cupy.cuda.runtime
        properties = runtime.getDeviceProperties(0)
        version = runtime.driverGetVersion()
        clock_khz = runtime.deviceGetAttribute(CLOCK_RATE, 0)
        self.capability = 10 * properties["major"] + properties["minor"]
        self.facts = {
            "name": properties["name"].decode(),
            "capability": [properties["major"], properties["minor"]],
            "multiprocessors": properties["multiProcessorCount"],
            "clock_khz": clock_khz,
            "memory_bytes": properties["totalGlobalMem"],
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
    def reserve(self) -> Iterator[None]:
        """Reserve the GPU: no other process times or copies anything.

        It is reentrant.
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

    def load_kernel(self, candidate: Any, case: Any) -> list[Any]:
        """Return the launches of a candidate, with arguments."""
        try:
            module = self._module(candidate)
            extra = {
                name: self.cupy.empty(n, dtype)
                for name, (n, dtype) in candidate["temporaries"].items()
            }
            return [
                self._launch(module, launch, case, extra)
                for launch in candidate["launches"]
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
        """Multiply matrices by cuBLAS, with arguments in its order."""
        import numpy as np

        library = importlib.import_module("cupy_backends.cuda.libs.cublas")
        name = "dgemm" if result.dtype == np.float64 else "sgemm"
        scale, offset = (np.full(1, x, result.dtype).ctypes for x in (1, 0))
        left, right = (first.data.ptr, *call[5:7]), (second.data.ptr, *call[7:9])
        into = result.data.ptr, *call[9:11]
        n = 3 if call[11] > 1 else 2  # without strides, there is one product
        gemm = getattr(library, name if n == 2 else f"{name}StridedBatched")
        gemm(
            self.cupy.cuda.device.get_cublas_handle(), *call[:5], scale.data,
            *left[:n], *right[:n], offset.data, *into[:n], *call[11 : 9 + n],
        )  # fmt: skip

    def time(self, kernel: Any) -> float:
        """Return the time of all launches, between two events."""
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
    """The arguments and expected results of a workload."""

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
                values = draw_operand(np, rng, kind, dtype, shape)
                with gpu.reserve():
                    self.arrays[name] = gpu.cupy.asarray(values)
        for name, dtype, shape, _checks in workload["outputs"]:
            self.arrays[name] = gpu.cupy.empty(tuple(shape), dtype)

    def compute_largest_error(self, kernel: Any) -> float:
        return self.compute_error(self.run(kernel))

    def run(self, kernel: Any) -> list[Any]:
        """Run a kernel with poisoned outputs, and copy these to the host."""
        arrays = [self.arrays[name] for name, *_ in self.workload["outputs"]]
        with self.gpu.reserve():
            for array in arrays:
                array.data.memset(0xFF, array.nbytes)  # NaN, or -1
            self.gpu.time(kernel)
            return [array.get() for array in arrays]

    def compute_error(self, results: list[Any]) -> float:
        """Return the largest error of the checked entries, and of a weighted sum of
        all.
        """
        np, worst = self.np, 0.0
        for (*_, checks), result in zip(self.workload["outputs"], results, strict=True):
            values = result.astype(np.float64)
            if not np.isfinite(values).all():
                return float("inf")
            total = abs(compute_weighted_sum(np, values) - checks["weighted"])
            scale = (checks["largest"] or 1.0) * np.sqrt(values.size)
            worst = max(worst, compute_entries_error(np, checks, values), total / scale)
        return worst


def compute_entries_error(np: Any, checks: Any, result: Any) -> float:
    """Return the largest error of the checked entries, relative to the largest of
    them.
    """
    values = np.array(checks["values"])
    flat = result.reshape(-1)
    error = np.abs(flat[choose_checked(np, flat.size, values.size)] - values)
    if not np.isfinite(error).all():
        return float("inf")
    return float(error.max()) / (checks["largest"] or 1.0)


def choose_checked(np: Any, n: int, n_checked: int) -> Any:
    """Return the positions of the checked entries of a result."""
    if n_checked >= n:
        return np.arange(n)
    return np.random.default_rng(n).integers(n, size=n_checked)


def draw_operand(np: Any, rng: Any, kind: str, dtype: str, shape: Any) -> Any:
    """Draw the entries of an operand, as where the bundle was built."""
    if kind == "integers":
        return rng.integers(1, 10, tuple(shape)).astype(dtype, copy=False)
    return rng.uniform(0.5, 1.5, tuple(shape)).astype(dtype, copy=False)


def draw_weights(np: Any, axis: int, n: int) -> Any:
    """Return factors along an axis, for a sum in which errors are unlikely to cancel.

    A weight is the product of one factor for each axis, so that the sum can be computed
    without the result. Its mean square is 1.
    """
    return np.random.default_rng((axis, n)).uniform(-(3**0.5), 3**0.5, n)


def compute_weighted_sum(np: Any, result: Any) -> float:
    """Return the weighted sum of all entries of a result; see :func:`draw_weights`."""
    for axis, n in reversed(list(enumerate(result.shape))):
        result = result.reshape(-1, n) @ draw_weights(np, axis, n)
    return float(result.sum())


if __name__ == "__main__":
    sys.exit(main())
