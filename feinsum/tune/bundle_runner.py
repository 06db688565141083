"""Verifies and times the kernels of a bundle on a GPU.

python3 runner.py [--budget SECONDS] [--limit SECONDS] [--jobs N] [--out results.jsonl]

It stands beside bundle.json and kernels.zip, and needs Python 3.10 or newer, numpy and
CuPy, nothing else. What is in the file of results already is not tried again, so that
it may be stopped, and started again. Every workload runs in a separate process, which
ends when it takes longer than its limit; a kernel that ends its process costs itself
alone. Several processes draw arguments and compare results at a time, while one of them
has the GPU. Exit codes: 0 done, 1 there is time for no more, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
NO_TIME, NO_GPU = 1, 2
ROUNDS, FINALISTS = 20, 6
WIDE = 0.2
"""A spread over the median from which times are taken once more: clocks change."""
MOST_JOBS = 6
HEAD_START_S = 1e-4
"""For which the GPU is kept busy while the host enqueues what is timed: otherwise the
time of a short kernel is that of its launch.
"""
OPTIONS = ("--std=c++17", "-default-device")
DELAY = """
extern "C" __global__ void feinsum_delay(long long n)
{ for (long long const start = clock64(); clock64() - start < n;); }
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--budget", type=float, default=180.0)
    parser.add_argument("--limit", type=float, default=60.0)
    jobs = min(MOST_JOBS, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=jobs)
    parser.add_argument("--out", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("--workload", type=int)
    options = parser.parse_args()
    bundle = json.loads((HERE / "bundle.json").read_text())
    if options.workload is not None:
        run_workload(bundle, options.workload, options)
        return 0
    return run_all(bundle, options)


def run_all(bundle: Any, options: Any) -> int:
    """Every workload that has time left, each in a separate process."""
    end = time.monotonic() + options.budget
    n = len(bundle["workloads"])

    def tried(k: int) -> int:
        share = options.jobs * options.budget / n
        return run_to_end(bundle, k, max(share, 2.0), end, options)

    with ThreadPoolExecutor(options.jobs) as pool:
        codes = set(pool.map(tried, range(n)))
    if NO_GPU in codes:
        return NO_GPU
    if NO_TIME in codes:
        note("there is no time left; start again to go on")
        return NO_TIME
    return 0


def run_to_end(bundle: Any, k: int, share: float, end: float, options: Any) -> int:
    """One workload, in a new process after each that it ended."""
    while missing_of(bundle, k, options.out):
        left = end - time.monotonic()
        if left <= 0:
            return NO_TIME
        code = run_child(k, min(share, options.limit, left), options)
        if code in (0, NO_GPU):
            return code
        blame(bundle, k, options.out, code)
    return 0


def run_child(k: int, limit: float, options: Any) -> int | None:
    """The exit code of the process of a workload; None if it took too long."""
    command = [
        sys.executable,
        __file__,
        "--workload",
        str(k),
        "--out",
        str(options.out),
        "--limit",
        str(limit),
    ]
    try:
        ended = subprocess.run(command, timeout=limit + 10, check=False)  # noqa: S603
        return ended.returncode
    except subprocess.TimeoutExpired:
        return None


def lines_of(path: Path) -> list[Any]:
    """What is written; a line that is not complete is none."""
    if not path.exists():
        return []
    found: list[Any] = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def missing_of(bundle: Any, k: int, out: Path) -> list[int]:
    """Candidates of a workload that have no outcome yet."""
    done = {
        line["candidate"]
        for line in lines_of(out)
        if line.get("workload") == k and "state" in line and line["state"] != "started"
    }
    return [
        c for c in range(len(bundle["workloads"][k]["candidates"])) if c not in done
    ]


def blame(bundle: Any, k: int, out: Path, code: int | None) -> None:
    """Write down that the candidate that was tried last ended its process.

    None did if all have an outcome: the process ended while it timed the best of them.
    """
    missing = set(missing_of(bundle, k, out))
    if not missing:
        return
    started = [
        line["candidate"]
        for line in lines_of(out)
        if line.get("workload") == k
        and line.get("state") == "started"
        and line["candidate"] in missing
    ]
    last = started[-1] if started else min(missing)
    how = "took too long" if code is None else f"ended its process with {code}"
    say(out, {"workload": k, "candidate": last, "state": "crashed", "reason": how})


def say(out: Path, line: Any) -> None:
    with out.open("a") as file:  # one write, which other processes do not tear
        file.write(json.dumps(line) + "\n")


def run_workload(bundle: Any, k: int, options: Any) -> None:
    """Verify every candidate, time the best of them together, and write it down."""
    try:
        gpu = Gpu(bundle, options.out)
    except Exception as error:  # noqa: BLE001  (CuPy has many)
        note(f"there is no GPU for CuPy: {error}")
        sys.exit(NO_GPU)
    workload, out = bundle["workloads"][k], options.out
    end = time.monotonic() + options.limit
    missing = missing_of(bundle, k, out)
    case = Case(gpu, bundle["seed"], workload)
    timed: dict[int, Any] = {}

    def tell(c: int, state: str, **more: Any) -> None:
        if c in missing:
            say(out, {"workload": k, "candidate": c, "state": state, **more})

    for c in dict.fromkeys([workload["baseline"], *missing]):
        if time.monotonic() > end and timed:
            break
        tell(c, "started")
        try:
            kernel = gpu.kernel(workload["candidates"][c], case)
            off = case.largest_error(kernel)
        except GpuError as refusal:
            tell(c, "failed", reason=str(refusal)[:500])
            if refusal.is_lasting:
                sys.exit(3)
            continue
        if not off <= workload["tolerance"]:
            tell(c, "wrong", error=repr(off))
            continue
        with gpu.turn():
            timed[c] = kernel, off, min(gpu.seconds(kernel) for _ in range(3))
        tell(c, "tried", seconds=timed[c][2], error=off)
    with gpu.turn():
        finals(gpu, workload, k, timed, out)


def finals(gpu: Any, workload: Any, k: int, timed: Any, out: Path) -> None:
    """The best candidates and the baseline in turns."""
    baseline = workload["baseline"]
    if baseline not in timed:
        return
    best = sorted((c for c in timed if c != baseline), key=lambda c: timed[c][2])
    chosen = [baseline, *best[:FINALISTS]]
    for _attempt in range(2):
        samples: dict[int, list[float]] = {c: [] for c in chosen}
        for _round in range(ROUNDS):
            for c in chosen:
                samples[c].append(gpu.seconds(timed[c][0]))
        if max(spread(s) for s in samples.values()) <= WIDE:
            break
    for c in chosen[1:]:
        say(
            out,
            {
                "workload": k,
                "candidate": c,
                "final": True,
                "samples_s": samples[c],
                "baseline_s": samples[baseline],
                "error": timed[c][1],
                "device": gpu.facts,
                "bundle": gpu.bundle,
            },
        )


def note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def spread(samples: list[float]) -> float:
    low, _, high = quantiles(samples, n=4)
    return (high - low) / median(samples)


class GpuError(Exception):
    """The GPU refuses; ``is_lasting`` if it does so from now on."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        text = said.lower()
        self.is_lasting = "illegal" in text or "launch failure" in text


class Gpu:
    """The first GPU, by CuPy."""

    def __init__(self, bundle: Any, out: Path) -> None:
        import cupy
        import numpy as np

        self.cupy, self.bundle = cupy, bundle["id"]
        self.lock, self.has_turn = out.with_suffix(".lock"), False
        runtime = cupy.cuda.runtime
        has = runtime.getDeviceProperties(0)
        version = runtime.driverGetVersion()
        self.capability = 10 * has["major"] + has["minor"]
        self.facts = {
            "name": has["name"].decode(),
            "capability": [has["major"], has["minor"]],
            "multiprocessors": has["multiProcessorCount"],
            "clock_khz": has.get("clockRate", 0),
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
        self.folder = TemporaryDirectory()
        self.archive = zipfile.ZipFile(HERE / "kernels.zip")
        module = cupy.RawModule(code=DELAY, backend="nvrtc", options=OPTIONS)
        self.delay = module.get_function("feinsum_delay")
        self.head_start = np.int64(HEAD_START_S * 1e3 * (has.get("clockRate") or 2e6))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The GPU for this process alone: nothing else is timed or copied meanwhile.

        Within a turn, another one is the same.
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
            path = self.archive.extract(name, self.folder.name)
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
    """The arguments of a workload, and what its results have to be."""

    def __init__(self, gpu: Any, seed: int, workload: Any) -> None:
        import numpy as np

        self.np, self.gpu, self.workload = np, gpu, workload
        self.weights = cache(lambda n: weights(np, n))
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
        """Over the checked entries, and a weighted sum of all, of poisoned outputs."""
        np, worst = self.np, 0.0
        results = [self.arrays[name] for name, *_ in self.workload["outputs"]]
        with self.gpu.turn():
            for array in results:
                array.data.memset(0xFF, array.nbytes)  # NaN, or -1
            self.gpu.seconds(kernel)
            copied = [array.get() for array in results]
        for (*_, checks), result in zip(self.workload["outputs"], copied, strict=True):
            found = result.reshape(-1).astype(np.float64)
            if not np.isfinite(found).all():
                return float("inf")
            entries = np.abs(found[checks["places"]] - np.array(checks["values"]))
            total = abs(float(found @ self.weights(found.size)) - checks["weighted"])
            scale = checks["largest"] or 1.0
            worst = max(
                worst,
                float(entries.max()) / scale,
                total / (scale * np.sqrt(found.size)),
            )
        return worst


def drawn(np: Any, rng: Any, kind: str, dtype: str, shape: Any) -> Any:
    """Entries of an operand; the same as where the bundle was made."""
    if kind == "integers":
        return rng.integers(1, 10, tuple(shape)).astype(dtype)
    return rng.uniform(0.5, 1.5, tuple(shape)).astype(dtype)


def weights(np: Any, n: int) -> Any:
    """Of a sum in which no two wrong entries are likely to cancel."""
    return np.random.default_rng(n).uniform(-1.0, 1.0, n)


if __name__ == "__main__":
    sys.exit(main())
