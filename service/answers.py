"""Answers of ``best``: the facts that may serve on a device, the best first.

For a target ``cpu/x86_64`` with the policy ``default``, facts of that architecture are
answered, in this order::

    trusted keys             other keys
    device, architecture     device, architecture
    by rank, recorders and kinds of device taking turns

The service does not know the client's driver, and it runs nothing there. So it narrows
by device and policy and ranks; the client, which knows its environment, finds the level
of a match with the same function as for any other store
(:func:`feinsum.records.find_best_match`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, repeat, zip_longest
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

from feinsum.canonical.form import KEY_DIGITS
from feinsum.db.server.reader import StoredFact, Summary
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
"""Facts of one recipe, recorder and device: copies cannot fill an answer."""

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
    """The device of a query, and how near to it facts must be measured.

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
        """Return how near a device is to the requested one.

        Args:
            device: the device of a fact.
            devices: all devices by id, for the architecture of the requested one.
        """
        if self.device in (device.id, device.name):
            return "device"
        if _format_architecture(device) == self.architecture:
            return "architecture"
        named = devices.get(self.device)
        # a name may stand for several devices
        namesakes = (
            [named] if named else [d for d in devices.values() if d.name == self.device]
        )
        if _format_architecture(device) in map(_format_architecture, namesakes):
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
        """The body compressed with gzip."""
        # without a time in its head: equal answers are equal bytes
        return gzip.compress(self.body, compresslevel=5, mtime=0)

    @property
    def n_bytes(self) -> int:
        """How much memory it may take, its compressed form included."""
        return len(self.body) * 7 // 5 + 500


class _Candidate(NamedTuple):
    """A fact that may be in an answer.

    Attributes:
        position: in the ranking of its nearness; None if its recipe was no
            faster than the untransformed kernel.
        level: trusted facts go first, then those whose transform every client has.
    """

    fact: StoredFact
    record: TuningRecord
    nearness: Nearness
    position: int | None
    level: tuple[bool, bool]


def make_answer(
    workload: str,
    facts: Iterable[StoredFact],
    target: DeviceQuery,
    devices: Mapping[str, Device],
) -> Answer | None:
    """Return the facts that may serve, by nearness and rank; None if there is none.

    Trusted facts precede all others (:mod:`feinsum.db.sql.trust`); among either,
    transforms of this package precede others. Trusted facts that measured the same
    recipes as no faster elsewhere are listed apart, for
    :func:`feinsum.records.find_best_match`. What does not fit is answered to a query
    with the cursor ``next``.
    """
    candidates = _find_candidates(facts, target, devices)
    chosen = [
        candidate
        for nearness in target.accepted
        for candidate in _choose_fairly(
            c for c in candidates if c.nearness == nearness and c.position is not None
        )
    ]
    # the sort is stable: trusted facts, and others, stay ordered by nearness
    chosen.sort(key=lambda candidate: not candidate.record.is_trusted)
    shown = list(_take_fitting(chosen[target.start :], target.max_bytes))
    # a page behind the last one is a miss as well
    if not shown:
        return None
    recipes = {candidate.record.recipe for candidate in shown}
    slower = [
        c
        for c in candidates
        if c.position is None and c.record.is_trusted and c.record.recipe in recipes
    ]
    slower = sorted(slower, key=lambda c: c.record.id)[:MAX_FACTS]

    def order(candidate: _Candidate) -> tuple[bool, int, bool, int | None]:
        is_untrusted, is_foreign = candidate.level
        distance = target.accepted.index(candidate.nearness)
        return is_untrusted, distance, is_foreign, candidate.position

    # the cursor counts facts: they have an order that a new fact rarely changes
    end = target.start + len(shown)
    following = to_cursor(end) if end < len(chosen) else None
    lists = sorted(shown, key=order), list(_take_fitting(slower, MAX_SLOWER_BYTES))
    return _write_answer(workload, lists, following)


def _find_candidates(
    facts: Iterable[StoredFact], target: DeviceQuery, devices: Mapping[str, Device]
) -> list[_Candidate]:
    """Return the facts that the policy accepts, of each nearness ranked ones first."""
    groups: dict[Nearness, dict[str, StoredFact]] = {n: {} for n in target.accepted}
    for fact in facts:
        nearness = target.nearness(fact.record.environment.device, devices)
        if nearness in groups:
            groups[nearness][fact.record.id] = fact
    candidates = []
    for nearness, group in groups.items():
        ranking = rank([fact.record for fact in group.values()])
        ranked = [group.pop(record.id) for record in ranking]
        positions = chain(range(len(ranked)), repeat(None))
        for fact, position in zip((*ranked, *group.values()), positions, strict=False):
            record = fact.record
            is_foreign = (record.spec.name, record.spec.version) not in SHIPPED
            level = not record.is_trusted, is_foreign
            candidates.append(_Candidate(fact, record, nearness, position, level))
    return candidates


def _choose_fairly(ranking: Iterable[_Candidate]) -> Iterable[_Candidate]:
    """Return the facts of a ranking to answer: the trusted ones, then the others.

    Of either, those of shipped transforms come first, recorders and kinds of device in
    turn. A client prefers devices like its own, however fast recipes are on others, and
    no recorder may fill an answer alone.
    """
    n_alike: Counter[tuple[str, str, TransformSpec]] = Counter()
    levels: dict[tuple[bool, bool], list[_Candidate]] = {}
    for candidate in ranking:
        recorder, record = candidate.fact.recorder, candidate.record
        alike = recorder, record.environment.device.id, record.spec
        n_alike[alike] += 1
        # the ranking has the best ones first, so these are kept
        if n_alike[alike] <= MAX_ALIKE:
            levels.setdefault(candidate.level, []).append(candidate)

    def kind(candidate: _Candidate) -> object:
        device = candidate.record.environment.device
        return device.platform, device.microarchitecture

    in_turn = (
        candidate
        for level in sorted(levels)
        for candidate in _take_turns(levels[level], lambda c: c.fact.recorder, kind)
    )
    return islice(in_turn, MAX_FACTS)


def choose_ids(
    summaries: Iterable[Summary], target: DeviceQuery, devices: Mapping[str, Device]
) -> list[str]:
    """Return ids of the facts to consider, for a workload with very many.

    Trusted facts go before others. Recorders have equal shares, and within one shipped
    transforms go before others, near devices before others, and fast recipes before
    slow ones.
    """
    ordered: list[tuple[tuple[bool, int, float], Summary]] = []
    for summary in summaries:
        device = devices.get(summary.device_id)
        nearness = target.nearness(device, devices) if device else None
        if nearness in target.accepted:
            transform = summary.transform_name, summary.transform_version
            distance = target.accepted.index(nearness)
            order = transform not in SHIPPED, distance, -summary.speedup
            ordered.append((order, summary))
    ordered.sort(key=lambda pair: pair[0])
    chosen: list[str] = []
    n_bytes = 0
    for is_trusted in (True, False):
        share = [s for _, s in ordered if bool(s.is_trusted) == is_trusted]
        for summary in _take_turns(share, lambda summary: summary.recorder):
            n_bytes += summary.n_bytes
            # one fact at least, however long
            if chosen and (n_bytes > MAX_READ_BYTES or len(chosen) >= MAX_READ_FACTS):
                return chosen
            chosen.append(summary.id)
    return chosen


def _take_turns(
    items: Iterable[T], owner: Callable[[T], object], *owners: Callable[[T], object]
) -> Iterator[T]:
    """Yield items with their owners in turn; within an owner, nested owners in turn.

    >>> "".join(_take_turns(["a1", "a2", "a3", "b1"], lambda item: item[0]))
    'a1b1a2a3'
    """
    queues: dict[object, list[T]] = {}
    for item in items:
        queues.setdefault(owner(item), []).append(item)
    inner = [_take_turns(q, *owners) if owners else q for q in queues.values()]
    if len(inner) == 1:  # as for most workloads
        yield from inner[0]
        return
    missing = object()
    for row in zip_longest(*inner, fillvalue=missing):
        yield from (item for item in row if item is not missing)  # type: ignore[misc]


def _take_fitting(
    candidates: Iterable[_Candidate], max_bytes: int
) -> Iterator[_Candidate]:
    """Yield the first facts whose documents fit; at least one."""
    n_bytes = 0
    for k, candidate in enumerate(candidates):
        n_bytes += len(candidate.fact.document)
        if k and n_bytes > max_bytes:
            return
        yield candidate


def _write_answer(
    workload: str,
    lists: tuple[list[_Candidate], list[_Candidate]],
    following: str | None,
) -> Answer:
    # documents are stored as text, and are sent as they are
    facts, slower = (
        ",".join(
            f'{{"id":"{c.record.id}","nearness":"{c.nearness}",'
            f'"is_trusted":{json.dumps(c.record.is_trusted)},'
            f'"document":{c.fact.document}}}'
            for c in candidates
        )
        for candidates in lists
    )
    cursor = json.dumps(following)
    body = (
        f'{{"workload":{json.dumps(workload)},"facts":[{facts}],"slower":[{slower}],'
        f'"next":{cursor}}}'
    )
    # of the states of facts, which change with their trust
    states = [[(c.nearness, c.fact.state) for c in candidates] for candidates in lists]
    content = repr((workload, states, cursor))
    digest = hashlib.sha256(content.encode()).hexdigest()[:32]
    # a weak tag: the compressed body has the same one
    return Answer(f'W/"{digest}"'.encode(), body.encode())


def check_key(workload: str) -> str:
    """Check the form of a workload key, and return it.

    Raises:
        InvalidRequestError: if it has another form.
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


def is_shortened(workload: str) -> bool:
    """Return whether a key lacks digits at its end.

    >>> is_shortened("fe2-nauty2.8-0f7c2ab41d0"), is_shortened("fe2-x-" + "0" * 40)
    (True, False)
    """
    return len(workload.rpartition("-")[2]) < KEY_DIGITS


def _check_name(parameter: str, name: str) -> None:
    if len(name) > MAX_NAME or not is_storable(name) or has_secret(name):
        start = without_secrets(name)[:50]
        raise InvalidRequestError(
            f"the {parameter} {start!r}... was given, expected at most {MAX_NAME} "
            "characters, no NUL, no lone surrogate, and no key of the service"
        )


def _format_architecture(device: Device) -> str:
    return f"{device.kind}/{device.architecture}"
