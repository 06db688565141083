"""Time the stages of a retrieval: raising, canonical form, look-up, recipes.

Kernels captured from real programs, and one of 71 instructions in 8 nests, are
retrieved against a database of many facts. Stages that are mostly Loopy's (inference of
types, transformations of a recipe, generation of code) are marked.

Times are wall-clock medians over rounds that visit every kernel once; the first round
is left out.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from statistics import median

import loopy as lp
import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.tables import make_table
from feinsum import raise_kernel
from feinsum.canonical import WorkloadKey
from feinsum.canonical.form import compute_form
from feinsum.db import SqlStore, open_store
from feinsum.measure import open_device
from feinsum.records import TuningRecord
from feinsum.retrieval import look_up
from feinsum.transforms import find_applicable_transforms, list_configurations
from tests.retrieval.facts import fact

STAGES = ("types", "raise", "form", "look-up", "recipe", "code")
CHUNK = 5000
STDERR = Console(stderr=True)
LOOPYS = {"types", "recipe", "code"}
CAPTURED = (
    "k10_grudge_lazy_inverse_mass",
    "k21_pytato_grad",
    "k07_grudge_lazy_local_grad",
    "k16_grudge_be_vec_grad_fused",
)


@dataclass
class Times:
    """Milliseconds of each stage, round by round."""

    by_stage: dict[str, list[float]] = field(
        default_factory=lambda: {stage: [] for stage in STAGES}
    )

    @contextmanager
    def time_stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.by_stage[name].append((time.perf_counter() - start) * 1e3)

    def compute_median(self, name: str) -> float:
        return median(self.by_stage[name][1:] or self.by_stage[name])


def make_operators(n_elements: int = 1296) -> lp.TranslationUnit:
    """Make a kernel of 71 instructions in 8 nests, three of them batches of sums."""
    batches = {
        "div": 12,
        "grad": 6,
        "mass": 6,
        "p": 12,
        "q": 12,
        "r": 10,
        "s": 8,
        "t": 5,
    }
    values = {
        "div": "sum([j,x], J[x,e]*D[x,i,j]*u{k}[e,j])",
        "grad": "sum(j, G[i,j]*(w{k}[e,j] + 0.5*u{k}[e,j]))",
        "mass": "sum(j, M[i,j]*w{k}[e,j])/detj[e]",
    }
    text, domains = [], []
    for a, n in batches.items():
        box_ = f"0<=e<{n_elements} and 0<=i,j<20 and 0<=x<3"
        domains.append(_prefix_inames("{[e,i,j,x]: " + box_ + "}", a))
        for k in range(n):
            value = values.get(a, "detj[e]*w{k}[e,i]").format(
                k=k % (6 + 6 * (a == "div"))
            )
            text.append(
                _prefix_inames(f"{a}{k}[e,i] = {value}", a) + f" {{id={a}_{k}}}"
            )
    arguments = _make_arguments(batches, n_elements)
    return lp.make_kernel(domains, "\n".join(text), arguments, name="operators",
                          lang_version=(2018, 2))  # fmt: skip


def _prefix_inames(text: str, nest: str) -> str:
    """Prefix the inames in the text with the name of a nest."""
    return re.sub(r"\b([eijx])\b", rf"{nest}_\1", text)


def _make_arguments(batches: dict[str, int], n_elements: int) -> list[lp.ArrayArg]:
    def make_arg(names: str, *shape: int) -> lp.ArrayArg:
        return lp.GlobalArg(names, np.float64, shape=shape)

    outputs = [f"{a}{k}" for a, n in batches.items() for k in range(n)]
    inputs = [*(f"u{k}" for k in range(12)), *(f"w{k}" for k in range(6))]
    return [
        make_arg("J", 3, n_elements),
        make_arg("D", 3, 20, 20),
        make_arg("G,M", 20, 20),
        make_arg("detj", n_elements),
        make_arg(",".join([*outputs, *inputs]), n_elements, 20),
    ]


KERNELS: dict[str, Callable[[], lp.TranslationUnit]] = {
    **{
        name: lambda name=name: import_module(f"tests.raising.kernels.{name}").build()
        for name in CAPTURED
    },
    "71 instructions": make_operators,
}


def fill_database(
    path: Path, n_records: int, units: Iterable[lp.TranslationUnit]
) -> SqlStore:
    """Create a database of many facts, with one for every nest of the kernels."""
    einsums = {nest.form.einsum for unit in units for nest in raise_kernel(unit).raised}
    facts = [fact for e in einsums if (fact := _make_fact(e)) is not None]
    others = (_change_workload(facts[0], k) for k in range(n_records - len(facts)))
    store = open_store(path)
    store.add_all(facts)
    for _ in track(range(max(1, n_records // CHUNK)), "facts", console=STDERR):
        store.add_all([fact for _, fact in zip(range(CHUNK), others, strict=False)])
    return store


def _make_fact(einsum) -> TuningRecord | None:
    for transform in find_applicable_transforms(einsum):
        for spec in list_configurations(transform, einsum):
            return fact(einsum, spec)
    return None


def _change_workload(record: TuningRecord, k: int) -> TuningRecord:
    """Return a fact of another workload."""
    key = WorkloadKey(f"{record.workload[:-8]}{k:08x}")
    return replace(record, workload=key, workload_text=f"workload {k}")


def retrieve_in_stages(
    t_unit: lp.TranslationUnit, store: SqlStore, times: Times
) -> None:
    lp.infer_unknown_types(t_unit, expect_completion=False)
    with times.time_stage("types"):  # the second time: Loopy caches some results
        lp.infer_unknown_types(t_unit, expect_completion=False)
    with times.time_stage("raise"):  # includes inference of types, subtracted below
        raised = raise_kernel(t_unit)
    times.by_stage["raise"][-1] -= times.by_stage["types"][-1]
    with times.time_stage("form"):
        forms = [compute_form(nest.einsum) for nest in raised.raised]
        keys = [form.key for form in forms]
    with times.time_stage("look-up"):
        for key in keys:
            store.query(key)
    with times.time_stage(
        "recipe"
    ):  # the whole retrieval; other stages are subtracted below
        retrieval = look_up(t_unit, database=store)
    times.by_stage["recipe"][-1] -= sum(
        times.by_stage[stage][-1] for stage in ("types", "raise", "form", "look-up")
    )
    assert not [nest.why_unchanged for nest in retrieval.unchanged]
    with times.time_stage("code"):
        lp.generate_code_v2(retrieval.t_unit)


def report(console: Console, times_of: dict[str, Times]) -> None:
    heads = [f"{stage}*" if stage in LOOPYS else stage for stage in (*STAGES, "ours")]
    table = make_table(["kernel"], heads, title="milliseconds, medians",
                       title_justify="left")  # fmt: skip
    table.columns[0].min_width = 20
    for name, times in times_of.items():
        cells = [times.compute_median(stage) for stage in STAGES]
        ours = sum(
            ms for stage, ms in zip(STAGES, cells, strict=True) if stage not in LOOPYS
        )
        table.add_row(name.partition("_")[0], *map(_format_ms, (*cells, ours)))
    console.print(table)
    console.print("* of Loopy, or for the most part; ours: raise, form and look-up")


def _format_ms(milliseconds: float) -> str:
    return f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6, help="samples (default: 6)")
    parser.add_argument("--records", type=int, default=100_000,
                        help="facts in the database (default: 100000)")  # fmt: skip
    parser.add_argument("--only", choices=list(KERNELS), nargs="+",
                        default=list(KERNELS), help="kernels")  # fmt: skip
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    console = Console()
    lp.set_caching_enabled(False)
    with tempfile.TemporaryDirectory() as folder:
        units = {name: KERNELS[name]() for name in options.only}
        path = Path(folder) / "facts.sqlite"
        store = fill_database(path, options.records, units.values())
        console.print(f"{len(store)} facts; device: {open_device().device}")
        times_of = {name: Times() for name in options.only}
        steps = range(options.rounds)
        for _ in track(steps, "rounds", console=STDERR):
            for name, unit in units.items():
                retrieve_in_stages(unit, store, times_of[name])
        store.close()
    report(console, times_of)


if __name__ == "__main__":
    main()
