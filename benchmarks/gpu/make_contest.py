"""Build a contest: kernels with functions as operands, and descriptions for rivals.

A contest is a bundle whose operands are the functions of the suites. The candidates are
the fastest recipes of packaged facts and of earlier trials, or predicted ones.
``contest.py`` times them and the rivals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import loopy as lp
import numpy as np
from loopy.symbolic import SubstitutionMapper, parse
from pymbolic import var
from pymbolic.mapper.substitutor import make_subst_func

from benchmarks.experiments.entries import Entry
from benchmarks.experiments.functions import Function
from benchmarks.gpu import contest
from benchmarks.gpu.bundle import runner
from benchmarks.gpu.bundle.candidates import list_candidates, vary
from benchmarks.gpu.bundle.folder import Exported, write_bundle
from benchmarks.gpu.bundle.workload import (
    SEED,
    BuiltWorkload,
    WorkloadBuilder,
    describe_workload,
)
from feinsum.canonical import CanonicalForm, canonicalize
from feinsum.db.shipped import get_shipped_facts
from feinsum.ir import generalize
from feinsum.measure.cases import Case, make_bare_case
from feinsum.measure.reference import NEVER_LONG
from feinsum.raising import identify_as_einsum
from feinsum.records import TransformSpec
from feinsum.tuning.problem import TuningProblem

N_BEST, N_ATTEMPTS, N_UNMEASURED = 2, 3, 3
"""Recipes of a workload: so many of the fastest measured ones, of attempts that may not
compile with functions; if none compiles, variations of the fastest, and predicted ones.
"""
N_REPRESENTATIVE, N_CLASSES = 12, 4
"""Number of entries that represent a suite, and of classes by operations per byte."""

Item = TypeVar("Item")


def write_contest(
    folder: Path,
    architecture: str,
    entries: Sequence[Entry],
    after: Mapping[str, Mapping[TransformSpec, float]],
    on_workload: Callable[[int], None] | None = None,
    n_varied: int = 0,
    n_processes: int | None = None,
) -> Exported:
    """Write a contest; the representatives of the suites come first.

    Args:
        after: seconds of further recipes, by key.
        n_varied: number of variations of each entry's fastest recipe.
        n_processes: number of compiling processes; by default one per core.

    Raises:
        MeasurementError: if the folder is not empty, or the contest gets too large.
    """
    seconds_by_key = read_packaged_seconds(architecture)
    for key, seconds in after.items():
        seconds_by_key.setdefault(key, {}).update(seconds)
    make = partial(build_workload, seconds_by_key, architecture, n_varied=n_varied)
    ordered = order_entries(entries)
    return write_bundle(
        folder,
        architecture,
        make,
        ordered,
        n_processes=n_processes,
        on_workload=on_workload,
    )


def choose_representative(entries: Sequence[Entry], n: int) -> list[Entry]:
    """Choose entries of a suite with the same distribution as all.

    Entries are sorted by operations per byte, and cut into ``N_CLASSES`` classes of
    equal size. Each contributes as many entries, spread over its sizes in memory.
    """
    by_intensity = sorted(entries, key=lambda e: (e.flops / e.footprint_bytes, e.name))
    classes = _cut(by_intensity, N_CLASSES)
    return [
        part[len(part) // 2]
        for entries_of_class, n_chosen in zip(
            classes, map(len, _cut(range(n), N_CLASSES)), strict=True
        )
        for part in _cut(
            sorted(entries_of_class, key=lambda e: (e.footprint_bytes, e.name)),
            n_chosen,
        )
        if part
    ]


def _cut(values: Sequence[Item], n: int) -> list[Sequence[Item]]:
    """Cut a sequence into parts whose lengths differ by at most one."""
    ends = [len(values) * k // n for k in range(n + 1)]
    return [values[a:b] for a, b in pairwise(ends)]


def order_entries(entries: Sequence[Entry]) -> list[Entry]:
    """Interleave the representatives of all suites, then all others."""
    suites = dict.fromkeys(entry.suite for entry in entries)
    chosen = {
        (e.suite, e.name)
        for suite in suites
        for e in choose_representative(
            [e for e in entries if e.suite == suite], N_REPRESENTATIVE
        )
    }
    first = [e for e in entries if (e.suite, e.name) in chosen]
    others = [e for e in entries if (e.suite, e.name) not in chosen]
    return [*interleave_suites(first), *interleave_suites(others)]


def read_packaged_seconds(architecture: str) -> dict[str, dict[TransformSpec, float]]:
    """Return the seconds of recipes in packaged facts of GPUs, by key."""
    seconds_by_key: dict[str, dict[TransformSpec, float]] = {}
    for record in get_shipped_facts().records():
        if record.environment.device.architecture == architecture:
            seconds = seconds_by_key.setdefault(str(record.workload), {})
            seconds[record.spec] = record.measurement.median_s
    return seconds_by_key


def interleave_suites(entries: Sequence[Entry]) -> list[Entry]:
    """Interleave the entries of all suites, so that they end at the same time."""
    totals = Counter(entry.suite for entry in entries)
    counts: Counter[str] = Counter()
    shares = []
    for entry in entries:
        shares.append((counts[entry.suite] / totals[entry.suite], entry))
        counts[entry.suite] += 1
    return [entry for _, entry in sorted(shares, key=itemgetter(0))]


def build_workload(
    seconds_by_key: Mapping[str, Mapping[TransformSpec, float]],
    architecture: str,
    entry: Entry,
    n_varied: int = 0,
) -> BuiltWorkload:
    """Build an entry with its fastest kernels."""
    canonical = CanonicalEntry.of(entry)
    problem, case = canonical.problem, canonical.make_case()
    builder = WorkloadBuilder(architecture)
    document = {
        **describe_workload(problem, case, canonical.evaluate_operands()),
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
        "candidates": list(
            _list_kernels(builder, problem, case, seconds_by_key, n_varied)
        ),
    }
    return BuiltWorkload(document, builder.files, builder.left_out)


def _list_kernels(
    builder: WorkloadBuilder,
    problem: TuningProblem,
    case: Case,
    seconds_by_key: Mapping[str, Mapping[TransformSpec, float]],
    n_varied: int,
) -> Iterator[dict[str, Any]]:
    """Yield the fastest measured recipes, and variations; else predicted ones."""
    tried = seconds_by_key.get(str(problem.form.key), {})
    best = sorted((s for s in tried if tried[s] < np.inf), key=tried.__getitem__)
    measured = [*islice(builder.build_all(best[:N_ATTEMPTS], case), N_BEST)]
    # recipes of a family that failed are likely to fail, and each takes seconds
    failed = {spec.name for spec in best[:N_ATTEMPTS]}
    predicted = list_candidates(problem, {}, builder.architecture)
    others = (spec for spec in predicted if spec.name not in failed)
    n_varied = n_varied if measured else max(n_varied, N_UNMEASURED)
    varied = (s for b in best[:1] for s in vary(b, problem) if s not in best)
    n_others = 0 if measured else 1 if best else N_UNMEASURED
    yield from measured
    yield from islice(builder.build_all(varied, case), n_varied)
    yield from islice(builder.build_all(others, case), n_others)


@dataclass(frozen=True)
class CanonicalEntry:
    """An entry in the names of its canonical form.

    Attributes:
        functions: by the name of the operand in the canonical form.
    """

    entry: Entry
    form: CanonicalForm
    problem: TuningProblem
    functions: Mapping[str, Function]

    @classmethod
    def of(cls, entry: Entry) -> CanonicalEntry:
        general, literal = generalize(entry.make_einsum())
        form = canonicalize(general)
        names = form.relabeling.size_params
        sizes = {**literal, **entry.parameters}
        renamed = {names.get(name, name): n for name, n in sizes.items()}
        functions = {f.name: f for f in entry.operands}
        named = form.relabeling.operands
        return cls(
            entry,
            form,
            TuningProblem(form.text, renamed),
            {new: functions[old] for old, new in named.items()},
        )

    def make_case(self) -> Case:
        """Return the kernel with functions as operands, its arguments and results."""
        case = make_bare_case(self.form.einsum, self.problem.sizes)
        kernel = case.t_unit.default_entrypoint
        rules, arguments = dict(kernel.substitutions), []
        for operand, function in self.functions.items():
            rule = rules[case.nest.rules[operand]]
            rules[rule.name] = rule.copy(expression=_make_expression(function, rule))
            arguments += _make_arguments(function, kernel.arg_dict[operand])
        others = [a for a in kernel.args if a.name not in self.functions]
        unit = case.t_unit.with_kernel(
            kernel.copy(substitutions=rules, args=[*others, *arguments])
        )
        unit, nest = identify_as_einsum(unit, case.einsum, long_extent=NEVER_LONG)
        values = {f"{contest.PREFIX}{n}": value for n, value in self.values.items()}
        return replace(
            case,
            t_unit=unit,
            nest=nest,
            arguments={**values, **self.problem.sizes},
        )

    def evaluate_operands(self) -> dict[str, Any]:
        """Return the arrays of the operands in the form, by name."""
        return {name: f.evaluate(np, self.values) for name, f in self.functions.items()}

    @cached_property
    def values(self) -> dict[str, Any]:
        """Draw arrays in the same order as the runner, and return scalars."""
        rng = np.random.default_rng(SEED)
        drawn = {
            name: runner.draw_operand(np, rng, "uniform", "<f8", shape)
            for f in self.functions.values()
            for name, shape in f.list_shapes(
                self.entry.get_shape(self.entry.operands[f])
            ).items()
        }
        return {**drawn, **self.entry.scalars}


def _make_expression(function: Function, rule: Any) -> Any:
    """Return the function as the body of a substitution rule."""
    names = {
        name: var(f"{contest.PREFIX}{name}")
        for name in (
            *function.list_shapes((3,) * len(rule.arguments)),
            *function.scalars,
        )
    }
    expression = parse(function.format(list(rule.arguments)))
    return SubstitutionMapper(make_subst_func(names))(expression)


def _make_arguments(function: Function, operand: Any) -> list[Any]:
    arrays = [
        lp.GlobalArg(
            f"{contest.PREFIX}{name}",
            operand.dtype,
            shape=shape,
            order="C",
            is_input=True,
            is_output=False,
        )
        for name, shape in function.list_shapes(operand.shape).items()
    ]
    scalars = [
        lp.ValueArg(f"{contest.PREFIX}{name}", np.float64) for name in function.scalars
    ]
    return [*arrays, *scalars]
