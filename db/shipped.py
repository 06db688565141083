"""Packaged facts: diffable text, one record per line, read-only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

from feinsum.canonical import WorkloadKey
from feinsum.errors import RecordNotFoundError
from feinsum.records import FactSource, TuningRecord
from feinsum.records.document import from_json, to_json


@cache
def shipped_facts() -> ShippedStore:
    """The facts of this installation.

    >>> len(shipped_facts()) > 0
    True
    """
    folder = files("feinsum.db") / "packaged"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".jsonl"))
    return ShippedStore(tuple((folder / name).read_text("utf-8") for name in names))


def write_facts(records: Iterable[TuningRecord], path: Path) -> None:
    """Write records as text, in an order independent of theirs."""
    lines = {record.id: to_json(record) for record in records}
    ordered = sorted(lines.values(), key=lambda line: _workload(line) + line)
    path.write_text("".join(f"{line}\n" for line in ordered), "utf-8")


class ShippedStore(FactSource):
    """Facts in texts, which are read on demand.

    Args:
        texts: files with one JSON document per line; see :func:`write_facts`.
    """

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        self._records: dict[str, TuningRecord] = {}

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        """The lines of each workload; nothing else of them is read yet."""
        found: dict[str, list[str]] = {}
        for line in (line for text in self._texts for line in text.splitlines()):
            found.setdefault(_workload(line), []).append(line)
        return found

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        read = [self._record(line) for line in self._lines.get(workload, [])]
        wanted = [r for r in read if device_id in (None, r.environment.device.id)]
        return tuple(sorted(wanted, key=lambda record: record.id))

    def get(self, record_id: str) -> TuningRecord:
        for record in self.records():
            if record.id == record_id:
                return record
        raise RecordNotFoundError(f"no packaged fact has the id {record_id!r}")

    def records(self) -> Iterator[TuningRecord]:
        read = [self._record(line) for lines in self._lines.values() for line in lines]
        yield from sorted(read, key=lambda record: record.id)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def _record(self, line: str) -> TuningRecord:
        if line not in self._records:
            self._records[line] = from_json(TuningRecord, line)
        return self._records[line]


def _workload(line: str) -> str:
    return str(json.loads(line)["workload"])
