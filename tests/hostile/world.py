"""Honest facts, an attacker with three keys, and what honest clients are served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from feinsum.db.remote.answers import list_valid_documents
from feinsum.db.server.api_keys import ApiKey
from feinsum.db.server.serving import open_serving_store
from feinsum.records import (
    Device,
    Measurement,
    Policy,
    RetractionQuery,
    TransformSpec,
    TuningRecord,
    find_best_match,
    to_json,
)
from feinsum.service import make_key
from tests.db.factories import (
    make_device,
    make_environment,
    make_measurement,
    make_processor,
    make_record,
    make_workload,
)
from tests.service.running import Server

__all__ = ["HONEST", "NAMES", "Attacker", "Served", "World", "faster", "new_keys"]

DEVICES = (make_device(0, make_processor()), make_device(1, make_processor("zen4")))

WORKLOADS = tuple(map(make_workload, range(2)))

SPECS = (
    TransformSpec("rowwise", 2, {"index": "a", "lanes": 8}),
    TransformSpec("packed_contraction", 2, {"depth": 4, "vector": "b"}),
    TransformSpec("generic", 3, {"block": 64}),
)


POLICIES: tuple[Policy, ...] = ("strict", "default", "loose")

NAMES = ("eve", "mallory", "oscar", "trudy")
"""Names of the keys of the attacker."""

Served: TypeAlias = dict[tuple[str, str, str], list[str]]
"""Recipes by workload, device and policy."""


def faster(measured: Measurement, factor: float) -> Measurement:
    """The same with times shorter by a factor."""
    samples = tuple(sample / factor for sample in measured.samples_s)
    return replace(measured, samples_s=samples)


def honest_facts() -> list[TuningRecord]:
    """Three recipes for every workload and device, each slower than the one before."""
    found = []
    for workload in WORKLOADS:
        for device in DEVICES:
            environment = make_environment(device)
            for n, spec in enumerate(SPECS):
                fact = make_record(workload=workload, environment=environment)
                measured = faster(make_measurement(1e-3), 3 / (n + 1))
                found.append(replace(fact, spec=spec, measurement=measured))
    return found


HONEST = honest_facts()
"""Recorded into the database itself."""


def new_keys(names: Sequence[str]) -> tuple[list[str], list[ApiKey]]:
    """Secrets that may record and are not trusted, and their keys."""
    made = [make_key(name, "record") for name in names]
    return [secret for secret, _ in made], [key for _, key in made]


@dataclass(frozen=True)
class Attacker:
    """Who sends documents with one of some keys."""

    server: Server
    secrets: tuple[str, ...]

    def send(
        self, document: str, who: int = 0, path: str = "/v1/facts"
    ) -> tuple[int, Any]:
        """The status and the body of what the service says."""
        headers = {"Authorization": f"Bearer {self.secrets[who]}"}
        answer = self.server.ask("POST", path, document, headers)
        return answer.status, answer.json()

    def record(self, fact: TuningRecord, who: int = 0) -> tuple[int, Any]:
        return self.send(to_json(fact), who)

    def get(self, path: str) -> tuple[int, Any]:
        answer = self.server.ask("GET", path)
        return answer.status, answer.json()


@dataclass(frozen=True)
class World:
    """A running service that is attacked."""

    attacker: Attacker
    database: str

    def served(self) -> Served:
        """The recipes that honest clients get, best first, by workload and device."""
        return {
            (workload, device.id, policy): self._recipes(workload, device, policy)
            for workload in WORKLOADS
            for device in DEVICES
            for policy in POLICIES
        }

    def check(self, before: Served) -> None:
        """What honest clients got they still get, before anything of an attacker."""
        for place, recipes in self.served().items():
            assert recipes[: len(before[place])] == before[place], place

    def answered(self, fact: TuningRecord) -> list[str]:
        """The ids in the answer to the strictest question that leads to a fact."""
        answer = self._answer(fact.workload, fact.environment.device, "strict")
        return [one["id"] for one in answer["facts"]]

    def retract_attackers(self) -> None:
        """The one command of an operator."""
        query = RetractionQuery(recorders=NAMES)
        with open_serving_store(self.database) as store:
            store.retract(query, reason="lies", retracted_by="op", is_dry_run=False)

    def _recipes(self, workload: str, device: Device, policy: Policy) -> list[str]:
        """Those of the answer; a client tries the one first that it says is first."""
        answer = self._answer(workload, device, policy)
        assert answer["slower"] == []
        records = cast(
            list[TuningRecord],
            list_valid_documents("record", answer["facts"], workload),
        )
        match = find_best_match(records, make_environment(device), policy)
        recipes = list(dict.fromkeys(str(record.spec) for record in records))
        assert str(match.ranking[0].spec) == recipes[0]
        return recipes

    def _answer(self, workload: str, device: Device, policy: Policy) -> Any:
        path = f"/v1/best/{workload}?device={device.id}&policy={policy}"
        status, answer = self.attacker.get(path)
        assert status == 200
        return answer
