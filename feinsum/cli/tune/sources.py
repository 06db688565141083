"""Tune several workloads, one after the other; a failure ends only its own tuning.

Workloads come from suites and files, leaves of a plan, or unanswered look-ups of a
service. A file has an einsum and its sizes on each line, or is CSV or JSON::

    einsum,sizes,size
    "ij,j->i","i=n,j=4","n=1000000"
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feinsum.cli.demand import list_demands
from feinsum.cli.shared.failure import FAILED, say
from feinsum.cli.shared.notation import read_einsum, read_values
from feinsum.cli.shared.options import DEFAULT_DTYPE
from feinsum.cli.shared.output import check_reading
from feinsum.cli.tune.run import tune_one
from feinsum.errors import FeinsumError, InvalidEinsumError
from feinsum.words import format_count

if TYPE_CHECKING:
    from feinsum.calling.host.builder import BuildRequest
    from feinsum.ir import BatchedEinsum
    from feinsum.records import Device

FIELDS = ("einsum", "sizes", "size", "dtype")
"""Fields of a workload in CSV or JSON; only the first is required."""
CALL = "call"
"""The field of a call that :func:`feinsum.profile` has listed, in JSON."""


FromMisses: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL|DATABASE",
        help="Tune the workloads that a service could not answer for this device, "
        "most wanted first.",
    ),
]
Workloads: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Maximum number of workloads to tune. Default: all."
    ),
]
PlanFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Tune the leaves of a plan."),
]
Suites: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Tune the workloads of a suite (tccg, dgfem, everyday) or of a "
        "file: CSV, JSON, or lines of an einsum and its sizes. May be repeated.",
    ),
]


@dataclass(frozen=True)
class SourceOptions:
    """Options that select several workloads, and how many of them are tuned."""

    suite: Suites = None
    plan: PlanFile = None
    from_misses: FromMisses = None
    workloads: Workloads = None

    def get_selected(self) -> str | None:
        """Return the option that selects workloads; None if there is none.

        Raises:
            typer.BadParameter: if there are several.
        """
        sources = {
            "--plan": self.plan,
            "--suite": self.suite,
            "--from-misses": self.from_misses,
        }
        options = [option for option, source in sources.items() if source]
        if len(options) > 1:
            raise typer.BadParameter(f"give {' or '.join(options)}")
        return options[0] if options else None


@dataclass(frozen=True)
class Entry:
    """A workload to tune.

    Attributes:
        name: its name in a suite, or its origin; printed before the tuning.
        sizes: values of size parameters, which options override.
        call: the call for which a kernel is built once its einsum is tuned.
    """

    name: str
    einsum: BatchedEinsum
    sizes: dict[str, int] = field(default_factory=dict)
    call: BuildRequest | None = None


def tune_each(
    sources: SourceOptions, database: str | None, options: dict[str, Any]
) -> None:
    """Tune the workloads that an option selects.

    Facts are recorded in ``database`` or, without one, where the misses are counted, if
    that is a database.

    Raises:
        typer.Exit: with :data:`FAILED` if one of them failed.
    """
    from feinsum.db import is_service
    from feinsum.measure import open_device

    entries: Iterable[Entry]
    if sources.plan:
        entries, noun = read_leaves(sources.plan), "leaves of the plan"
    elif sources.suite:
        entries, noun = read_suites(sources.suite), "workload"
    else:
        misses = sources.from_misses or ""
        if database is None and not is_service(misses):
            database = misses
        device = open_device(options["device"]).device
        entries, noun = list_demanded(misses, device), "requested workload"
    outcomes = [
        _is_tuned(entry, database, options)
        for entry in islice(entries, sources.workloads)
    ]
    n_good = sum(outcomes)
    typer.echo(f"tuned {n_good} of {format_count(len(outcomes), noun)}")
    if n_good < len(outcomes):
        raise typer.Exit(FAILED)


def _is_tuned(entry: Entry, database: str | None, options: dict[str, Any]) -> bool:
    """Tune one workload; return whether that succeeded, and print why not."""
    typer.echo(f"{entry.name}: {entry.einsum}")
    try:
        tune_one(lambda: (entry.einsum, entry.sizes), database, options)
    except FeinsumError as error:
        say(f"[{error.code}] {error}")
        return False
    if entry.call is not None:
        _build(replace(entry.call, database=database))
    return True


def _build(call: BuildRequest) -> None:
    """Build the kernel that later processes try for a call."""
    from feinsum.calling.host.builder import build_elsewhere

    try:
        build_elsewhere(call)
    except FeinsumError as error:  # the facts are recorded in any case
        say(f"no kernel was built for later calls: {error}")


def read_leaves(path: Path) -> list[Entry]:
    """Read the distinct leaves of a plan."""
    from feinsum.distributed import Plan
    from feinsum.ir import from_text

    with check_reading(path, "--plan"):
        plan = Plan.from_json(path.read_bytes())
    leaves = {leaf.key: leaf.text for leaf in plan.leaves}
    return [Entry("a leaf of the plan", from_text(text)) for text in leaves.values()]


def list_demanded(source: str, device: Device) -> Iterator[Entry]:
    """Yield einsums that a service could not answer for a device, most wanted first.

    A demand without a text, with a text that does not have its key, or for another
    device is skipped: anyone may have sent it.

    Args:
        source: URL of a service, or the location of its database.
        device: the device to tune for.

    Raises:
        StoreUnavailableError: if it does not answer.
        ServiceError: if it refuses, or is not a feinsum service.
    """
    from feinsum.canonical import canonicalize
    from feinsum.ir import from_text

    for demand in list_demands(source):
        if demand.device not in ("", device.id, device.name):
            continue
        try:
            einsum = from_text(demand.workload_text or "")
            has_key = canonicalize(einsum).key == demand.workload
        except FeinsumError:
            has_key = False
        if has_key:
            yield Entry(f"requested {format_count(demand.count, 'time')}", einsum)


def read_suites(names: Sequence[str]) -> list[Entry]:
    """Read the workloads of suites and files, each once, in their order.

    Raises:
        typer.BadParameter: if there is no such suite or file; naming each line that
            is no workload.
    """
    from feinsum.tuning import make_problem

    entries = [entry for name in names for entry in _read_entries(name)]
    # suites and files overlap, and spellings differ
    by_problem: dict[object, Entry] = {}
    for entry in entries:
        problem = make_problem(entry.einsum, entry.sizes)
        key = str(problem.form.key), tuple(problem.sizes.items())
        by_problem.setdefault(key, entry)
    return list(by_problem.values())


def _read_entries(name: str) -> list[Entry]:
    from feinsum.suites import EVERYDAY, NAMES, read_suite

    suites = (*NAMES, EVERYDAY)
    if name in suites:
        return [Entry(e.name, e.einsum(), e.parameters) for e in read_suite(name)]
    path = Path(name)
    if not path.is_file():
        raise _refuse(
            f"there is no suite or file {name!r}; expected {', '.join(suites)}, or a "
            "file: .csv, .json, or text with an einsum and its sizes on each line"
        )
    return _read_file_entries(path)


def _read_file_entries(path: Path) -> list[Entry]:
    """Read every workload of a file; report all its mistakes at once."""
    entries, problems = [], []
    for location, fields in _read(path):
        try:
            entries.append(_parse_entry(f"{path}, {location}", fields))
        except (InvalidEinsumError, typer.BadParameter) as error:
            text = getattr(error, "message", None) or str(error)
            problems.append(f"{path}, {location}: {text}")
    if problems:
        raise _refuse("; ".join(problems))
    if not entries:
        raise _refuse(f"{path} has no workloads")
    return entries


def _read(path: Path) -> Iterable[tuple[str, Any]]:
    """Return the workloads of a file as written, with the location of each."""
    with check_reading(path, "--suite"):
        text = path.read_text("utf-8")
    # by the suffix: content alone does not determine the format
    read = {".csv": _read_csv, ".json": _read_json}.get(path.suffix, _read_lines)
    try:
        return list(read(text, path))
    except csv.Error as error:
        raise _refuse(f"{path} is not CSV: {error}") from None


def _read_lines(text: str, _path: Path) -> Iterator[tuple[str, Any]]:
    """Read lines of an einsum, sizes and parameters; ``#`` begins a comment."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        n_rest = len(list(takewhile(lambda word: "=" in word, reversed(words))))
        # subscripts may have spaces; sizes have none
        n = len(words) - min(n_rest, 2)
        rest = zip(("sizes", "size"), words[n:], strict=False)
        yield f"line {number}", {"einsum": " ".join(words[:n]), **dict(rest)}


def _read_csv(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Read rows under a heading with the names of the fields."""
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    heading = rows.fieldnames or []
    if "einsum" not in heading or not set(heading) <= set(FIELDS):
        raise _refuse(
            f"{path}, line 1: the columns are {list(heading)}; expected 'einsum' and "
            f"some of {list(FIELDS[1:])}"
        )
    for row in rows:
        location = f"line {rows.line_num}"
        if None in row:
            problem = f"{path}, {location}: too many cells; quote those with commas"
            raise _refuse(problem)
        yield location, {k: v for k, v in row.items() if v}


def _read_json(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a JSON list, counted from 1."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _refuse(f"{path} is not JSON: {error}") from None
    if not isinstance(document, list):
        raise _refuse(f"{path}: expected a list of workloads")
    yield from ((f"workload {k}", item) for k, item in enumerate(document, 1))


def _parse_entry(name: str, fields: Any) -> Entry:
    if not isinstance(fields, dict) or not set(fields) <= {*FIELDS, CALL}:
        raise _refuse(f"expected an object with 'einsum' and some of {FIELDS[1:]}")
    call = _call(fields[CALL]) if CALL in fields else None
    texts = {
        key: _format_field(key, value) for key, value in fields.items() if key != CALL
    }
    if "einsum" not in texts:
        raise _refuse("the einsum is missing")
    einsum = read_einsum(
        texts["einsum"],
        [texts["sizes"]] if "sizes" in texts else None,
        dtype=texts.get("dtype", DEFAULT_DTYPE),
    )
    return Entry(name, einsum, read_values([texts.get("size", "")], "size"), call)


def _call(document: Any) -> BuildRequest:
    from feinsum.calling.host.builder import BuildRequest

    try:
        call = BuildRequest(**document)
        call.key  # noqa: B018  (computed from all fields, which may be anything)
    except (FeinsumError, KeyError, TypeError, ValueError) as error:
        raise _refuse(f"the call is not one of feinsum.profile: {error}") from None
    return call


def _format_field(key: str, value: Any) -> str:
    """Format a field in the syntax of its option; sizes may be an object."""
    if isinstance(value, str):
        # a comma separates cells of CSV
        return value.replace(";", ",") if key in ("sizes", "size") else value
    if isinstance(value, dict) and key in ("sizes", "size"):
        return ",".join(f"{name}={size}" for name, size in value.items())
    raise _refuse(f"{key} is {value!r:.40}; expected a string")


def _refuse(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--suite")
