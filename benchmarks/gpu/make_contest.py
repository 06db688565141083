"""Makes a contest: kernels with functional operands, and what rivals evaluate.

``python -m benchmarks.gpu.make_contest FOLDER --after BUNDLE`` writes a bundle like
those of ``benchmarks.gpu.bundle``, whose operands are the functions of the suites. The
candidates are the fastest recipes of packaged facts and of bundles that ran on a GPU,
and predicted ones. ``contest.py`` in the folder times them and the rivals.
"""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import loopy as lp
import numpy as np
from loopy.symbolic import SubstitutionMapper, parse
from pymbolic import var
from pymbolic.mapper.substitutor import make_subst_func
from rich.console import Console
from rich.progress import Progress

from benchmarks.experiments import functions
from benchmarks.experiments.entries import Entry, both_suites
from benchmarks.experiments.functions import Function
from benchmarks.gpu import contest, report, rivals
from benchmarks.gpu.bundle import runner
from benchmarks.gpu.bundle.candidates import candidates
from benchmarks.gpu.bundle.folder import results_of, write_bundle
from benchmarks.gpu.bundle.workload import (
    SEED,
    BuiltWorkload,
    WorkloadBuilder,
    document_of,
)
from feinsum.canonical import CanonicalForm, canonicalize
from feinsum.db.shipped import get_shipped_facts
from feinsum.errors import FeinsumError
from feinsum.ir import generalize
from feinsum.measure.cases import Case, make_bare_case
from feinsum.measure.reference import NEVER_LONG
from feinsum.raising import identify_as_einsum
from feinsum.records import TransformSpec
from feinsum.tuning.problem import TuningProblem

N_BEST, N_PREDICTED, N_UNMEASURED = 2, 1, 4
"""Recipes of a workload: the fastest that were measured, predicted ones besides these,
and predicted ones if none was measured.
"""
MODULES = contest, report, rivals, functions
"""Copied to the folder of a contest, beside the runner."""


def main() -> None:
    options = _options()
    known = recorded(options.architecture)
    for folder in options.after:
        for key, seconds in results_of(folder).items():
            known.setdefault(key, {}).update(seconds)
    entries = mixed(both_suites(options.only, max_gflop=options.max_gflop))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("compile", total=len(entries))
        exported = write_bundle(
            options.folder,
            options.architecture,
            partial(workload_of, known, options.architecture),
            entries,
            on_workload=lambda n: progress.update(task, completed=n),
        )
    copy_modules(options.folder)
    print(f"{exported.n_candidates} kernels of {exported.n_workloads} entries, "
          f"{exported.n_bytes / 1e6:.1f} MB, in {options.folder}; "
          f"left out: {dict(exported.left_out)}")  # fmt: skip


def copy_modules(folder: Path) -> None:
    for module in MODULES:
        shutil.copy(str(module.__file__), folder)


def recorded(architecture: str) -> dict[str, dict[TransformSpec, float]]:
    """The seconds of recipes in packaged facts of GPUs, by key."""
    known: dict[str, dict[TransformSpec, float]] = {}
    for record in get_shipped_facts().records():
        if record.environment.device.architecture == architecture:
            seconds = known.setdefault(str(record.workload), {})
            seconds[record.spec] = record.measurement.median_s
    return known


def mixed(entries: Sequence[Entry]) -> list[Entry]:
    """The entries of all suites in turns, so that every suite ends at the same time."""
    totals = Counter(entry.suite for entry in entries)
    counts: Counter[str] = Counter()
    shares = []
    for entry in entries:
        shares.append((counts[entry.suite] / totals[entry.suite], entry))
        counts[entry.suite] += 1
    return [entry for _, entry in sorted(shares, key=itemgetter(0))]


def workload_of(
    known: Mapping[str, Mapping[TransformSpec, float]], architecture: str, entry: Entry
) -> BuiltWorkload:
    """An entry with its fastest kernels."""
    canonical = CanonicalEntry.of(entry)
    problem, case = canonical.problem, canonical.case()
    builder = WorkloadBuilder(architecture)
    document = {
        **document_of(problem, case),
        "name": entry.name,
        "suite": entry.suite,
        "group": entry.group,
        "subscripts": entry.subscripts,
        "rows": [
            [{"kind": type(f).__name__, **asdict(f)} for f in row] for row in entry.rows
        ],
        "row_order": list(canonical.form.relabeling.rows),
        "flops": entry.flops,
        "entry_bytes": entry.footprint_bytes,
        "baseline": 0,
        "candidates": list(_kernels(builder, problem, case, known)),
    }
    return BuiltWorkload(document, builder.files, builder.left_out)


def _kernels(
    builder: WorkloadBuilder,
    problem: TuningProblem,
    case: Case,
    known: Mapping[str, Mapping[TransformSpec, float]],
) -> Iterator[dict[str, Any]]:
    """The fastest recipes, and predicted ones, as far as they can be compiled."""
    tried = known.get(str(problem.form.key), {})
    best = sorted((s for s in tried if tried[s] < np.inf), key=tried.__getitem__)
    n_predicted = N_PREDICTED if best else N_UNMEASURED
    predicted = islice(candidates(problem, {}, builder.architecture), n_predicted)
    for spec in dict.fromkeys((*best[:N_BEST], *predicted)):
        try:
            yield builder.candidate(spec, case)
        except FeinsumError as error:
            builder.left_out[error.code] += 1


@dataclass(frozen=True)
class CanonicalEntry:
    """An entry in the names of its canonical form.

    Attributes:
        functions: by the name of the operand in the form.
    """

    entry: Entry
    form: CanonicalForm
    problem: TuningProblem
    functions: Mapping[str, Function]

    @classmethod
    def of(cls, entry: Entry) -> CanonicalEntry:
        general, literal = generalize(entry.einsum())
        form = canonicalize(general)
        names = form.relabeling.size_params
        sizes = {**literal, **entry.parameters}
        renamed = {names.get(name, name): n for name, n in sizes.items()}
        own = {f.name: f for f in entry.operands}
        named = form.relabeling.operands
        return cls(
            entry,
            form,
            TuningProblem(form.text, renamed),
            {new: own[old] for old, new in named.items()},
        )

    def case(self) -> Case:
        """The kernel with functions for operands, its arguments and results."""
        case = make_bare_case(self.form.einsum, self.problem.sizes)
        kernel = case.t_unit.default_entrypoint
        rules, own = dict(kernel.substitutions), []
        for operand, function in self.functions.items():
            rule = rules[case.nest.rules[operand]]
            rules[rule.name] = rule.copy(expression=_expression(function, rule))
            own += _arguments(function, kernel.arg_dict[operand])
        others = [a for a in kernel.args if a.name not in self.functions]
        unit = case.t_unit.with_kernel(
            kernel.copy(substitutions=rules, args=[*others, *own])
        )
        unit, nest = identify_as_einsum(unit, case.einsum, long_extent=NEVER_LONG)
        values = self.values()
        results = self.entry.reference(values)
        given = {f"{contest.PREFIX}{name}": value for name, value in values.items()}
        return replace(
            case,
            t_unit=unit,
            nest=nest,
            arguments={**given, **self.problem.sizes},
            expected={
                name: results[row]
                for name, row in zip(
                    nest.outputs, self.form.relabeling.rows, strict=True
                )
            },
        )

    def values(self) -> dict[str, Any]:
        """Arrays, drawn in the same order as the runner draws them, and scalars."""
        rng = np.random.default_rng(SEED)
        drawn = {
            name: runner.drawn(np, rng, "uniform", "<f8", shape)
            for f in self.functions.values()
            for name, shape in f.shapes(
                self.entry.shape(self.entry.operands[f])
            ).items()
        }
        return {**drawn, **self.entry.scalars}


def _expression(function: Function, rule: Any) -> Any:
    """The function as the body of a rule."""
    names = {
        name: var(f"{contest.PREFIX}{name}")
        for name in (*function.shapes((3,) * len(rule.arguments)), *function.scalars)
    }
    expression = parse(function.expression(list(rule.arguments)))
    return SubstitutionMapper(make_subst_func(names))(expression)


def _arguments(function: Function, operand: Any) -> list[Any]:
    arrays = [
        lp.GlobalArg(
            f"{contest.PREFIX}{name}",
            operand.dtype,
            shape=shape,
            order="C",
            is_input=True,
            is_output=False,
        )
        for name, shape in function.shapes(operand.shape).items()
    ]
    scalars = [
        lp.ValueArg(f"{contest.PREFIX}{name}", np.float64) for name in function.scalars
    ]
    return [*arrays, *scalars]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--after", type=Path, nargs="*", default=[])
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--max-gflop", type=float, default=1e6)
    parser.add_argument("--architecture", default="sm_90")
    return parser.parse_args()


if __name__ == "__main__":
    main()
