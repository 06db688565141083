"""A process that adds facts and reports each one that was acknowledged.

Run as ``python -m tests.db.writer DATABASE FIRST COUNT`` in the root folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from feinsum.db import open_store
from tests.db.factories import make_record

ROOT = Path(__file__).resolve().parents[2]


def start(
    database: str | os.PathLike[str], first: int, count: int
) -> subprocess.Popen[str]:
    """Begin to add ``count`` facts from number ``first`` on, in a new process."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.db.writer",
            os.fspath(database),
            f"{first}",
            f"{count}",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def main(database: str, first: str, count: str) -> None:
    with open_store(database) as store:
        for number in range(int(first), int(first) + int(count)):
            record = make_record(number)
            store.add(record)
            print(record.id, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
