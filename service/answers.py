"""What ``best`` answers: the facts that may serve on a device, the best first.

The service does not know the driver of who asks, and it runs nothing there. So
it narrows by device and policy and ranks; the level of a match is found by the
client, which knows its environment, with the same function as for any other
store (:func:`feinsum.records.best_match`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import Literal, TypeAlias, get_args

from feinsum.db.server import StoredFact
from feinsum.errors import InvalidRequestError
from feinsum.records import Device, Policy, TransformSpec, TuningRecord, rank
from feinsum.service.texts import has_secret, is_storable, without_secrets

__all__ = ["MOST_FACTS", "Answer", "Nearness", "Wanted", "answer_of", "check_key"]

Nearness: TypeAlias = Literal["device", "architecture", "other"]
"""Measured on the device that was named; on another of its architecture; elsewhere."""

ACCEPTED: dict[Policy, tuple[Nearness, ...]] = {
    "strict": ("device",),
    "default": ("device", "architecture"),
    "loose": ("device", "architecture", "other"),
}

MOST_FACTS = 50
"""How many facts of each nearness are answered at most, the best ones."""

KEY = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
"""What a workload key may be."""

LONGEST_NAME = 300

_KEY = re.compile(KEY)


@dataclass(frozen=True)
class Wanted:
    """For which device, and how near facts have to be.

    Attributes:
        device: the id of a device, or its name; empty for any.
        architecture: ``kind/architecture``, such as ``cpu/x86_64``, for a device
            that the service may not know; empty if it is not said.
    """

    device: str = ""
    architecture: str = ""
    policy: Policy = "default"

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            known = ", ".join(get_args(Policy))
            raise InvalidRequestError(
                f"the policy {self.policy[:50]!r} was given, expected one of {known}"
            )
        for name in ("device", "architecture"):
            _check_name(name, getattr(self, name))

    def nearness(self, device: Device, known: Mapping[str, Device]) -> Nearness:
        """How near a device is.

        Args:
            known: devices by id, for the architecture of the one that is wanted.
        """
        if self.device in (device.id, device.name):
            return "device"
        if _architecture(device) == self.architecture:
            return "architecture"
        named = known.get(self.device)
        alike = (
            [named] if named else [d for d in known.values() if d.name == self.device]
        )
        if _architecture(device) in map(_architecture, alike):
            return "architecture"
        return "other"

    @property
    def accepted(self) -> tuple[Nearness, ...]:
        """How near facts may be, the nearest first; all if no place was named."""
        is_anywhere = not (self.device or self.architecture)
        return ACCEPTED["loose" if is_anywhere else self.policy]


@dataclass(frozen=True)
class Answer:
    """An answer as it is sent.

    Attributes:
        etag: changes exactly if the facts in it do.
    """

    etag: bytes
    body: bytes

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.body, compresslevel=5, mtime=0)

    @property
    def n_bytes(self) -> int:
        """How much memory it may take, its compressed form included."""
        return len(self.body) * 7 // 5 + 500


def answer_of(
    workload: str,
    facts: Iterable[StoredFact],
    wanted: Wanted,
    known: Mapping[str, Device],
) -> Answer | None:
    """The facts that may serve, by nearness and rank; None if there is none.

    Beside them stand those that say of the same recipes that they were no faster
    elsewhere: :func:`feinsum.records.best_match` needs them.
    """
    documents = {}
    groups: dict[Nearness, list[TuningRecord]] = {near: [] for near in wanted.accepted}
    for fact in facts:
        near = wanted.nearness(fact.record.environment.device, known)
        if near in groups:
            groups[near].append(fact.record)
            documents[fact.record.id] = fact.document
    rankings = {near: rank(records) for near, records in groups.items()}
    chosen = [(n, r) for n, ranking in rankings.items() for r in _first(ranking)]
    if not chosen:
        return None
    slower = _slower(groups, rankings, {_recipe(record) for _, record in chosen})
    ids = [[(near, record.id) for near, record in part] for part in (chosen, slower)]
    good, bad = (
        ",".join(
            f'{{"id":"{one}","nearness":"{near}","document":{documents[one]}}}'
            for near, one in part
        )
        for part in ids
    )
    body = f'{{"workload":{json.dumps(workload)},"facts":[{good}],"slower":[{bad}]}}'
    digest = hashlib.sha256(repr((workload, ids)).encode()).hexdigest()[:32]
    return Answer(f'W/"{digest}"'.encode(), body.encode())


def _first(ranking: Sequence[TuningRecord]) -> list[TuningRecord]:
    """Of a ranking no more than are answered, from each kind of device in turn.

    For a client prefers devices like its own, however fast recipes are on others.
    """
    kinds: dict[tuple[str, str | None], list[TuningRecord]] = {}
    for record in ranking:
        device = record.environment.device
        kind = device.platform, device.microarchitecture
        kinds.setdefault(kind, []).append(record)
    in_turn = chain.from_iterable(zip_longest(*kinds.values()))
    chosen = {r.id for r in islice((r for r in in_turn if r), MOST_FACTS)}
    return [record for record in ranking if record.id in chosen]


def _slower(
    groups: Mapping[Nearness, Sequence[TuningRecord]],
    rankings: Mapping[Nearness, Sequence[TuningRecord]],
    recipes: Collection[tuple[TransformSpec, str]],
) -> list[tuple[Nearness, TuningRecord]]:
    """The facts of some recipes that were not ranked."""
    ranked = {record.id for ranking in rankings.values() for record in ranking}
    found = [
        (near, record)
        for near, records in groups.items()
        for record in records
        if record.id not in ranked and _recipe(record) in recipes
    ]
    return sorted(found, key=lambda one: one[1].id)[:MOST_FACTS]


def _recipe(record: TuningRecord) -> tuple[TransformSpec, str]:
    return record.spec, record.workload_text


def check_key(workload: str) -> str:
    """A workload key that can be one.

    Raises:
        InvalidRequestError: if it cannot.
    """
    if has_secret(workload):
        raise InvalidRequestError(
            "a key of the service was given as the key of a workload; revoke it with "
            "'feinsum keys revoke', for addresses are kept in logs"
        )
    if _KEY.fullmatch(workload):
        return workload
    raise InvalidRequestError(
        f"{workload[:150]!r} is no workload key, expected letters, digits, '-', '_' "
        "and '.', 128 at most; /v1/canonicalize gives keys"
    )


def _check_name(what: str, name: str) -> None:
    if len(name) > LONGEST_NAME or not is_storable(name) or has_secret(name):
        given = without_secrets(name)[:50]
        raise InvalidRequestError(
            f"the {what} {given!r}... was given, expected at most {LONGEST_NAME} "
            "characters, no NUL, no half of a character, and no key of the service"
        )


def _architecture(device: Device) -> str:
    return f"{device.kind}/{device.architecture}"
