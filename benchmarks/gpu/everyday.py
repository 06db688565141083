"""Time calls on arrays of a GPU, untuned, and of rivals.

``python -m benchmarks.gpu.everyday --out FILE`` requires feinsum, CuPy, JAX and torch.
See :mod:`benchmarks.gpu.race`; the smallest entries come first. Entries are those of
the everyday suite, and calls in half precision.

Contenders are timed in turns: one synchronized call, and several calls in a row, of
which only the last is synchronized.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

import feinsum
from benchmarks.experiments.entries import Entry, list_everyday, list_halves
from benchmarks.gpu import report
from benchmarks.gpu.race import Prepared, Race, make_parser
from benchmarks.gpu.report import OURS
from benchmarks.gpu.rivals import COMPILED, RIVALS, Call, list_versions, time_call
from feinsum.calling.gpu import building
from feinsum.calling.kernel_cache import Calls
from feinsum.dtypes import is_half, is_inexact
from feinsum.errors import DeviceLostError
from feinsum.memory import get_remembered
from feinsum.records import InMemoryStore
from feinsum.targets.cuda.cupy_errors import load_cupy
from feinsum.targets.cuda.cupy_session import CupySession

N_IN_A_ROW = 20
ROUNDS = 21
LONG_S = 0.02
"""Duration above which calls are timed in fewer rounds."""


def main() -> int:
    options = _parse_options()
    load_cupy()
    entries = list_entries(options.sizes)
    race = Race("benchmarks.gpu.everyday", [*map(_format_name, entries)], options)
    if options.worker is None:
        return race.run()
    messages, store = _collect_messages(), InMemoryStore()
    _patch_timing(race)
    rivals = [name for name in RIVALS if options.compiled or name != COMPILED]

    def prepare(k: int) -> Prepared:
        messages.clear()
        name = {"name": _format_name(entries[k])}
        try:
            calls, line = prepare_entry(entries[k], store, rivals)
        except DeviceLostError as error:
            report.append_line(options.out, {**name, "failed": [f"{error!r:.300}"]})
            raise
        except Exception as error:  # noqa: BLE001  (others can be built)
            return {}, {**name, "failed": [f"{error!r:.300}"]}
        load_cupy().get_default_memory_pool().free_all_blocks()
        return calls, {**line, "messages": [*messages]}

    race.work(prepare, time_calls, race.reserve)
    return 0


def list_entries(sizes: Collection[str]) -> list[Entry]:
    """Return the entries of these groups, the smallest ones first."""
    entries = [e for e in (*list_everyday(), *list_halves()) if e.group in sizes]
    return sorted(entries, key=lambda entry: entry.footprint_bytes)


class _Messages(logging.Handler):
    """Collects log messages about contenders."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage()[:300])


def _collect_messages() -> list[str]:
    """Return a list to which messages are appended while calls are built."""
    messages: list[str] = []
    logger = logging.getLogger(building.__name__)
    logger.setLevel(logging.DEBUG)
    logger.addHandler(_Messages(messages))
    return messages


def _patch_timing(race: Race) -> None:
    """Let our calls time their contenders while no other process times anything."""
    timed = CupySession.timed

    def time_alone(session: CupySession, run: Any, stream: Any = None) -> float:
        with race.reserve():
            return timed(session, run, stream)

    CupySession.timed = time_alone  # type: ignore[method-assign]


def _format_name(entry: Entry) -> str:
    return f"{entry.name} {entry.group}"


def draw_values(entry: Entry, xp: Any) -> dict[str, Any]:
    """Draw values uniform in 0.5 to 1.5, real and imaginary, or integers from 0 to 9.

    Halves are between -0.5 and 0.5, so that their sums do not overflow.

    Args:
        xp: CuPy, or numpy.
    """
    rng, dtype = xp.random.default_rng(0), np.dtype(entry.dtype)
    factor, least = (1.0, 0.5) if is_inexact(dtype) else (10.0, 0.0)
    if is_half(dtype):
        least = -0.5

    def drawn(shape: tuple[int, ...]) -> Any:
        values = rng.random(shape) * factor + least
        if dtype.kind == "c":
            values = values + 1j * (rng.random(shape) * factor + least)
        return values.astype(dtype)

    return {name: drawn(shape) for name, shape in entry.arrays.items()}


def prepare_entry(
    entry: Entry, store: InMemoryStore, rivals: Sequence[str]
) -> tuple[dict[str, Any], Any]:
    """Prepare the contenders; return their calls, and a line for the results.

    Raises:
        DeviceLostError: if the GPU refuses everything from now on.
    """
    cupy = load_cupy()
    values = draw_values(entry, cupy)
    operands = [values[f.name] for row in entry.rows for f in row]
    stream = cupy.cuda.get_current_stream()
    line: dict[str, Any] = {
        "name": _format_name(entry),
        "suite": entry.suite,
        "subscripts": entry.subscripts,
        "dtype": entry.dtype,
        "flops": entry.flops,
        "entry_bytes": entry.footprint_bytes,
        "device": describe_gpu(),
    }

    def ours() -> Any:
        return feinsum.call_einsum(entry.subscripts, *operands, database=store)

    try:
        for key in ("first_s", "second_s", "third_s"):
            start = time.perf_counter()
            result = ours()
            stream.synchronize()
            line[key] = time.perf_counter() - start
    except DeviceLostError:
        raise
    except feinsum.FeinsumError as error:
        return {}, {**line, "failed": [f"{error!r:.300}"]}
    line["choice"] = _describe_choice()
    calls: dict[str, Call] = {OURS: (ours, lambda _: stream.synchronize())}
    calls |= _prepare_rivals(rivals, entry, values, line)
    results = {name: call()[0] for name, (call, _) in calls.items() if name != OURS}
    if is_half(result.dtype):
        wide = [operand.astype(np.float32) for operand in operands]
        expected = cupy.einsum(entry.subscripts, *wide, optimize=True)
    else:
        expected = results.get("cupy")
    if expected is not None:
        line["errors"] = compute_errors({OURS: result, **results}, expected, cupy)
    return calls, line


def describe_gpu() -> dict[str, Any]:
    """Describe the GPU and the libraries, as contests do."""
    runtime = load_cupy().cuda.runtime
    version = runtime.driverGetVersion()
    return {
        "name": runtime.getDeviceProperties(0)["name"].decode(),
        "driver": f"{version // 1000}.{version % 1000 // 10}",
        "versions": list_versions(),
    }


def compute_errors(
    results: Mapping[str, Any], expected: Any, xp: Any
) -> dict[str, float]:
    """Return the error of each result, relative to the largest expected entry.

    Args:
        xp: CuPy, or numpy.
    """
    # integers wrap around, booleans have no difference
    wide = np.result_type(expected.dtype, np.float64)
    expected = expected.astype(wide)
    scale = float(abs(expected).max()) or 1.0

    def largest_error(result: Any) -> float:
        array = result if isinstance(result, xp.ndarray) else xp.from_dlpack(result)
        return float(abs(array.astype(wide) - expected).max())

    return {name: largest_error(result) / scale for name, result in results.items()}


def _describe_choice() -> str:
    """Describe the call that was built last."""
    built = [
        call.repeated for call in get_remembered(Calls).gpu.values() if call.repeated
    ]
    return repr(built[-1]) if built else ""


def _prepare_rivals(
    names: Sequence[str], entry: Entry, values: Any, line: dict[str, Any]
) -> dict[str, Call]:
    """Return the rivals that evaluate the entry; note why others do not."""
    rows = [[{"kind": "Plain", "name": f.name} for f in row] for row in entry.rows]
    workload = {"subscripts": entry.subscripts, "rows": rows}
    calls = {}
    for name in names:
        try:
            call, finish = RIVALS[name](workload, values)
            finish(call())
            calls[name] = call, finish
        except Exception as error:  # noqa: BLE001  (whatever a rival's library raises)
            line.setdefault("refused", {})[name] = f"{error!r:.200}"
    return calls


def time_calls(calls: Mapping[str, Call]) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of a synchronized call, and of each of several in a row."""
    single: dict[str, list[float]] = {name: [] for name in calls}
    several: dict[str, list[float]] = {name: [] for name in calls}
    longest = max(time_call(call, 1) for call in calls.values())
    for _ in range(3 if longest > LONG_S else ROUNDS):
        for name, call in calls.items():
            single[name].append(time_call(call, 1))
            several[name].append(time_call(call, N_IN_A_ROW))
    return {"one_s": single, "seconds": several}


def _parse_options() -> argparse.Namespace:
    parser = make_parser(__doc__, budget=90.0)
    parser.add_argument("--sizes", nargs="+", default=["large"])
    parser.add_argument("--compiled", action="store_true",
                        help="torch.compile, too: seconds per entry")  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
