"""Answers as a service sends them, right or wrong."""

from __future__ import annotations

import json
from typing import Any

from feinsum.records import TuningRecord, to_json
from tests.db.factories import WORKLOAD


def entry(record: TuningRecord, **changes: Any) -> dict[str, Any]:
    """A fact of an answer; ``changes`` are made to the entry, not to the document."""
    document = json.loads(to_json(record))
    return {"id": record.id, "nearness": "device", "document": document, **changes}


def best_of(*records: TuningRecord, workload: str = WORKLOAD) -> str:
    """What ``best`` answers."""
    facts = [entry(record) for record in records]
    return json.dumps({"workload": workload, "facts": facts, "slower": []})
