"""Answers of ``best``: the facts that may serve on a device, the best first.

For a target ``cpu/x86_64`` with the policy ``default``, facts of that architecture are
answered, in this order::

    trusted keys             other keys
    device, architecture     device, architecture
    by rank, recorders and kinds of device taking turns

The service does not know the client's driver, and it runs nothing there. So it narrows
by device and policy and ranks; the client, which knows its environment, finds the level
of a match with the same function as for any other store
(:func:`feinsum.records.best_match`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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

MAX_FACTS = 50
"""Facts of each nearness in the answers to one query."""

MAX_ALIKE = 3
"""Facts of one recipe, recorder and device: nobody fills an answer with copies."""

MAX_BYTES = 700_000
"""Bytes of the documents in one answer, except the first. With slower facts and the
rest of the answer, that is 1 MB. A cursor gives the remaining documents.
"""

MAX_SLOWER_BYTES = 200_000
"""Bytes of the slower facts in one answer."""

MAX_READ_BYTES = 2_000_000
"""Bytes of the documents read for one answer."""

MAX_READ_FACTS = 400
"""Facts read for one answer."""

T = TypeVar("T")

KEY = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
"""Pattern of workload keys."""

MAX_NAME = 300
"""Characters of the name of a device or of an architecture."""

_KEY = re.compile(KEY)


@dataclass(frozen=True)
class DeviceQuery:
    """The device of a query, and how near facts have to be.

    Attributes:
        device: the id of a device, or its name; empty for any.
        architecture: ``kind/architecture``, such as ``cpu/x86_64``, for a device
            that the service may not know; empty if it is not known.
        start: how many facts were answered before.
        max_bytes: bytes of the documents in the answer, except the first.
    """

    device: str = ""
    architecture: str = ""
    policy: Policy = "default"
    start: int = 0
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            policies = ", ".join(get_args(Policy))
            raise InvalidRequestError(
                f"the policy {self.policy[:50]!r} was given, expected one of {policies}"
            )
        for name in ("device", "architecture"):
            _check_name(name, getattr(self, name))

    def nearness(self, device: Device, devices: Mapping[str, Device]) -> Nearness:
        """How near a device is.

        Args:
            devices: all by id, for the architecture of the one that is named.
        """
        if self.device in (device.id, device.name):
            return "device"
        if _architecture(device) == self.architecture:
            return "architecture"
        named = devices.get(self.device)
        # a name may stand for several devices
        namesakes = (
            [named] if named else [d for d in devices.values() if d.name == self.device]
        )
        if _architecture(device) in map(_architecture, namesakes):
            return "architecture"
        return "other"

    @property
    def accepted(self) -> tuple[Nearness, ...]:
        """How near facts may be, the nearest first; any if no device was named."""
        # without a device no policy can narrow
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


@dataclass(frozen=True)
class _Candidate:
    """A fact that may be in an answer.

    Attributes:
        position: in the ranking of its nearness; None if its recipe was no
            faster than the untransformed kernel.
    """

    fact: StoredFact
    nearness: Nearness
    position: int | None

    @property
    def record(self) -> TuningRecord:
        return self.fact.record

    @property
    def recipe(self) -> tuple[TransformSpec, str]:
        return self.record.spec, self.record.workload_text

    @property
    def is_shipped(self) -> bool:
        """Whether every client of this release has its transform."""
        return (self.record.spec.name, self.record.spec.version) in SHIPPED


def answer_of(
    workload: str,
    facts: Iterable[StoredFact],
    target: DeviceQuery,
    devices: Mapping[str, Device],
) -> Answer | None:
    """The facts that may serve, by nearness and rank; None if there is none.

    Trusted facts precede all others (:mod:`feinsum.db.sql.trust`); among either,
    transforms of this package precede others. Trusted facts that measured the same
    recipes as no faster elsewhere are listed apart: :func:`feinsum.records.best_match`
    needs them. What does not fit is answered to a query with the cursor ``next``.
    """
    candidates = _candidates(facts, target, devices)
    chosen = [
        candidate
        for nearness in target.accepted
        for candidate in _fair_choice(
            c for c in candidates if c.nearness == nearness and c.position is not None
        )
    ]
    # stable: among either, the order by nearness stays
    chosen.sort(key=lambda candidate: not candidate.record.is_trusted)
    shown = list(_fitting(chosen[target.start :], target.max_bytes))
    # a page behind the last one is a miss as well
    if not shown:
        return None
    # the cursor counts facts: they have an order that a new fact rarely changes
    end = target.start + len(shown)
    recipes = {candidate.recipe for candidate in shown}
    slower = [
        c
        for c in candidates
        if c.position is None and c.record.is_trusted and c.recipe in recipes
    ]
    slower = sorted(slower, key=lambda c: c.record.id)[:MAX_FACTS]
    lists = (
        sorted(shown, key=lambda candidate: _order(candidate, target)),
        list(_fitting(slower, MAX_SLOWER_BYTES)),
    )
    return _written(workload, lists, to_cursor(end) if end < len(chosen) else None)


def _candidates(
    facts: Iterable[StoredFact], target: DeviceQuery, devices: Mapping[str, Device]
) -> list[_Candidate]:
    """The facts that the policy accepts, of each nearness the ranked ones first."""
    groups: dict[Nearness, dict[str, StoredFact]] = {n: {} for n in target.accepted}
    for fact in facts:
        nearness = target.nearness(fact.record.environment.device, devices)
        if nearness in groups:
            groups[nearness][fact.record.id] = fact
    candidates = []
    for nearness, group in groups.items():
        ranking = rank([fact.record for fact in group.values()])
        for position, record in enumerate(ranking):
            candidates.append(_Candidate(group.pop(record.id), nearness, position))
        candidates += [_Candidate(fact, nearness, None) for fact in group.values()]
    return candidates


def _written(
    workload: str,
    lists: tuple[list[_Candidate], list[_Candidate]],
    following: str | None,
) -> Answer:
    facts, slower = (",".join(map(_entry, candidates)) for candidates in lists)
    cursor = json.dumps(following)
    body = (
        f'{{"workload":{json.dumps(workload)},"facts":[{facts}],"slower":[{slower}],'
        f'"next":{cursor}}}'
    )
    states = [[(c.nearness, c.fact.state) for c in candidates] for candidates in lists]
    # of the states of facts, which change with their trust
    content = repr((workload, states, cursor))
    digest = hashlib.sha256(content.encode()).hexdigest()[:32]
    # a weak tag: the compressed body has the same one
    return Answer(f'W/"{digest}"'.encode(), body.encode())


def _entry(candidate: _Candidate) -> str:
    # the document is stored as text, and is sent as it is
    record = candidate.record
    return (
        f'{{"id":"{record.id}","nearness":"{candidate.nearness}",'
        f'"is_trusted":{json.dumps(record.is_trusted)},'
        f'"document":{candidate.fact.document}}}'
    )


def _order(candidate: _Candidate, target: DeviceQuery) -> tuple[bool, int, bool, int]:
    """Trusted facts first, then near ones, shipped transforms, and fast recipes."""
    assert candidate.position is not None
    return (
        not candidate.record.is_trusted,
        target.accepted.index(candidate.nearness),
        not candidate.is_shipped,
        candidate.position,
    )


def _fair_choice(ranking: Iterable[_Candidate]) -> list[_Candidate]:
    """The facts of a ranking to answer: the trusted ones, then the others.

    Of either, those of shipped transforms come first, recorders and kinds of device in
    turn. A client prefers devices like its own, however fast recipes are on others, and
    nobody may fill an answer alone.
    """
    n_alike: Counter[tuple[str, str, TransformSpec]] = Counter()
    # trusted and shipped, to recorder, to platform and microarchitecture
    queues: dict[tuple[bool, bool], dict[str, dict[object, list[_Candidate]]]] = {
        (True, True): {},
        (True, False): {},
        (False, True): {},
        (False, False): {},
    }
    for candidate in ranking:
        record, recorder = candidate.record, candidate.fact.recorder
        device = record.environment.device
        alike = recorder, device.id, record.spec
        n_alike[alike] += 1
        # the ranking has the best ones first, so these are kept
        if n_alike[alike] <= MAX_ALIKE:
            recorders = queues[record.is_trusted, candidate.is_shipped]
            kind = device.platform, device.microarchitecture
            recorders.setdefault(recorder, {}).setdefault(kind, []).append(candidate)
    in_turn = (
        candidate
        for recorders in queues.values()
        for candidate in _in_turn(
            _in_turn(kinds.values()) for kinds in recorders.values()
        )
    )
    return list(islice(in_turn, MAX_FACTS))


def _in_turn(queues: Iterable[Iterable[T]]) -> Iterator[T]:
    """The first of each queue, then the second of each, and so on.

    >>> list(_in_turn(["abc", "de"]))
    ['a', 'd', 'b', 'e', 'c']
    """
    missing = object()
    for row in zip_longest(*queues, fillvalue=missing):
        yield from (item for item in row if item is not missing)  # type: ignore[misc]


def _fitting(candidates: Iterable[_Candidate], max_bytes: int) -> Iterator[_Candidate]:
    """The first facts whose documents fit; at least one."""
    n_bytes = 0
    for k, candidate in enumerate(candidates):
        n_bytes += len(candidate.fact.document)
        if k and n_bytes > max_bytes:
            return
        yield candidate


def chosen_ids(
    summaries: Iterable[Summary], target: DeviceQuery, devices: Mapping[str, Device]
) -> list[str]:
    """Ids of the facts to consider, for a workload with very many.

    Trusted facts go before others. Recorders have equal shares, and within one shipped
    transforms go before others, near devices before others, and fast recipes before
    slow ones.
    """
    shares: dict[bool, dict[str, list[Summary]]] = {True: {}, False: {}}

    def distance(summary: Summary) -> int | None:
        device = devices.get(summary.device_id)
        nearness = target.nearness(device, devices) if device else None
        return target.accepted.index(nearness) if nearness in target.accepted else None

    def order(summary: Summary) -> tuple[bool, int | None, float]:
        transform = summary.transform_name, summary.transform_version
        return transform not in SHIPPED, distance(summary), -summary.speedup

    for summary in summaries:
        if distance(summary) is not None:
            recorders = shares[bool(summary.is_trusted)]
            recorders.setdefault(summary.recorder, []).append(summary)
    in_turn = (
        _in_turn(sorted(share, key=order) for share in recorders.values())
        for recorders in shares.values()
    )
    chosen: list[str] = []
    n_bytes = 0
    for summary in chain.from_iterable(in_turn):
        n_bytes += summary.n_bytes
        # one fact at least, however long
        if chosen and (n_bytes > MAX_READ_BYTES or len(chosen) >= MAX_READ_FACTS):
            break
        chosen.append(summary.id)
    return chosen


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


def _check_name(parameter: str, name: str) -> None:
    if len(name) > MAX_NAME or not is_storable(name) or has_secret(name):
        start = without_secrets(name)[:50]
        raise InvalidRequestError(
            f"the {parameter} {start!r}... was given, expected at most {MAX_NAME} "
            "characters, no NUL, no lone surrogate, and no key of the service"
        )


def _architecture(device: Device) -> str:
    return f"{device.kind}/{device.architecture}"
