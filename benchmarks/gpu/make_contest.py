"""Makes a contest: kernels with functional operands, and what rivals evaluate.

A contest is a bundle whose operands are the functions of the suites. The candidates are
the fastest recipes of packaged facts and of trials that ran on a GPU, or predicted
ones. ``contest.py`` times them and the rivals.
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
from benchmarks.gpu.bundle.candidates import candidates, vary
from benchmarks.gpu.bundle.folder import Exported, write_bundle
from benchmarks.gpu.bundle.workload import (
    SEED,
    BuiltWorkload,
    WorkloadBuilder,
    document_of,
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
"""Recipes of a workload: the fastest that were measured, among the first of which some
may not be compiled with functions; if none is, variations of the fastest, and predicted
ones.
"""
N_REPRESENTATIVE, N_CLASSES = 12, 4
"""Entries that represent a suite, and classes by operations per byte."""

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
    """Write a contest, those entries first that represent their suites.

    Args:
        after: the seconds of further recipes that ran, by key.
        n_varied: variations of each entry's fastest recipe that take part, too.
        n_processes: that generate and compile; by default one per core.

    Raises:
        MeasurementError: if the folder is not empty, or the contest gets too large.
    """
    known = recorded(architecture)
    for key, seconds in after.items():
        known.setdefault(key, {}).update(seconds)
    make = partial(workload_of, known, architecture, n_varied=n_varied)
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
    """Choose entries of a suite that are spread as all of them are.

    Sorted by operations per byte, the entries are cut into ``N_CLASSES`` classes of
    equal size; each gives as many entries, which are spread over its sizes in memory.
    """
    by_intensity = sorted(entries, key=lambda e: (e.flops / e.footprint_bytes, e.name))
    classes = _cut(by_intensity, N_CLASSES)
    return [
        part[len(part) // 2]
        for one, n_chosen in zip(
            classes, map(len, _cut(range(n), N_CLASSES)), strict=True
        )
        for part in _cut(
            sorted(one, key=lambda e: (e.footprint_bytes, e.name)), n_chosen
        )
        if part
    ]


def _cut(values: Sequence[Item], n: int) -> list[Sequence[Item]]:
    """Cut a sequence into parts whose lengths differ by one at most."""
    ends = [len(values) * k // n for k in range(n + 1)]
    return [values[a:b] for a, b in pairwise(ends)]


def order_entries(entries: Sequence[Entry]) -> list[Entry]:
    """The representatives of all suites in turns, then the others in turns."""
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
    return [*mixed(first), *mixed(others)]


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
    known: Mapping[str, Mapping[TransformSpec, float]],
    architecture: str,
    entry: Entry,
    n_varied: int = 0,
) -> BuiltWorkload:
    """An entry with its fastest kernels."""
    canonical = CanonicalEntry.of(entry)
    problem, case = canonical.problem, canonical.case()
    builder = WorkloadBuilder(architecture)
    document = {
        **document_of(problem, case, canonical.operands()),
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
        "candidates": list(_kernels(builder, problem, case, known, n_varied)),
    }
    return BuiltWorkload(document, builder.files, builder.left_out)


def _kernels(
    builder: WorkloadBuilder,
    problem: TuningProblem,
    case: Case,
    known: Mapping[str, Mapping[TransformSpec, float]],
    n_varied: int,
) -> Iterator[dict[str, Any]]:
    """The fastest recipes that were measured, and variations; else predicted ones."""
    tried = known.get(str(problem.form.key), {})
    best = sorted((s for s in tried if tried[s] < np.inf), key=tried.__getitem__)
    measured = [*islice(builder.buildable(best[:N_ATTEMPTS], case), N_BEST)]
    # of a family that failed all are likely to, and each takes seconds
    failed = {spec.name for spec in best[:N_ATTEMPTS]}
    predicted = candidates(problem, {}, builder.architecture)
    others = (spec for spec in predicted if spec.name not in failed)
    n_varied = n_varied if measured else max(n_varied, N_UNMEASURED)
    varied = (s for b in best[:1] for s in vary(b, problem) if s not in best)
    n_others = 0 if measured else 1 if best else N_UNMEASURED
    yield from measured
    yield from islice(builder.buildable(varied, case), n_varied)
    yield from islice(builder.buildable(others, case), n_others)


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
        given = {f"{contest.PREFIX}{n}": value for n, value in self.values.items()}
        return replace(
            case,
            t_unit=unit,
            nest=nest,
            arguments={**given, **self.problem.sizes},
        )

    def operands(self) -> dict[str, Any]:
        """The arrays of the operands of the form, by their names."""
        return {name: f.fresh(np, self.values) for name, f in self.functions.items()}

    @cached_property
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
