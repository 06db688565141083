"""Workloads of ``--suite``: a suite of the package, or a file of one's own."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from feinsum.cli.shared.notation import DEFAULT_DTYPE, read_einsum, read_values
from feinsum.errors import InvalidEinsumError

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum

FIELDS = ("einsum", "sizes", "size", "dtype")
"""Fields of a workload in CSV or JSON; only the first is required."""


@dataclass(frozen=True)
class Entry:
    """A workload to tune.

    Attributes:
        name: of the entry of a suite, or where it is in a file.
        sizes: values of size parameters.
    """

    name: str
    einsum: BatchedEinsum
    sizes: dict[str, int] = field(default_factory=dict)


def read_suites(names: Sequence[str]) -> list[Entry]:
    """The workloads of suites and files, each once, in their order.

    Raises:
        typer.BadParameter: if there is no such suite or file; naming each line that
            is no workload.
    """
    from feinsum.tuning import make_problem

    entries = [entry for name in names for entry in _entries(name)]
    by_problem: dict[object, Entry] = {}
    for entry in entries:
        problem = make_problem(entry.einsum, entry.sizes)
        key = str(problem.form.key), tuple(problem.sizes.items())
        by_problem.setdefault(key, entry)
    return list(by_problem.values())


def _entries(name: str) -> list[Entry]:
    from feinsum.suites import EVERYDAY, NAMES, read_suite

    known = (*NAMES, EVERYDAY)
    if name in known:
        return [Entry(e.name, e.einsum(), e.parameters) for e in read_suite(name)]
    path = Path(name)
    if not path.is_file():
        raise _refuse(
            f"there is no suite or file {name!r}; expected {', '.join(known)}, or a "
            "file: .csv, .json, or text with an einsum and its sizes on each line"
        )
    return _file_entries(path)


def _file_entries(path: Path) -> list[Entry]:
    """Every workload of a file; all that is wrong with it is said at once."""
    found, problems = [], []
    for place, fields in _read(path):
        try:
            found.append(_entry(f"{path}, {place}", fields))
        except (InvalidEinsumError, typer.BadParameter) as error:
            text = getattr(error, "message", None) or str(error)
            problems.append(f"{path}, {place}: {text}")
    if problems:
        raise _refuse("; ".join(problems))
    if not found:
        raise _refuse(f"{path} has no workloads")
    return found


def _read(path: Path) -> Iterable[tuple[str, Any]]:
    """The workloads of a file as they are written, and the place of each."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refuse(f"{path} cannot be read: {error}") from None
    read = {".csv": _read_csv, ".json": _read_json}.get(path.suffix, _read_lines)
    try:
        return list(read(text, path))
    except csv.Error as error:
        raise _refuse(f"{path} is not CSV: {error}") from None


def _read_lines(text: str, _path: Path) -> Iterator[tuple[str, Any]]:
    """Lines of an einsum, its sizes, and those of parameters; # begins a comment."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        n_rest = len(list(takewhile(lambda word: "=" in word, reversed(words))))
        n = len(words) - min(n_rest, 2)
        rest = zip(("sizes", "size"), words[n:], strict=False)
        yield f"line {number}", {"einsum": " ".join(words[:n]), **dict(rest)}


def _read_csv(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Rows under a heading with the names of the fields."""
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    heading = rows.fieldnames or []
    if "einsum" not in heading or not set(heading) <= set(FIELDS):
        raise _refuse(
            f"{path}, line 1: the columns are {list(heading)}; expected 'einsum' and "
            f"some of {list(FIELDS[1:])}"
        )
    for row in rows:
        place = f"line {rows.line_num}"
        if None in row:
            problem = f"{path}, {place}: too many cells; quote those with commas"
            raise _refuse(problem)
        yield place, {k: v for k, v in row.items() if v}


def _read_json(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """A list of objects; they are counted from 1."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _refuse(f"{path} is not JSON: {error}") from None
    if not isinstance(document, list):
        raise _refuse(f"{path}: expected a list of workloads")
    yield from ((f"workload {k}", item) for k, item in enumerate(document, 1))


def _entry(name: str, fields: Any) -> Entry:
    if not isinstance(fields, dict) or not set(fields) <= set(FIELDS):
        raise _refuse(f"expected an object with 'einsum' and some of {FIELDS[1:]}")
    texts = {key: _text(key, value) for key, value in fields.items()}
    if "einsum" not in texts:
        raise _refuse("the einsum is missing")
    einsum = read_einsum(
        texts["einsum"],
        [texts["sizes"]] if "sizes" in texts else None,
        dtype=texts.get("dtype", DEFAULT_DTYPE),
    )
    return Entry(name, einsum, read_values([texts.get("size", "")], "size"))


def _text(key: str, value: Any) -> str:
    """A field as the option of that name is written; JSON has sizes as objects too."""
    if isinstance(value, str):
        return value.replace(";", ",") if key in ("sizes", "size") else value
    if isinstance(value, dict) and key in ("sizes", "size"):
        return ",".join(f"{name}={size}" for name, size in value.items())
    raise _refuse(f"{key} is {value!r:.40}; expected a string")


def _refuse(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--suite")
