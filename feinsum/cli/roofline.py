"""``feinsum roofline``: compare workloads with the measured limits of a device.

Suites, einsums and kernels become workloads; each gets its operations and bytes, and
the fact that fits the device. A view shows them as a table, as JSON or as a chart::

    workload   Gop   MB    op/B  roof Gop/s  got   share
    ij,jk->ik  0.82  103   7.93  95.2        71.0  75%
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from feinsum.cli.devices import measure_limits
from feinsum.cli.shared.failure import say
from feinsum.cli.shared.help import HelpAll
from feinsum.cli.shared.notation import check_parameters, read_einsums, read_values
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Device,
    EinsumOptions,
    SizeValues,
    Targets,
    expand_groups,
)
from feinsum.cli.shared.output import (
    check_output_file,
    check_writing,
    print_document,
    print_table,
    to_digits,
)
from feinsum.cli.shared.user_file import is_file, read_translation_unit

if TYPE_CHECKING:
    from feinsum.bounds import Bound
    from feinsum.drawing import Chart
    from feinsum.ir import BatchedEinsum
    from feinsum.measure import MinimumWork, OpenDevice, Rung
    from feinsum.records import Device as DeviceRecord
    from feinsum.records import DevicePeaks, Store, TuningRecord
    from feinsum.suites import SuiteEntry

EXAMPLES = """\b
Examples:
  feinsum roofline
  feinsum roofline --suite dgfem --measure --png roofline.png
  feinsum roofline "ij,jk->ik" --sizes i=m,j=64,k=64 --size m=100000
  feinsum roofline wave.py:gradient --size n=100000 --json
"""

Suite: TypeAlias = Annotated[
    Literal["tccg", "dgfem", "all"] | None,
    typer.Option(help="The contractions of TCCG, the operators of DG, or both."),
]
MaxGflop: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="G",
        min=1e-6,
        help="Scale larger contractions of TCCG down to G billion operations.",
    ),
]
Measure: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Run kernels of increasing intensity to find where the device saturates; "
        "takes about a minute on an idle device.",
    ),
]
Levels: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--levels",
        help="Add the minimum traffic at every memory level, and the share of its "
        "bandwidth used; see 'feinsum bound'.",
    ),
]
Png: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Plot the roofline to FILE.png, overwriting it; needs matplotlib.",
    ),
]


ELSEWHERE = "*"

FOOTNOTE = f"""\
{ELSEWHERE} Measured on another machine, or on one whose processor was not recorded.
  The limits are those of this machine, so the share can be above 100%.
"""

TOO_LOW = """\
A recorded time of this device is below the minimum that its limits allow: the
limits are too low, or the device has changed. Measure them again on an idle
machine: feinsum devices --again
"""
MAX_SHARE = 1.02
"""Share of the roofline that noise of a fact does not exceed."""


@expand_groups
def roofline(
    targets: Targets = None,
    suite: Suite = None,
    max_gflop: MaxGflop = None,
    *,
    arrays: EinsumOptions,
    size: SizeValues = None,
    measure: Measure = False,
    levels: Levels = False,
    png: Png = None,
    device: Device = None,
    database: Database = None,
    as_json: AsJson = False,
    help_all: HelpAll = False,
) -> None:
    """Compare workloads with the measured limits of a device.

    For each workload: operations, bytes, operations per byte, the rate that the
    roofline allows and, if the device has a fact, the rate reached, at the sizes of
    the fact. Missing limits are measured first, which takes a few seconds.
    """
    from feinsum.db import opened_store
    from feinsum.measure import open_device
    from feinsum.tuning import get_peaks

    if png is not None:
        check_output_file(png, [".png"], "--png")
    workloads = [
        workload
        for name in _choose_suites(suite, bool(targets))
        for workload in list_suite_entries(name, arrays.dtype, max_gflop)
    ]
    workloads += list_targets(targets or [], arrays, size)
    opened = open_device(device)
    # measured limits may be the first content of the user's own database
    may_create = database is None
    with opened_store(database, has_shipped=True, may_create=may_create) as store:
        peaks = get_peaks(opened, store, measure=measure_limits, say=say)
        placed = [
            replace(w, fact=_find_fact(w.einsum, store, opened.device))
            for w in workloads
        ]
    ladder = _measure_ladder(opened, arrays.dtype) if measure else ()
    view = RooflineView(peaks, placed, ladder, has_levels=levels)
    if png is not None:
        from feinsum.drawing import draw_roofline

        with check_writing(png, "--png"):
            draw_roofline(view.make_chart(), png)
    document = view.document() | {"png": None if png is None else str(png)}
    print_document(document, as_json, lambda: view.print(document))


def _choose_suites(suite: str | None, has_targets: bool) -> tuple[str, ...]:
    """Choose the suites of the option; all if there is no option and no target."""
    from feinsum.suites import NAMES

    if suite == "all" or (suite is None and not has_targets):
        return NAMES
    return () if suite is None else (suite,)


def _measure_ladder(opened: OpenDevice, dtype: str) -> tuple[Rung, ...]:
    import numpy as np

    from feinsum.measure import measure_ladder
    from feinsum.measure.disturbance import Watch

    say(f"measuring kernels of increasing intensity on {opened.device} ...")
    watch = Watch()
    rungs = measure_ladder(opened, np.dtype(dtype).str)
    # the watch sees programs on the processor, not on a GPU
    if opened.device.kind == "cpu" and (disturbance := watch.disturbance()):
        say(f"{disturbance} meanwhile: these rates are too low")
    return rungs


@dataclass(frozen=True)
class RooflineWorkload:
    """A workload, and the fact that fits the device best, if any.

    Attributes:
        group: its entry in the legend of the picture.
        sizes: values of size parameters, at which its work is counted without a fact;
            others get their defaults.
    """

    name: str
    group: str
    einsum: BatchedEinsum
    sizes: Mapping[str, int]
    fact: TuningRecord | None = None

    @cached_property
    def work(self) -> MinimumWork:
        """The work, as recorded in the fact if there is one."""
        from feinsum.measure import MinimumWork

        if self.fact is None:
            return MinimumWork.of(*self._count_at())
        measured = self.fact.measurement
        return MinimumWork(measured.operations, measured.footprint_bytes)

    @property
    def operations_per_s(self) -> float | None:
        """The rate of the fact."""
        if self.fact is None:
            return None
        return self.fact.measurement.giga_operations_per_s * 1e9

    def bound(self, peaks: DevicePeaks) -> Bound | None:
        """Return the least traffic at each level of a device; None if not known."""
        from feinsum.bounds import compute_bound, list_levels
        from feinsum.errors import FeinsumError
        from feinsum.ir import from_text

        levels = list_levels(peaks.device, peaks)
        try:
            if self.fact is None:
                return compute_bound(*self._count_at(), levels)
            sizes = self.fact.measurement.sizes
            return compute_bound(from_text(self.fact.workload_text), sizes, levels)
        except FeinsumError:
            return None

    def _count_at(self) -> tuple[BatchedEinsum, dict[str, int]]:
        """Return the einsum as facts store it, with all sizes."""
        from feinsum.ir import generalize
        from feinsum.tuning import choose_default_sizes

        # facts have size parameters for long extents
        general, literal = generalize(self.einsum)
        return general, choose_default_sizes(general, {**literal, **self.sizes})


def list_suite_entries(
    name: str, dtype: str, max_gflop: float | None
) -> list[RooflineWorkload]:
    """Return the entries of a suite; ``max_gflop`` limits those of TCCG."""
    from feinsum.suites import read_suite

    entries: Iterable[SuiteEntry] = read_suite(name)
    # operators of DG have size parameters, which --size sets
    if name == "tccg" and max_gflop is not None:
        entries = [_scale_contraction(entry, max_gflop) for entry in entries]
    return [
        RooflineWorkload(e.name, f"{name} {e.group}", e.einsum(dtype), e.parameters)
        for e in entries
    ]


def _scale_contraction(entry: SuiteEntry, max_gflop: float) -> SuiteEntry:
    """Scale a contraction down to at most so many operations, two per point."""
    from feinsum.suites import scale_sizes

    operations = 2 * prod(entry.sizes.values())
    sizes = scale_sizes(entry.sizes, operations, max_gflop * 1e9)
    return replace(entry, sizes=sizes)


def list_targets(
    targets: Sequence[str], arrays: EinsumOptions, size: Sequence[str] | None
) -> list[RooflineWorkload]:
    """Return the workloads of einsums and kernel files, at the values of ``--size``.

    Raises:
        typer.BadParameter: if a value belongs to no size parameter.
    """
    values = read_values(size or (), "--size")
    files = [target for target in targets if is_file(target)]
    texts = [target for target in targets if not is_file(target)]
    einsums = read_einsums(texts, arrays) if texts else []
    workloads = [
        RooflineWorkload(text, "einsums", einsum, {})
        for text, einsum in zip(texts, einsums, strict=True)
    ]
    workloads += [nest for file in files for nest in _list_nests(file)]
    check_parameters(values, [workload.einsum for workload in workloads])
    return [replace(w, sizes={**w.sizes, **values}) for w in workloads]


def _list_nests(file: str) -> Iterator[RooflineWorkload]:
    """Yield the einsums of a kernel: its nests, by number if it has several.

    Raises:
        NotAnEinsumError: if it has none.
    """
    from feinsum.raising import raise_kernel, single_nest

    raised = raise_kernel(read_translation_unit(file))
    nests = raised.raised if len(raised.raised) > 1 else (single_nest(raised),)
    for k, nest in enumerate(nests):
        name = file if len(nests) == 1 else f"{file} [{k}]"
        yield RooflineWorkload(name, "kernels", nest.einsum, nest.generalized)


def _find_fact(
    einsum: BatchedEinsum, store: Store, device: DeviceRecord
) -> TuningRecord | None:
    """Return the best fact of exactly this workload on this device or one like it."""
    from feinsum.records import MatchLevel
    from feinsum.retrieval import query

    match = query(einsum, device=device.id, database=store)
    # facts of distant devices say nothing about this roofline
    if match.level > MatchLevel.SAME_ARCHITECTURE:
        return None
    return match.record


@dataclass(frozen=True)
class RooflineView:
    """Workloads under the limits of a device.

    Attributes:
        ladder: kernels of rising intensity; empty if they were not measured.
        has_levels: whether workloads have the least traffic of the memory levels.
    """

    peaks: DevicePeaks
    workloads: Sequence[RooflineWorkload]
    ladder: Sequence[Rung]
    has_levels: bool = False

    def document(self) -> dict[str, Any]:
        """Return everything as JSON; null where there is no fact."""
        return {
            "device": str(self.peaks.device),
            "device_id": self.peaks.device.id,
            "peaks": {
                "bandwidth_bytes_per_s": self.peaks.bandwidth_bytes_per_s,
                "operations_per_s": dict(self.peaks.operations_per_s),
                "measured_at": self.peaks.measured_at,
            },
            "workloads": list(map(self._make_entry, self.workloads)),
            "ladder": [
                {
                    "multiply_adds": rung.n_steps,
                    "operations_per_byte": rung.work.intensity,
                    "operations_per_s": rung.operations_per_s,
                    "quartiles": list(rung.spread),
                    "samples_s": list(rung.samples_s),
                }
                for rung in self.ladder
            ],
        }

    def _make_entry(self, workload: RooflineWorkload) -> dict[str, Any]:
        work, rate, fact = workload.work, workload.operations_per_s, workload.fact
        limit = work.bound(self.peaks)
        return {
            "name": workload.name,
            "group": workload.group,
            "operations": dict(work.operations),
            "footprint_bytes": work.footprint_bytes,
            "operations_per_byte": work.intensity,
            "roofline_operations_per_s": limit,
            "operations_per_s": rate,
            "fraction_of_roofline": None if rate is None else rate / limit,
            "record": fact and fact.id,
            "measured_on": fact and str(fact.environment.device),
            "is_of_this_device": fact and self._is_local(fact),
            "levels": self._make_levels(workload) if self.has_levels else [],
        }

    def _make_levels(self, workload: RooflineWorkload) -> list[dict[str, Any]]:
        """Return the least traffic of each level, and the share of its bandwidth."""
        from feinsum.bounds import compute_shares

        bound, fact = workload.bound(self.peaks), workload.fact
        if bound is None:
            return []
        reached = compute_shares(bound, fact.measurement.median_s) if fact else {}
        return [
            {
                "name": cost.level.name,
                "bytes": cost.n_bytes,
                "seconds": cost.seconds,
                "fraction_of_bandwidth": reached.get(cost.level.name),
            }
            for cost in bound.levels
        ]

    def _is_local(self, fact: TuningRecord) -> bool:
        """Return whether a fact was surely measured on the machine of the limits."""
        return fact.environment.device.is_surely(self.peaks.device)

    def print(self, document: Mapping[str, Any]) -> None:
        """Print the tables of the document, then a line about the device."""
        entries = document["workloads"]
        print_table(
            ("workload",),
            ("Gop", "MB", "op/B", "roof Gop/s", "got", "share"),
            list(map(_make_row, entries)),
        )
        if any(entry["is_of_this_device"] is False for entry in entries):
            typer.echo(FOOTNOTE)
        # noise makes no fact of the same device faster than its limits allow
        shares = [e["fraction_of_roofline"] for e in entries if e["is_of_this_device"]]
        if max(shares, default=0.0) > MAX_SHARE:
            typer.echo(TOO_LOW)
        if levels := next((e["levels"] for e in entries if e["levels"]), None):
            names = [level["name"] for level in levels]
            print_table(
                ("workload",),
                [f"{name} MB" for name in names] + [f"{name} %" for name in names],
                [_make_level_row(entry, len(names)) for entry in entries],
            )
        if self.ladder:
            print_table(
                (),
                ("multiply-adds", "op/B", "roof Gop/s", "got", "lower", "upper"),
                [self._make_rung_row(rung) for rung in self.ladder],
            )
        rates = sorted(self.peaks.operations_per_s.items())
        typer.echo(
            f"limits of {self.peaks.device}\n"
            f"as of {self.peaks.measured_at}: "
            f"{_format_giga(self.peaks.bandwidth_bytes_per_s)} GB/s; "
            + "; ".join(
                f"{_format_giga(rate)} Gop/s of {dtype}" for dtype, rate in rates
            )
        )

    def _make_rung_row(self, rung: Rung) -> tuple[str, ...]:
        rates = rung.work.bound(self.peaks), rung.operations_per_s, *rung.spread
        intensity = to_digits(rung.work.intensity, 3)
        return str(rung.n_steps), intensity, *map(_format_giga, rates)

    def make_chart(self) -> Chart:
        """Draw rates in Gop/s over operations per byte."""
        import numpy as np

        from feinsum.drawing import Chart, Dot, LadderKernel

        dots = [
            Dot(
                w.group,
                w.work.intensity,
                (w.operations_per_s or w.work.bound(self.peaks)) * 1e-9,
                is_measured=w.fact is not None,
            )
            for w in self.workloads
        ]
        steps = [
            LadderKernel(
                rung.work.intensity,
                *(rate * 1e-9 for rate in (rung.operations_per_s, *rung.spread)),
            )
            for rung in self.ladder
        ]
        peaks, date = self.peaks, self.peaks.measured_at[:10]
        is_mixed = any(w.fact and not self._is_local(w.fact) for w in self.workloads)
        remark = "; some rates are from other machines" if is_mixed else ""
        rates = peaks.operations_per_s.items()
        return Chart(
            f"Roofline of {peaks.device}, {date}{remark}",
            peaks.bandwidth_bytes_per_s * 1e-9,
            {str(np.dtype(dtype)): rate * 1e-9 for dtype, rate in rates},
            tuple(dots),
            tuple(steps),
            {name: rate * 1e-9 for name, rate in peaks.cache_bytes_per_s.items()},
        )


def _make_row(entry: dict[str, Any]) -> tuple[str, ...]:
    rate, share = entry["operations_per_s"], entry["fraction_of_roofline"]
    mark = ELSEWHERE if entry["is_of_this_device"] is False else ""
    return (
        entry["name"],
        _format_giga(sum(entry["operations"].values())),
        to_digits(entry["footprint_bytes"] * 1e-6, 3),
        to_digits(entry["operations_per_byte"], 3),
        _format_giga(entry["roofline_operations_per_s"]),
        "-" if rate is None else _format_giga(rate),
        "-" if share is None else f"{share:.0%}{mark}",
    )


def _make_level_row(entry: dict[str, Any], n_levels: int) -> tuple[str, ...]:
    """Format the least megabytes of each level, and the used share of bandwidth."""
    if not entry["levels"]:
        return (entry["name"], *(["-"] * 2 * n_levels))
    fractions = [level["fraction_of_bandwidth"] for level in entry["levels"]]
    return (
        entry["name"],
        *(to_digits(level["bytes"] * 1e-6, 3) for level in entry["levels"]),
        *("-" if x is None else f"{x:.0%}"[:-1] for x in fractions),
    )


def _format_giga(value: float) -> str:
    return to_digits(value * 1e-9, 3)
