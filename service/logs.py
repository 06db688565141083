"""Logs: one JSON document a line, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

FIELD = "fields"
"""Where a record carries what is more than its message."""


class JsonLines(logging.Formatter):
    """A record as a line: time, level, logger, message, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELD, {}),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document)


def configure(level: str) -> None:
    """Send the logs of this process to standard error as :class:`JsonLines`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
