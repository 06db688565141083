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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

from feinsum.canonical.form import KEY_DIGITS
from feinsum.db.server.reader import StoredFact, Summary
from feinsum.errors import InvalidRequestError
from feinsum.records import Device, Policy, TransformSpec, rank
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
        group: trusted facts go first, then near ones, then those whose transform every
            client has.
        position: in the ranking of its nearness.
    """

    fact: StoredFact
    nearness: Nearness
    group: tuple[bool, int, bool]
    position: int


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
    candidates, useless = _find_candidates(facts, target, devices)
    chosen = list(_choose_fairly(candidates))
    shown = list(_take_fitting(chosen[target.start :], target.max_bytes))
    # a page behind the last one is a miss as well
    if not shown:
        return None
    slower = []
    if useless:
        recipes = {candidate.fact.record.recipe for candidate in shown}
        slower = [c for c in useless if c.fact.record.recipe in recipes]
        slower = sorted(slower, key=lambda c: c.fact.record.id)[:MAX_FACTS]
    # the cursor counts facts: they have an order that a new fact rarely changes
    end = target.start + len(shown)
    following = to_cursor(end) if end < len(chosen) else None
    shown.sort(key=lambda candidate: (candidate.group, candidate.position))
    lists = shown, list(_take_fitting(slower, MAX_SLOWER_BYTES))
    return _write_answer(workload, lists, following)


def _find_candidates(
    facts: Iterable[StoredFact], target: DeviceQuery, devices: Mapping[str, Device]
) -> tuple[list[_Candidate], list[_Candidate]]:
    """Return the facts that the policy accepts, in the order of an answer.

    Apart from them, return the trusted ones that were no faster than the untransformed
    kernel.
    """
    near: dict[Nearness, list[StoredFact]] = {n: [] for n in target.accepted}
    for fact in facts:
        nearness = target.nearness(fact.record.environment.device, devices)
        if nearness in near:
            near[nearness].append(fact)
    candidates, useless = [], []
    for distance, (nearness, alike) in enumerate(near.items()):
        ranking = rank(fact.record for fact in alike)
        positions = {record.id: k for k, record in enumerate(ranking)}
        for fact in alike:
            record, position = fact.record, positions.get(fact.record.id)
            is_foreign = (record.spec.name, record.spec.version) not in SHIPPED
            group = not record.is_trusted, distance, is_foreign
            if position is not None:
                candidates.append(_Candidate(fact, nearness, group, position))
            elif record.is_trusted:
                useless.append(_Candidate(fact, nearness, group, len(ranking)))
    candidates.sort(key=lambda candidate: (candidate.group, candidate.position))
    return candidates, useless


def _choose_fairly(candidates: Iterable[_Candidate]) -> Iterator[_Candidate]:
    """Yield the facts to answer: recorders, and kinds of device, of a group in turn.

    A client prefers devices like its own, however fast recipes are on others, and no
    recorder may fill an answer alone.
    """
    n_alike: Counter[tuple[str, str, TransformSpec]] = Counter()
    n_near: Counter[Nearness] = Counter()

    def is_within_limit(candidate: _Candidate) -> bool:
        recorder, record = candidate.fact.recorder, candidate.fact.record
        alike = recorder, record.environment.device.id, record.spec
        n_alike[alike] += 1
        # the best ones come first, so these are kept
        return n_alike[alike] <= MAX_ALIKE

    def recorder_and_kind(candidate: _Candidate) -> Hashable:
        device = candidate.fact.record.environment.device
        return candidate.fact.recorder, device.platform, device.microarchitecture

    for _, group in groupby(candidates, key=lambda candidate: candidate.group):
        kinds = _take_turns(filter(is_within_limit, group), recorder_and_kind)
        for candidate in _take_turns(kinds, lambda c: c.fact.recorder):
            n_near[candidate.nearness] += 1
            if n_near[candidate.nearness] <= MAX_FACTS:
                yield candidate


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


def _take_turns(items: Iterable[T], owner: Callable[[T], Hashable]) -> list[T]:
    """Return the first item of each owner, then the second of each, and so on.

    >>> "".join(_take_turns(["a1", "a2", "a3", "b1"], lambda item: item[0]))
    'a1b1a2a3'
    """
    n_before: Counter[Hashable] = Counter()

    def count_turn(item: T) -> int:
        n_before[owner(item)] += 1
        return n_before[owner(item)]

    return sorted(items, key=count_turn)


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
    workload: str, lists: Iterable[Iterable[_Candidate]], following: str | None
) -> Answer:
    # documents are stored as text, and are sent as they are
    facts, slower = (
        ",".join(
            f'{{"id":"{c.fact.record.id}","nearness":"{c.nearness}",'
            f'"is_trusted":{"false" if c.group[0] else "true"},'
            f'"document":{c.fact.document}}}'
            for c in candidates
        )
        for candidates in lists
    )
    body = (
        f'{{"workload":{json.dumps(workload)},"facts":[{facts}],"slower":[{slower}],'
        f'"next":{json.dumps(following)}}}'
    ).encode()
    # a weak tag: the compressed body has the same one
    return Answer(f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'.encode(), body)


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
