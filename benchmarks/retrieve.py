"""Where the time of a retrieval goes: raising, canonical form, look-up, recipes.

Kernels captured from real programs, and one of 71 instructions in 8 nests, are
retrieved against a database of many facts. What Loopy takes of it (inference of
types, the transformations of a recipe, generation of code) stands apart.

All times are wall-clock, of this process, medians over rounds that visit every
kernel in turn; the first round is left out.
"""

from __future__ import annotations

import argparse
import re
import sys
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
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from feinsum import raise_kernel
from feinsum.canonical import WorkloadKey
from feinsum.canonical.form import compute_form
from feinsum.db import SqlStore, open_store
from feinsum.measure import open_device
from feinsum.records import TuningRecord
from feinsum.retrieval import look_up
from feinsum.transforms import find_applicable_transforms, list_configurations

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.retrieval.facts import fact  # noqa: E402 (of the same tree)

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

    of_stage: dict[str, list[float]] = field(
        default_factory=lambda: {stage: [] for stage in STAGES}
    )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.of_stage[name].append((time.perf_counter() - start) * 1e3)

    def middle(self, name: str) -> float:
        return median(self.of_stage[name][1:] or self.of_stage[name])


def operators(n_elements: int = 1296) -> lp.TranslationUnit:
    """A kernel of 71 instructions in 8 nests, three of them batches of sums."""
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
        domains.append(_own("{[e,i,j,x]: " + box_ + "}", a))
        for k in range(n):
            value = values.get(a, "detj[e]*w{k}[e,i]").format(
                k=k % (6 + 6 * (a == "div"))
            )
            text.append(_own(f"{a}{k}[e,i] = {value}", a) + f" {{id={a}_{k}}}")
    return lp.make_kernel(domains, "\n".join(text), _arguments(batches, n_elements),
                          name="operators", lang_version=(2018, 2))  # fmt: skip


def _own(text: str, nest: str) -> str:
    """The text with the inames of one nest."""
    return re.sub(r"\b([eijx])\b", rf"{nest}_\1", text)


def _arguments(batches: dict[str, int], n_elements: int) -> list[lp.ArrayArg]:
    def arg(names: str, *shape: int) -> lp.ArrayArg:
        return lp.GlobalArg(names, np.float64, shape=shape)

    outputs = [f"{a}{k}" for a, n in batches.items() for k in range(n)]
    inputs = [*(f"u{k}" for k in range(12)), *(f"w{k}" for k in range(6))]
    return [
        arg("J", 3, n_elements),
        arg("D", 3, 20, 20),
        arg("G,M", 20, 20),
        arg("detj", n_elements),
        arg(",".join([*outputs, *inputs]), n_elements, 20),
    ]


KERNELS: dict[str, Callable[[], lp.TranslationUnit]] = {
    **{
        name: lambda name=name: import_module(f"tests.raising.kernels.{name}").build()
        for name in CAPTURED
    },
    "71 instructions": operators,
}


def filled(path: Path, n_records: int, units: Iterable[lp.TranslationUnit]) -> SqlStore:
    """A database of as many facts, with one for every nest of the kernels."""
    einsums = {nest.form.einsum for unit in units for nest in raise_kernel(unit).raised}
    facts = [fact for e in einsums if (fact := _fact_of(e)) is not None]
    others = (_other(facts[0], k) for k in range(n_records - len(facts)))
    store = open_store(path)
    store.add_all(facts)
    for _ in track(range(max(1, n_records // CHUNK)), "facts", console=STDERR):
        store.add_all([fact for _, fact in zip(range(CHUNK), others, strict=False)])
    return store


def _fact_of(einsum) -> TuningRecord | None:
    for transform in find_applicable_transforms(einsum):
        for spec in list_configurations(transform, einsum):
            return fact(einsum, spec)
    return None


def _other(record: TuningRecord, k: int) -> TuningRecord:
    """A fact of another workload."""
    key = WorkloadKey(f"{record.workload[:-8]}{k:08x}")
    return replace(record, workload=key, workload_text=f"workload {k}")


def retrieve_in_stages(
    t_unit: lp.TranslationUnit, store: SqlStore, times: Times
) -> None:
    lp.infer_unknown_types(t_unit, expect_completion=False)
    with times.stage("types"):  # once more: Loopy keeps some of what it finds
        lp.infer_unknown_types(t_unit, expect_completion=False)
    with times.stage("raise"):  # infers types as well; taken off below
        raised = raise_kernel(t_unit)
    times.of_stage["raise"][-1] -= times.of_stage["types"][-1]
    with times.stage("form"):
        forms = [compute_form(nest.einsum) for nest in raised.raised]
        keys = [form.key for form in forms]
    with times.stage("look-up"):
        for key in keys:
            store.query(key)
    with times.stage("recipe"):  # the whole retrieval; the rest is taken off below
        retrieval = look_up(t_unit, database=store)
    times.of_stage["recipe"][-1] -= sum(
        times.of_stage[stage][-1] for stage in ("types", "raise", "form", "look-up")
    )
    assert not [nest.why_unchanged for nest in retrieval.unchanged]
    with times.stage("code"):
        lp.generate_code_v2(retrieval.t_unit)


def report(console: Console, times_of: dict[str, Times]) -> None:
    table = Table(title="milliseconds, medians", title_justify="left", box=box.SIMPLE,
                  pad_edge=False)  # fmt: skip
    table.add_column("kernel", no_wrap=True, min_width=20)
    for stage in (*STAGES, "ours"):
        table.add_column(f"{stage}*" if stage in LOOPYS else stage, justify="right")
    for name, times in times_of.items():
        cells = [times.middle(stage) for stage in STAGES]
        ours = sum(times.middle(stage) for stage in STAGES if stage not in LOOPYS)
        table.add_row(name.partition("_")[0], *map(_shown, (*cells, ours)))
    console.print(table)
    console.print("* of Loopy, or for the most part; ours: raise, form and look-up")


def _shown(milliseconds: float) -> str:
    return f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6, help="rounds (default: 6)")
    parser.add_argument("--records", type=int, default=100_000,
                        help="facts in the database (default: 100000)")  # fmt: skip
    parser.add_argument("--only", choices=list(KERNELS), nargs="+",
                        default=list(KERNELS), help="some of the kernels")  # fmt: skip
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    console = Console()
    lp.set_caching_enabled(False)
    with tempfile.TemporaryDirectory() as folder:
        units = {name: KERNELS[name]() for name in options.only}
        store = filled(Path(folder) / "facts.sqlite", options.records, units.values())
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
