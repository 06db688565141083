"""A process that adds facts and reports each one that was acknowledged."""

from __future__ import annotations

import os
import signal
from typing import NoReturn, Self

from feinsum.db import open_store
from tests.db.factories import make_record


class Writer:
    """Adds facts in a process of its own, which is forked: it starts at once.

    Attributes:
        stdout: the ids of facts, each written when it was acknowledged.
        returncode: of the process, once it was waited for.
    """

    def __init__(self, database: str | os.PathLike[str], first: int, count: int):
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _write_facts(database, range(first, first + count), writing)
        os.close(writing)
        self.stdout = os.fdopen(reading)
        self.returncode: int | None = None

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def read_to_end(self) -> str:
        """What the process still writes, until it ends."""
        with self.stdout:
            text = self.stdout.read()
        _, status = os.waitpid(self._pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.returncode is None:
            self.kill()
            self.read_to_end()


def _write_facts(
    database: str | os.PathLike[str], numbers: range, writing: int
) -> NoReturn:
    """The forked process: it must never go on as a second runner of tests."""
    exit_code = 1
    try:
        with os.fdopen(writing, "w") as acknowledged, open_store(database) as store:
            for number in numbers:
                record = make_record(number)
                store.add(record)
                print(record.id, file=acknowledged, flush=True)
        exit_code = 0
    finally:
        os._exit(exit_code)
