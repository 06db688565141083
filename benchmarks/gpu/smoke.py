"""Test feinsum on an NVIDIA GPU: one line for each step, in less than two minutes.

Every step runs, even after failures. Results are compared with numpy's::

    python benchmarks/gpu/smoke.py [--budget SECONDS] [--only WORD] [--log FILE]

The exit code is 0 if all steps pass, 1 if one fails, 3 if there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
import feinsum
from feinsum.calling.kernel_cache import Calls
from feinsum.errors import FeinsumError, FeinsumWarning, MeasurementError
from feinsum.memory import get_remembered
from feinsum.records import InMemoryStore

FAILED, NO_GPU = 1, 3
STEP_S = 30
"""Limit of a step."""
DEVICE = "cuda"

STEPS: list[tuple[str, Callable[[], str]]] = []
DATABASE = InMemoryStore()
"""Without facts."""

CASES: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "product": ("ij,jk->ik", [(256, 192), (192, 320)]),
    "gradient": ("xre,rij,ej->xei", [(3, 3, 1000), (3, 20, 20), (1000, 20)]),
    "row sum": ("ij->i", [(300, 4000)]),
    "whole sum": ("ij->", [(300, 4000)]),
    "pointwise": ("ij,ij->ij", [(700, 300), (700, 300)]),
    "ragged": ("bij,bjk->bik", [(3, 101, 57), (3, 57, 33)]),
    "chain": ("ij,jk,kl->il", [(60, 70), (70, 80), (80, 50)]),
    "empty": ("ij,jk->ik", [(0, 4), (4, 3)]),
    "empty sum": ("ij,jk->ik", [(5, 0), (0, 3)]),
}


def register_step(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a function as a step; it returns the text to print."""

    def added(function: Callable[[], str]) -> Callable[[], str]:
        STEPS.append((name, function))
        return function

    return added


@dataclass(frozen=True)
class Library:
    """How to copy arrays of a library to the GPU and back."""

    name: str
    put: Callable[[np.ndarray[Any, Any]], Any]
    get: Callable[[Any], np.ndarray[Any, Any]]


def load_cupy_library() -> Library:
    cupy = importlib.import_module("cupy")
    return Library("cupy", cupy.asarray, cupy.asnumpy)


def load_torch_library() -> Library:
    torch = importlib.import_module("torch")
    return Library(
        "torch",
        lambda host: torch.from_numpy(host).to("cuda"),
        lambda array: array.cpu().numpy(),
    )


def load_jax_library() -> Library:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return Library("jax", jax.numpy.asarray, np.asarray)


LIBRARIES = {
    "cupy": load_cupy_library,
    "torch": load_torch_library,
    "jax": load_jax_library,
}


def call_einsum(subscripts: str, *operands: Any, **options: Any) -> Any:
    """Call feinsum with estimated effort, so that a kernel is used if there is one."""
    arguments = {"database": DATABASE, "effort": "estimate", **options}
    return feinsum.call_einsum(subscripts, *operands, **arguments)


def check(
    result: Any, expected: np.ndarray[Any, Any], tolerance: float = 1e-10
) -> None:
    """Compare a result with the expected one."""
    assert result.shape == expected.shape, f"shape {result.shape}, not {expected.shape}"
    assert result.dtype == expected.dtype, f"dtype {result.dtype}, not {expected.dtype}"
    if expected.size:
        error = np.abs(result - expected).max() / max(np.abs(expected).max(), 1e-300)
        assert error < tolerance, f"off by {error:.2g} of the largest entry"


def draw_arrays(
    shapes: list[tuple[int, ...]], dtype: type = np.float64
) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.random(shape).astype(dtype) for shape in shapes]


def call_case(
    library: Library, case: str, dtype: type = np.float64, **options: Any
) -> tuple[float, Any]:
    """Time a call, check its result, and return milliseconds and the result."""
    subscripts, shapes = CASES[case]
    hosts = draw_arrays(shapes, dtype)
    operands = [library.put(host) for host in hosts]
    start = perf_counter()
    result = feinsum.call_einsum(subscripts, *operands, **options)
    elapsed_s = perf_counter() - start
    expected = np.einsum(subscripts, *hosts, optimize=True)
    check(library.get(result), expected, 1e-10 if dtype is np.float64 else 1e-4)
    return 1e3 * elapsed_s, result


def call_thrice(library: Library, case: str, dtype: type = np.float64) -> str:
    """Time three calls: a library computes the first, the second builds a kernel."""
    calls = [call_case(library, case, dtype, database=DATABASE) for _ in range(3)]
    kind = type(library.put(np.ones(3)))
    for _, result in calls:
        assert type(result) is kind, f"the result is a {type(result)}"
    return f"calls of {', '.join(f'{ms:.1f}' for ms, _ in calls)} ms"


def open_gpu() -> Any:
    from feinsum.targets.devices import open_device

    return open_device(DEVICE)


@register_step("versions")
def _report_versions() -> str:
    from feinsum.targets.cuda.nvrtc import find_nvrtc

    nvrtc, cupy = find_nvrtc(), importlib.import_module("cupy")
    runtime = cupy.cuda.runtime
    return (
        f"Python {sys.version.split()[0]}, CuPy {cupy.__version__}, driver "
        f"{runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}, NVRTC "
        f"{nvrtc.version} up to sm_{max(nvrtc.architectures)}"
    )


@register_step("device")
def _report_device() -> str:
    from feinsum.targets.cuda import CUDA
    from feinsum.targets.devices import find_trouble

    gpu = open_gpu()
    assert not (trouble := find_trouble(CUDA, gpu.device)), trouble
    return f"{gpu.device}: {gpu.facts}"


def add_calls() -> None:
    """Register a step for each library and case, and one that loads the library."""
    loaded: dict[str, Library] = {}

    def load(name: str) -> str:
        loaded[name] = LIBRARIES[name]()
        host = np.arange(3.0)
        assert np.array_equal(loaded[name].get(loaded[name].put(host)), host)
        return importlib.import_module(name).__version__

    def call(name: str, case: str) -> str:
        return call_thrice(loaded[name], case)

    for name in LIBRARIES:
        STEPS.append((f"{name}: loads", partial(load, name)))
        STEPS.extend((f"{name}: {case}", partial(call, name, case)) for case in CASES)


add_calls()


WAITED = ("gradient", "chain")
"""Cases that are built in the background."""
STORED: list[TemporaryDirectory[str]] = []
"""The cache of an earlier step, if it ran."""
BUILD_S = 25.0


@contextmanager
def use_folder(folder: str) -> Iterator[None]:
    """Use a separate cache and database, and no other settings of feinsum."""
    saved = {k: v for k, v in os.environ.items() if k.startswith("FEINSUM_")}
    for name in saved:
        del os.environ[name]
    os.environ["FEINSUM_CACHE_DIR"] = str(Path(folder, "cache"))
    os.environ["FEINSUM_DATABASE"] = str(Path(folder, "facts.sqlite"))
    try:
        yield
    finally:
        del os.environ["FEINSUM_CACHE_DIR"], os.environ["FEINSUM_DATABASE"]
        os.environ.update(saved)


def call_while_building(case: str) -> str:
    """Time calls before, during and after their build."""
    from feinsum.calling.gpu.cached import wait_for_builds

    library = load_cupy_library()
    if not STORED:
        STORED.append(TemporaryDirectory(ignore_cleanup_errors=True))
    get_remembered(Calls).gpu.clear()
    with use_folder(STORED[-1].name):
        times = [call_case(library, case)[0] for _ in range(3)]
        start = perf_counter()
        assert wait_for_builds(BUILD_S), f"no call is built after {BUILD_S:g} s"
        waited_s = perf_counter() - start
        times += [call_case(library, case)[0] for _ in range(2)]
        (cached,) = get_remembered(Calls).gpu.values()
    assert cached.build is not None, "an earlier process has built it"
    cached.build.result()  # raises the reason of a failed build
    before = ", ".join(f"{ms:.1f}" for ms in times[:3])
    after = ", ".join(f"{ms:.1f}" for ms in times[3:])
    return f"calls of {before} ms; {waited_s:.1f} s; {after} ms: {cached.repeated!r}"


STEPS.extend(
    (f"background build: {case}", partial(call_while_building, case)) for case in WAITED
)


def describe_first_call(library: Library, case: str) -> dict[str, Any]:
    """Describe the first call of this process: its times, and whether it was cached."""
    # the first use of a GPU by a process takes longer than a call
    library.get(library.put(np.ones(3)))
    first_ms, _ = call_case(library, case)
    (cached,) = get_remembered(Calls).gpu.values()
    return {
        "first_ms": round(first_ms, 1),
        "second_ms": round(call_case(library, case)[0], 1),
        "built": None if cached.repeated is None else repr(cached.repeated),
        "has_loopy": "loopy" in sys.modules,
    }


@register_step("background build: a later process")
def _call_in_later_process() -> str:
    assert STORED, "the step before has built nothing"
    text = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as empty:
        for word, folder in (("cold", empty), ("warm", STORED[-1].name)):
            with use_folder(folder):
                start = perf_counter()
                child = subprocess.run(
                    [sys.executable, __file__, "--first", WAITED[0]],
                    capture_output=True, text=True, timeout=STEP_S, check=False,
                )  # fmt: skip
                elapsed_s = perf_counter() - start
            assert child.returncode == 0, child.stderr.strip()[-300:]
            result = json.loads(child.stdout.splitlines()[-1])
            assert not result["has_loopy"], f"{word}: Loopy is loaded"
            assert (result["built"] is None) == (word == "cold"), f"{word}: {result}"
            text.append(f"{word}: {result}, {elapsed_s:.2f} s of the process")
    return "; ".join(text)


@register_step("cupy: single precision")
def _call_single() -> str:
    cases = ("product", "gradient")
    return "; ".join(
        call_thrice(load_cupy_library(), case, np.float32) for case in cases
    )


@register_step("cupy: integers")
def _call_integers() -> str:
    library, host = load_cupy_library(), np.arange(12, dtype=np.int32).reshape(3, 4)
    check(
        library.get(call_einsum("ij,kj->ik", *[library.put(host)] * 2)), host @ host.T
    )
    return ""


def multiply(a: Any, b: Any, **options: Any) -> str:
    """Multiply matrices, which may be refused."""
    library = load_cupy_library()

    def run() -> None:
        result = call_einsum("ij,jk->ik", a, b, **options)
        check(library.get(result), library.get(a) @ library.get(b))

    return describe_refusal(run)


@register_step("cupy: complex numbers")
def _call_complex() -> str:
    put = load_cupy_library().put
    a, b = (put(x + 1j * x[::-1]) for x in draw_arrays([(40, 30), (30, 20)]))
    return multiply(a, b)


@register_step("cupy: a transposed operand")
def _call_transposed() -> str:
    a, b = map(load_cupy_library().put, draw_arrays([(30, 40), (30, 20)]))
    return multiply(a.T, b)


@register_step("cupy: out=")
def _call_with_out() -> str:
    put = load_cupy_library().put
    a, b = map(put, draw_arrays([(40, 30), (30, 20)]))
    return multiply(a, b, out=put(np.zeros((40, 20))))


@register_step("cupy: an operand on the host among others")
def _call_mixed() -> str:
    library = load_cupy_library()
    (a,) = draw_arrays([(30, 30)])
    return describe_refusal(lambda: call_einsum("ij,jk->ik", library.put(a), a))


@register_step("cupy: another stream")
def _call_on_stream() -> str:
    cupy = importlib.import_module("cupy")
    a, b = draw_arrays([(500, 400), (400, 300)])
    with cupy.cuda.Stream(non_blocking=True) as stream:
        operands = cupy.asarray(a), cupy.asarray(b)
        for _ in range(20):
            result = call_einsum("ij,jk->ik", *operands)
            check(result.get(stream=stream), a @ b)
    return ""


@register_step("torch: another stream")
def _call_on_torch_stream() -> str:
    torch, library = importlib.import_module("torch"), load_torch_library()
    a, b = draw_arrays([(500, 400), (400, 300)])
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            operands = library.put(a) + 1.0, library.put(b)
            check(library.get(call_einsum("ij,jk->ik", *operands) * 1.0), (a + 1) @ b)
    return ""


@register_step("torch: integers")
def _call_torch_integers() -> str:
    library, host = load_torch_library(), np.arange(12, dtype=np.int32).reshape(3, 4)
    for _ in range(3):
        operands = [library.put(host) for _ in range(2)]
        result = feinsum.call_einsum("ij,kj->ik", *operands, database=DATABASE)
        check(library.get(result), host @ host.T)
    return ""


@register_step("cupy: memory that a stream still reads")
def _check_memory_in_use() -> str:
    """Check that memory is not reused while a stream reads it."""
    cupy = importlib.import_module("cupy")
    (a,) = draw_arrays([(3000, 3000)])
    with cupy.cuda.Stream(non_blocking=True) as stream:
        operand = cupy.asarray(a)
        call_einsum("ij->i", a, device=DEVICE)
        for _ in range(5):
            product = operand @ operand
            result = product + (freed := operand + 1.0)
            del freed
            check(call_einsum("ij->i", a, device=DEVICE), a.sum(1))
            check(result.get(stream=stream), a @ a + a + 1.0)
    return ""


@register_step("cutensor: a contraction of arrays with other strides")
def _contract_by_cutensor() -> str:
    from feinsum.targets.cuda.cutensor import load_cutensor

    loaded = load_cutensor()
    if loaded is None:
        return "not installed"
    cupy = importlib.import_module("cupy")
    a, b = draw_arrays([(30, 40, 50), (50, 20, 30)])
    result = cupy.empty((20, 40))
    operands = [cupy.asarray(a), cupy.asarray(b.swapaxes(0, 1).copy()).swapaxes(0, 1)]
    modes = [(0, 1, 2), (2, 3, 0), (3, 1)]
    stream = cupy.cuda.get_current_stream()
    open_gpu().session.contract(modes, [*operands, result], stream)
    check(result.get(), np.einsum("ijk,kli->lj", a, b))
    return loaded[1]


@register_step("plans: 4 ranks, blocks on a GPU")
def _run_ranks() -> str:
    starter = shutil.which("mpiexec")
    if starter is None:
        return "no MPI is installed"
    command = [starter, "-n", "4", sys.executable, "-m", "benchmarks.gpu.ranks"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=STEP_S, check=False
    )
    assert ended.returncode == 0, f"{ended.stdout} {ended.stderr}"
    return ended.stdout


@register_step("out of memory")
def _exhaust_memory() -> str:
    cupy = importlib.import_module("cupy")
    a = cupy.ones(32768)
    free, _ = cupy.cuda.runtime.memGetInfo()
    reserved = cupy.empty(max(free - (2 << 30), 1), np.uint8)
    try:
        call_einsum("i,j->ij", a, a.copy())
    except MeasurementError as error:
        text = f"refused: {error}"
    else:
        raise AssertionError("8.6 GB were allocated where 2 GB are free")
    finally:
        del reserved
        cupy.get_default_memory_pool().free_all_blocks()
    check(call_einsum("i,i->i", a, a).get(), np.ones(32768))
    return text


def make_gradient() -> tuple[Any, Any, dict[str, Any]]:
    """Return an einsum, a Loopy kernel of it for Loopy's own target, and arguments."""
    import loopy as lp

    from feinsum.codegen import generate_loopy

    subscripts, shapes = CASES["gradient"]
    arrays = [feinsum.array(n, s) for n, s in zip("abc", shapes, strict=True)]
    einsum = feinsum.einsum(subscripts, *arrays)
    unit = generate_loopy(einsum).copy(target=lp.CudaTarget())
    return einsum, unit, dict(zip("abc", draw_arrays(shapes), strict=True))


def retrieve(unit: Any, database: InMemoryStore) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeinsumWarning)
        return feinsum.retrieve(unit, device=DEVICE, database=database)


@register_step("retrieve: a Loopy kernel without facts")
def _retrieve_kernel() -> str:
    _, unit, values = make_gradient()
    result = retrieve(unit, InMemoryStore())
    compare(result, values, CASES["gradient"][0])
    return "untransformed" if result is unit else "with a recipe"


def compare(unit: Any, values: dict[str, Any], subscripts: str) -> Any:
    """Run a kernel, compare the result with numpy's, and return it bound."""
    from feinsum.measure import compile_kernel

    gpu = open_gpu()
    bound = compile_kernel(gpu.prepare(unit), gpu).bind(values)
    bound.poison()
    bound.run()
    expected = np.einsum(subscripts, *values.values(), optimize=True)
    (result,) = bound.read().values()
    check(result, expected)
    return bound


def build_recommended(
    family: str, subscripts: str, shapes: list[tuple[int, ...]]
) -> Any:
    """Compile and check the first recipe of a family."""
    from feinsum.codegen import generate_loopy
    from feinsum.ir import Workload
    from feinsum.measure.reference import NEVER_LONG
    from feinsum.raising import identify_as_einsum
    from feinsum.transforms import apply_spec, find_transform, list_configurations

    names = "abc"[: len(shapes)]
    arrays = [feinsum.array(n, s) for n, s in zip(names, shapes, strict=True)]
    einsum = feinsum.einsum(subscripts, *arrays)
    unit, nest = identify_as_einsum(
        generate_loopy(einsum), einsum, long_extent=NEVER_LONG
    )
    spec = next(
        iter(list_configurations(find_transform(family, 1), Workload(einsum, {})))
    )
    values = dict(zip(names, draw_arrays(shapes), strict=True))
    return compare(apply_spec(spec, unit, nest), values, subscripts)


@register_step("families: each by its first recipe")
def _build_families() -> str:
    chosen = {"gpu_elements": "gradient", "gpu_product": "product",
              "gpu_rows": "row sum", "gpu_points": "pointwise"}  # fmt: skip
    for family, case in chosen.items():
        build_recommended(family, *CASES[case])
    return ", ".join(chosen)


@register_step("graph of 50 launches")
def _time_graph() -> str:
    bound = build_recommended("gpu_points", "i,i->i", [(5000,), (5000,)])
    built = bound.compiled.built
    arguments = {k: getattr(s, "array", s) for k, s in bound.slots.items()}
    replay = built.repeated(arguments, 50)
    bound.poison()
    session = built.opened.session
    replay()
    session.synchronize()
    assert not any(np.isnan(x).any() for x in bound.read().values())
    launch = built.launcher(arguments)
    launched = session.timed(lambda: [launch() for _ in range(50)])
    replayed = session.timed(replay)
    return f"launches {launched * 1e6:.0f} us, graph {replayed * 1e6:.0f} us"


@register_step("timing by events, warm and flushed")
def _time_by_events() -> str:
    bound = build_recommended("gpu_points", "i,i->i", [(1 << 20,), (1 << 20,)])
    built = bound.compiled.built
    arguments = {k: getattr(s, "array", s) for k, s in bound.slots.items()}
    fastest = []
    for is_flushed in (False, True):
        opened = replace(built.opened, flushes_cache=is_flushed)
        timed = replace(built, opened=opened)
        fastest.append(min(timed.run(arguments, "cuda-events") for _ in range(20)))
    warm, flushed = (f"{s * 1e6:.1f} us" for s in fastest)
    return f"24 MiB: warm {warm}, flushed {flushed}, by wall {bound.run('wall'):.2g} s"


@register_step("bandwidth and peaks")
def _measure_peaks() -> str:
    from feinsum.measure import measure_peaks

    peaks = measure_peaks(open_gpu(), repeats=3)
    rates = {k: f"{v / 1e12:.1f}" for k, v in peaks.operations_per_s.items()}
    caches = {k: f"{v / 1e12:.2f}" for k, v in peaks.cache_bytes_per_s.items()}
    return (
        f"{peaks.bandwidth_bytes_per_s / 1e12:.2f} TB/s, TFLOP/s {rates}, caches "
        f"{caches} TB/s of {dict(peaks.cache_bytes)} bytes"
    )


@register_step("autotune: 4 trials, then retrieve")
def _tune_gradient() -> str:
    einsum, unit, values = make_gradient()
    store = InMemoryStore()
    report = feinsum.autotune(
        einsum, device=DEVICE, database=store, n_trials=4, budget_s=STEP_S / 2
    )
    result = retrieve(unit, store)
    assert result is not unit, f"nothing is retrieved after {report}"
    compare(result, values, CASES["gradient"][0])
    return str(report)


ILLEGAL = """
KERNEL(illegal, __global float *x, float a)
{
  x[(size_t) 1 << 40] = a;
}
"""


def run_illegal() -> None:
    """Run a kernel with an illegal address, and print the error."""
    import cupy

    program = open_gpu().program(ILLEGAL, "illegal")
    try:
        program.run((cupy.zeros(8, np.float32), np.float32(1)), 8)
    except FeinsumError as error:
        print(f"{type(error).__name__}: {error}")


@register_step("an illegal address, in a child")
def _run_illegal_in_child() -> str:
    child = subprocess.run(
        [sys.executable, __file__, "--illegal"],
        capture_output=True, text=True, timeout=STEP_S, check=False,
    )  # fmt: skip
    text = child.stdout.strip()
    assert text, f"exit code {child.returncode}: {child.stderr.strip()[-300:]}"
    assert "not its own" in text, text
    build_recommended("gpu_points", "i,i->i", [(50,), (50,)])
    return f"exit code {child.returncode}, {text}"


def describe_refusal(run: Callable[[], object]) -> str:
    """Run something that may be refused with an error of feinsum."""
    try:
        run()
    except FeinsumError as error:
        return f"refused: {type(error).__name__}: {error}"
    return ""


@contextmanager
def _time_limit() -> Iterator[None]:
    def over(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not finished within {STEP_S} s")

    signal.signal(signal.SIGALRM, over)
    signal.alarm(STEP_S)
    try:
        yield
    finally:
        signal.alarm(0)


@dataclass
class Report:
    """Prints the steps, and logs tracebacks of failures."""

    log: Path
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, outcome: str, text: str, seconds: float) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        text = " ".join(text.split())
        print(f"{outcome:7} {seconds:6.2f} s  {name:32} {text}", flush=True)

    def trace(self, name: str) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as file:
            file.write(f"== {name}\n{traceback.format_exc()}\n")


def _run_step(name: str, function: Callable[[], str], report: Report) -> None:
    start = perf_counter()
    try:
        with _time_limit():
            text, outcome = function(), "ok"
    except Exception as error:  # noqa: BLE001  (the next step is tried)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        location = f"{Path(frame.filename).name}:{frame.lineno}"
        text, outcome = f"{type(error).__name__}: {error} ({location})", "failed"
        report.trace(name)
    report.add(name, outcome, text, perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--budget", type=float, default=100, help="seconds for all steps"
    )
    parser.add_argument("--only", default="", help="steps whose names contain this")
    parser.add_argument("--log", type=Path, default=Path(".cache/gpu/smoke.log"))
    parser.add_argument("--illegal", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--first", choices=WAITED, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first:
        print(json.dumps(describe_first_call(load_cupy_library(), options.first)))
        return 0
    if options.illegal:
        run_illegal()
        return 0
    from feinsum.errors import DeviceUnavailableError
    from feinsum.targets.cuda import CUDA

    try:
        CUDA.devices()
    except DeviceUnavailableError as error:
        print(f"there is no GPU: {error}")
        return NO_GPU
    report, end = Report(options.log), perf_counter() + options.budget
    for name, function in STEPS:
        if options.only not in name:
            continue
        if perf_counter() > end:
            report.add(name, "skipped", "the time is over", 0)
            continue
        _run_step(name, function, report)
    print(", ".join(f"{n} {outcome}" for outcome, n in sorted(report.counts.items())))
    return FAILED if "failed" in report.counts else 0


if __name__ == "__main__":
    raise SystemExit(main())
