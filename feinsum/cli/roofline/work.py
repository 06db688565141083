"""The workloads of ``feinsum roofline``, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import typer

from feinsum.cli.shared.notation import read_einsums, read_values
from feinsum.cli.shared.user_file import is_file, read_translation_unit

if TYPE_CHECKING:
    from feinsum.bounds import Bound
    from feinsum.ir import BatchedEinsum
    from feinsum.measure import Work
    from feinsum.records import Device, DevicePeaks, Store, TuningRecord
    from feinsum.suites import SuiteEntry


@dataclass(frozen=True)
class Workload:
    """An einsum at the sizes at which its work is counted.

    Attributes:
        group: of what it is a part, for the legend of the picture.
        sizes: values of size parameters; others get their defaults.
    """

    name: str
    group: str
    einsum: BatchedEinsum
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Placed:
    """A workload with its work, and the fact that fits the device best, if any."""

    workload: Workload
    work: Work
    fact: TuningRecord | None

    @property
    def operations_per_s(self) -> float | None:
        """The rate of the fact."""
        if self.fact is None:
            return None
        return self.fact.measurement.giga_operations_per_s * 1e9


def of_suite(name: str, dtype: str, max_gflop: float | None) -> list[Workload]:
    """The entries of a suite; ``max_gflop`` limits those of TCCG."""
    from feinsum.suites import read_suite

    entries: Iterable[SuiteEntry] = read_suite(name)
    if name == "tccg" and max_gflop is not None:
        entries = [_scaled(entry, max_gflop) for entry in entries]
    return [
        Workload(e.name, f"{name} {e.group}", e.einsum(dtype), e.parameters)
        for e in entries
    ]


def _scaled(entry: SuiteEntry, max_gflop: float) -> SuiteEntry:
    """The contraction with at most about that many operations, two per point."""
    from feinsum.suites import scaled_sizes

    operations = 2 * prod(entry.sizes.values())
    sizes = scaled_sizes(entry.sizes, operations, max_gflop * 1e9)
    return replace(entry, sizes=sizes)


def of_targets(
    targets: Sequence[str],
    sizes: Sequence[str] | None,
    operands: str | None,
    rows: str | None,
    dtype: str,
    values: Sequence[str] | None,
) -> list[Workload]:
    """The workloads of the command line, einsums first, at the given values.

    Raises:
        typer.BadParameter: if a value is of no size parameter.
    """
    given = read_values(values or (), "--size")
    files = [target for target in targets if is_file(target)]
    texts = [target for target in targets if not is_file(target)]
    einsums = read_einsums(texts, sizes, operands, rows, dtype) if texts else []
    found = [
        Workload(text, "einsums", einsum, {})
        for text, einsum in zip(texts, einsums, strict=True)
    ]
    found += [nest for file in files for nest in _nests_of(file)]
    known = {x.name for w in found for x in w.einsum.size_params}
    if unknown := sorted(set(given) - known):
        raise typer.BadParameter(
            f"no size parameter is named {', '.join(unknown)}; there are "
            f"{', '.join(sorted(known)) or 'none'}",
            param_hint="--size",
        )
    return [_at(workload, given) for workload in found]


def _at(workload: Workload, given: Mapping[str, int]) -> Workload:
    """The workload at those of the given sizes that it has."""
    names = {x.name for x in workload.einsum.size_params}
    its = {name: value for name, value in given.items() if name in names}
    return replace(workload, sizes={**workload.sizes, **its})


def _nests_of(file: str) -> Iterator[Workload]:
    """The einsums of a kernel: its nests, by number if it has several.

    Raises:
        NotAnEinsumError: if it has none.
    """
    from feinsum.raising import raise_kernel, single_nest

    raised = raise_kernel(read_translation_unit(file))
    nests = raised.raised if len(raised.raised) > 1 else (single_nest(raised),)
    for k, nest in enumerate(nests):
        name = file if len(nests) == 1 else f"{file} [{k}]"
        yield Workload(name, "kernels", nest.einsum, nest.generalized)


def placed(workloads: Iterable[Workload], store: Store, device: Device) -> list[Placed]:
    """The work of each workload; that which the fact did, where there is one."""
    from feinsum.measure import Work

    found = []
    for workload in workloads:
        fact = _fact_of(workload.einsum, store, device)
        if fact is None:
            work = _work_of(workload)
        else:
            measured = fact.measurement
            work = Work(measured.operations, measured.footprint_bytes)
        found.append(Placed(workload, work, fact))
    return found


def bound_under(one: Placed, peaks: DevicePeaks) -> Bound | None:
    """Least traffic of the levels of a device for a workload; None if not known."""
    from feinsum.bounds import bound_at, levels_of
    from feinsum.errors import FeinsumError
    from feinsum.ir import from_text

    levels = levels_of(peaks.device, peaks)
    try:
        if one.fact is None:
            return bound_at(*_sized(one.workload), levels)
        measured = one.fact.measurement
        return bound_at(from_text(one.fact.workload_text), measured.sizes, levels)
    except FeinsumError:
        return None


def _work_of(workload: Workload) -> Work:
    from feinsum.measure import Work

    return Work.of(*_sized(workload))


def _sized(workload: Workload) -> tuple[BatchedEinsum, dict[str, int]]:
    """The einsum as facts know it, with all sizes."""
    from feinsum.ir import generalize
    from feinsum.tuning import default_sizes

    general, literal = generalize(workload.einsum)
    return general, default_sizes(general, {**literal, **workload.sizes})


def _fact_of(
    einsum: BatchedEinsum, store: Store, device: Device
) -> TuningRecord | None:
    """The best fact of exactly this workload on this device, or on one like it."""
    from feinsum.records import Level
    from feinsum.retrieval import query

    match = query(einsum, device=device.id, database=store)
    if match.level > Level.SAME_ARCHITECTURE:
        return None
    return match.record
