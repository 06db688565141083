"""A service in the hands of somebody who wants to be served: a real HTTP server.

Whatever it is asked, it answers with the facts that it was given, under the keys that
were asked for, and with as much beside them as a test wants.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable
from dataclasses import replace

from feinsum.records import TuningRecord
from tests.remote.answers import entry
from tests.remote.chaos import ChaosServer, head

_ONE = re.compile(r"GET /v1/best/([^? ]+)")


class PoisonedService:
    """Answers look-ups; see :func:`tests.remote.chaos.chaos`.

    Args:
        facts: what it says of every workload that they are of.
        doubted: the same, of keys that its operator does not trust.
        filler: bytes that stand before each fact of an answer.
    """

    def __init__(
        self,
        facts: Iterable[TuningRecord],
        filler: int = 0,
        doubted: Iterable[TuningRecord] = (),
    ) -> None:
        self.facts, self.filler = tuple(facts), filler
        self.doubted = tuple(doubted)

    def __call__(self, server: ChaosServer, stream: socket.socket) -> None:
        server.send(stream, self.answer(server.requests[-1]))

    def answer(self, asked: str) -> bytes:
        """Return the whole response to a request."""
        if one := _ONE.match(asked):
            body = self._about(one[1])
        else:
            document = json.loads(asked.partition("\r\n\r\n")[2])
            keys = [
                x if isinstance(x, str) else x["key"] for x in document["workloads"]
            ]
            body = f'{{"answers": [{", ".join(map(self._about, keys))}]}}'
        content = body.encode()
        return head("200 OK", "application/json", len(content)) + content

    def _about(self, key: str) -> str:
        told = [entry(fact) for fact in self.facts if fact.workload == key]
        told += [
            entry(fact, is_trusted=False)
            for fact in self.doubted
            if fact.workload == key
        ]
        if not told:
            return "null"
        if self.filler:
            told = [x for fact in told for x in (fact, {"filler": "x" * self.filler})]
        return json.dumps({"workload": key, "facts": told, "slower": []})


def forged(record: TuningRecord, seconds: float = 1e-30) -> TuningRecord:
    """The fact with a time that nobody could reach, and a baseline that is usual."""
    measured = replace(
        record.measurement, samples_s=(seconds,) * 5, baseline_s=(1e-3,) * 5
    )
    return replace(record, measurement=measured)
