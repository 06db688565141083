"""Answers of ``best``: the facts that may serve on a device, the best first.

The service does not know the client's driver, and it runs nothing there. So
it narrows by device and policy and ranks; the level of a match is found by the
client, which knows its environment, with the same function as for any other
store (:func:`feinsum.records.best_match`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import Literal, TypeAlias, TypeVar, get_args

from feinsum.db.server import StoredFact, Summary
from feinsum.errors import InvalidRequestError
from feinsum.records import Device, Policy, TransformSpec, TuningRecord, rank
from feinsum.records.plausibility import SHIPPED
from feinsum.service.paging import to_cursor
from feinsum.service.texts import has_secret, is_storable, without_secrets

Nearness: TypeAlias = Literal["device", "architecture", "other"]
"""Measured on the device that was named; on another of its architecture; elsewhere."""

ACCEPTED: dict[Policy, tuple[Nearness, ...]] = {
    "strict": ("device",),
    "default": ("device", "architecture"),
    "loose": ("device", "architecture", "other"),
}

MOST_FACTS = 50
"""How many facts of each nearness are answered at most, the best ones."""

FEW = 3
"""How many facts of one recipe, recorder and device are answered at most."""

MOST_BYTES = 700_000
"""Bytes of the documents in one answer, except the first. With slower facts and the
rest of the answer, that is 1 MB. A cursor gives the remaining documents.
"""

MOST_OF_SLOWER = 200_000
"""Bytes of the slower facts in one answer."""

MOST_READ = 2_000_000
"""Bytes of the documents read for one answer."""

MOST_LOOKED_AT = 400
"""Most facts read for one answer."""

Near: TypeAlias = tuple[Nearness, TuningRecord]

Kind: TypeAlias = tuple[str, str | None]
"""Platform and microarchitecture of a device."""

T = TypeVar("T")

KEY = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
"""Pattern of workload keys."""

LONGEST_NAME = 300

_KEY = re.compile(KEY)


@dataclass(frozen=True)
class Wanted:
    """For which device, and how near facts have to be.

    Attributes:
        device: the id of a device, or its name; empty for any.
        architecture: ``kind/architecture``, such as ``cpu/x86_64``, for a device
            that the service may not know; empty if it is not said.
        start: how many facts were answered before.
        most_bytes: of the documents that are answered, but for the first one.
    """

    device: str = ""
    architecture: str = ""
    policy: Policy = "default"
    start: int = 0
    most_bytes: int = MOST_BYTES

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
        # without a time in its head: equal answers are equal bytes
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

    Trusted facts stand before all others (:mod:`feinsum.db.server.trust`). Among
    either, those of transforms that are not of this package stand last. Beside them
    stand trusted ones that say of the same recipes that they were no faster elsewhere:
    :func:`feinsum.records.best_match` needs them. What has no room is answered to who
    asks with the cursor ``next``.
    """
    stored = {}
    groups: dict[Nearness, list[TuningRecord]] = {near: [] for near in wanted.accepted}
    for fact in facts:
        near = wanted.nearness(fact.record.environment.device, known)
        if near in groups:
            groups[near].append(fact.record)
            stored[fact.record.id] = fact
    rankings = {near: rank(records) for near, records in groups.items()}
    chosen = [
        (near, record)
        for near, ranking in rankings.items()
        for record in _fair([stored[record.id] for record in ranking])
    ]
    chosen.sort(key=lambda one: not one[1].is_trusted)
    shown = list(_fitting(chosen[wanted.start :], stored, wanted.most_bytes))
    if not shown:
        return None
    end = wanted.start + len(shown)
    slower = _slower(groups, rankings, {_recipe(record) for _, record in shown})
    parts = _in_order(shown, rankings), list(_fitting(slower, stored, MOST_OF_SLOWER))
    good, bad = (
        ",".join(_entry(near, stored[record.id]) for near, record in part)
        for part in parts
    )
    following = json.dumps(to_cursor(end) if end < len(chosen) else None)
    body = (
        f'{{"workload":{json.dumps(workload)},"facts":[{good}],"slower":[{bad}],'
        f'"next":{following}}}'
    )
    states = [[(near, stored[r.id].state) for near, r in part] for part in parts]
    seen = repr((workload, states, following))
    digest = hashlib.sha256(seen.encode()).hexdigest()[:32]
    # a weak tag: the compressed body has the same one
    return Answer(f'W/"{digest}"'.encode(), body.encode())


def _entry(near: Nearness, fact: StoredFact) -> str:
    record = fact.record
    is_trusted = "true" if record.is_trusted else "false"
    return (
        f'{{"id":"{record.id}","nearness":"{near}","is_trusted":{is_trusted},'
        f'"document":{fact.document}}}'
    )


def chosen_ids(
    summaries: Iterable[Summary], wanted: Wanted, known: Mapping[str, Device]
) -> list[str]:
    """Ids of the facts to consider, for a workload with very many.

    Trusted facts go before others. Recorders have equal shares, and within one known
    transforms go before others, near devices before others, and fast recipes before
    slow ones.
    """
    shares: dict[bool, dict[str, list[Summary]]] = {True: {}, False: {}}
    near = {name: k for k, name in enumerate(wanted.accepted)}

    def place(one: Summary) -> int | None:
        device = known.get(one.device_id)
        return near.get(wanted.nearness(device, known)) if device else None

    for one in summaries:
        if place(one) is not None:
            shares[bool(one.is_trusted)].setdefault(one.recorder, []).append(one)
    for share in (share for either in shares.values() for share in either.values()):
        share.sort(key=lambda one: (not _is_known(one), place(one), -one.speedup))
    chosen: list[str] = []
    n_bytes = 0
    for one in chain.from_iterable(_in_turn(s.values()) for s in shares.values()):
        n_bytes += one.n_bytes
        if chosen and (n_bytes > MOST_READ or len(chosen) >= MOST_LOOKED_AT):
            break
        chosen.append(one.id)
    return chosen


def _is_known(one: Summary) -> bool:
    return (one.transform_name, one.transform_version) in SHIPPED


def _fair(ranking: Iterable[StoredFact]) -> list[TuningRecord]:
    """The facts of a ranking to answer: the trusted ones, then the others.

    Of either, those of known transforms come first, recorders and kinds of device in
    turn. A client prefers devices like its own, however fast recipes are on others, and
    nobody may fill an answer alone. At most :data:`FEW` are of one recipe, recorder and
    device.
    """
    n_alike: Counter[tuple[str, str, TransformSpec]] = Counter()
    queues: dict[tuple[bool, bool], dict[str, dict[Kind, list[TuningRecord]]]] = {
        (True, True): {},
        (True, False): {},
        (False, True): {},
        (False, False): {},
    }
    for fact in ranking:
        record, device = fact.record, fact.record.environment.device
        alike = fact.recorder, device.id, record.spec
        n_alike[alike] += 1
        if n_alike[alike] <= FEW:
            is_known = (record.spec.name, record.spec.version) in SHIPPED
            of_recorder = queues[record.is_trusted, is_known].setdefault(
                fact.recorder, {}
            )
            kind = device.platform, device.microarchitecture
            of_recorder.setdefault(kind, []).append(record)
    in_turn = (
        record
        for recorders in queues.values()
        for record in _in_turn(_in_turn(kinds.values()) for kinds in recorders.values())
    )
    return list(islice(in_turn, MOST_FACTS))


def _in_turn(queues: Iterable[Iterable[T]]) -> Iterator[T]:
    """The first of each queue, then the second of each, and so on.

    >>> list(_in_turn(["abc", "de"]))
    ['a', 'd', 'b', 'e', 'c']
    """
    nothing = object()
    for row in zip_longest(*queues, fillvalue=nothing):
        yield from (one for one in row if one is not nothing)  # type: ignore[misc]


def _fitting(
    facts: Iterable[Near], stored: Mapping[str, StoredFact], most_bytes: int
) -> Iterator[Near]:
    """The first facts that have room; one at least."""
    n_bytes = 0
    for k, (near, record) in enumerate(facts):
        n_bytes += len(stored[record.id].document)
        if k and n_bytes > most_bytes:
            return
        yield near, record


def _in_order(
    shown: Iterable[Near], rankings: Mapping[Nearness, Sequence[TuningRecord]]
) -> list[Near]:
    """The facts of an answer in order.

    Trusted ones first, then near ones, known transforms, and fast recipes.
    """
    ranks = {r.id: k for ranking in rankings.values() for k, r in enumerate(ranking)}
    nearness = list(rankings)

    def key(one: Near) -> tuple[bool, int, bool, int]:
        near, record = one
        is_known = (record.spec.name, record.spec.version) in SHIPPED
        place = nearness.index(near), not is_known, ranks[record.id]
        return not record.is_trusted, *place

    return sorted(shown, key=key)


def _slower(
    groups: Mapping[Nearness, Sequence[TuningRecord]],
    rankings: Mapping[Nearness, Sequence[TuningRecord]],
    recipes: Collection[tuple[TransformSpec, str]],
) -> list[Near]:
    """The trusted facts of some recipes that were not ranked."""
    ranked = {record.id for ranking in rankings.values() for record in ranking}
    found = [
        (near, record)
        for near, records in groups.items()
        for record in records
        if record.is_trusted and record.id not in ranked and _recipe(record) in recipes
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
            "'feinsum keys revoke', because URLs are logged"
        )
    if _KEY.fullmatch(workload):
        return workload
    raise InvalidRequestError(
        f"{workload[:150]!r} is not a workload key, expected letters, digits, '-', '_' "
        "and '.', 128 at most; /v1/canonicalize gives keys"
    )


def _check_name(what: str, name: str) -> None:
    if len(name) > LONGEST_NAME or not is_storable(name) or has_secret(name):
        given = without_secrets(name)[:50]
        raise InvalidRequestError(
            f"the {what} {given!r}... was given, expected at most {LONGEST_NAME} "
            "characters, no NUL, no lone surrogate, and no key of the service"
        )


def _architecture(device: Device) -> str:
    return f"{device.kind}/{device.architecture}"
