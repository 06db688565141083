"""Packaged facts: diffable text, one record per line, read-only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from importlib.resources import files
from itertools import chain
from pathlib import Path

from feinsum.records import Document, DocumentKind, Filters, Store, TuningRecord
from feinsum.records.document import from_json, to_json


@cache
def get_shipped_facts() -> ShippedStore:
    """Return the facts of this installation.

    >>> len(get_shipped_facts()) > 0
    True
    """
    folder = files("feinsum.db") / "packaged"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".jsonl"))
    return ShippedStore(tuple((folder / name).read_text("utf-8") for name in names))


def write_facts(records: Iterable[TuningRecord], path: Path) -> None:
    """Write records as text, in an order independent of theirs."""
    # by workload, so that a new fact changes one line of the file
    lines = sorted({(record.workload, to_json(record)) for record in records})
    path.write_text("".join(f"{line}\n" for _, line in lines), "utf-8")


class ShippedStore(Store):
    """Facts in texts, parsed on demand.

    Args:
        texts: files with one JSON document per line; see :func:`write_facts`.
    """

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        self._records: dict[str, TuningRecord] = {}

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        """The lines of each workload."""
        # A look-up needs a few of some thousand facts: only the key of each line is
        # read here, and a record is validated when its workload is looked up.
        lines: dict[str, list[str]] = {}
        for line in (line for text in self._texts for line in text.splitlines()):
            lines.setdefault(_parse_workload_key(line), []).append(line)
        return lines

    def select(self, kind: DocumentKind, filters: Filters) -> Iterator[Document]:
        if kind != "record":
            return
        lines, workload = self._lines, filters.workload
        chosen = lines.values() if workload is None else [lines.get(workload, [])]
        records = map(self._record, chain.from_iterable(chosen))
        yield from filter(filters.admit, sorted(records, key=lambda record: record.id))

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def _record(self, line: str) -> TuningRecord:
        if line not in self._records:
            self._records[line] = from_json(TuningRecord, line)
        return self._records[line]


def _parse_workload_key(line: str) -> str:
    return str(json.loads(line)["workload"])
