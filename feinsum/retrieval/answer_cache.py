"""Retrievals cached on disk, so that other processes need not repeat them.

A retrieval is identified by its inputs: the kernel, its options, the device, and the
versions of everything involved. It is valid as long as the database has the same facts
about its einsums, since repeating it would then give the same kernel.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

import loopy as lp
import numpy as np

from feinsum.cache import DiskCache, get_default_cache
from feinsum.options import INTERMEDIATE_VARIABLE
from feinsum.records import Device, Environment, LookUp, Policy
from feinsum.records.signature import read_trusted_signers
from feinsum.retrieval.decision import Decision, make_decision
from feinsum.retrieval.identity import (
    NoTextError,
    compute_fingerprint,
    is_ours,
    serialize_value,
)
from feinsum.retrieval.request import Request
from feinsum.retrieval.result import Retrieval
from feinsum.targets.units import CodedUnit, LibraryUnit
from feinsum.transforms.primitives.schedule import tell_sets_apart

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def _make_optional(step: Callable[P, T | None]) -> Callable[P, T | None]:
    """Make a function return None instead of raising an error."""

    @wraps(step)
    def attempt(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return step(*args, **kwargs)
        except Exception:
            logger.info("the cache of retrievals is not used", exc_info=True)
            return None

    return attempt


@dataclass(frozen=True)
class RetrievalAnswer:
    """The result of a retrieval: the kernel, and the decisions about its nests."""

    t_unit: lp.TranslationUnit
    decision: Decision

    @classmethod
    def of(cls, retrieval: Retrieval) -> Self:
        return cls(retrieval.t_unit, make_decision(retrieval.nests))


@dataclass(frozen=True)
class CacheEntry:
    """The entry of a retrieval in the cache.

    Attributes:
        key: digest of all inputs.
        device, policy: device and policy of the look-up.
    """

    cache: DiskCache
    key: str
    device: Device
    policy: Policy

    @classmethod
    def of(cls, request: Request, environment: Environment) -> Self | None:
        """Return the entry of a retrieval; None if there is no cache or no text."""
        cache = get_default_cache()
        if cache is None:
            return None
        arguments = request.arguments or {}
        inputs = (
            request.t_unit,
            {name: _get_shape_and_dtype(value) for name, value in arguments.items()},
            (request.instructions, request.kernel_name, request.policy, request.verify),
            (request.effort, os.environ.get(INTERMEDIATE_VARIABLE, "")),
            # facts of other signers are skipped, so this setting changes the answer
            sorted(read_trusted_signers()),
        )
        try:
            text = serialize_value(inputs)
        except NoTextError as error:
            logger.info("the retrieval is not cached: %s", error)
            return None
        key = _compute_digest(
            "\n".join((text, compute_fingerprint(environment))).encode()
        )
        return cls(cache, key, environment.device, request.policy)

    @_make_optional
    def recall(self, request: Request) -> RetrievalAnswer | None:
        """Return the cached answer if the database can be read and is unchanged."""
        content = self.cache.read(self.key)
        if content is None:
            return None
        # valid if no facts about these einsums were added or removed since
        facts, answer = pickle.loads(content)  # noqa: S301  (signed by the cache)
        query = LookUp(dict.fromkeys(facts, ""), self.device, self.policy, counts=False)
        with request.look_up_store() as store:
            records = store.candidates(query)
        for workload, ids in facts.items():
            if tuple(record.id for record in records[workload]) != ids:
                return None
        # isl compares sets without the names of their dimensions; see NamedSetCache
        for name in answer.t_unit.entrypoints:
            tell_sets_apart(answer.t_unit[name])
        return self._attach_code(answer, content)

    @_make_optional
    def store(self, retrieval: Retrieval) -> RetrievalAnswer | None:
        """Cache the answer of a retrieval if possible, and return it."""
        answer = RetrievalAnswer.of(retrieval)
        # a host program cannot be pickled with its unit
        is_plain = not isinstance(retrieval.t_unit, LibraryUnit)
        # an unsettled answer is not stored: the next retrieval continues the search
        is_final = retrieval.is_settled and retrieval.is_changed
        if not (is_final and is_plain and _is_ours(retrieval)):
            return answer
        content = pickle.dumps((dict(retrieval.facts), answer))
        self.cache.write(self.key, content)
        return self._attach_code(answer, content)

    def _attach_code(self, answer: RetrievalAnswer, content: bytes) -> RetrievalAnswer:
        shelf = _Shelf(self.cache, _compute_digest(self.key.encode() + content))
        if isinstance(answer.t_unit, CodedUnit) and (
            code := answer.t_unit.shelf.code()
        ):
            shelf.put_code(code)
        unit = CodedUnit.of(answer.t_unit, shelf)
        return RetrievalAnswer(unit, answer.decision)


@dataclass(frozen=True)
class _Shelf:
    """The cache entry of a kernel's generated code, under the digest of the answer."""

    cache: DiskCache
    key: str

    @_make_optional
    def code(self) -> Any:
        content = self.cache.read(self.key)
        return content and pickle.loads(content)  # noqa: S301  (signed by the cache)

    @_make_optional
    def put_code(self, code: Any) -> None:
        self.cache.write(self.key, pickle.dumps(code))


@_make_optional
def open_cache_entry(request: Request) -> CacheEntry | None:
    """Return the entry of a retrieval; None if it cannot be cached."""
    return CacheEntry.of(request, request.opened.environment({}))


def _get_shape_and_dtype(argument: Any) -> Any:
    """Return what raising reads of an argument: a value, or shape and dtype."""
    if hasattr(argument, "shape") and hasattr(argument, "dtype") and argument.shape:
        return tuple(argument.shape), np.dtype(argument.dtype)
    return argument


def _is_ours(retrieval: Retrieval) -> bool:
    """Return whether all recipes that were tried are feinsum's own.

    The source of a user's transform may change under the same name and version.
    """
    tried = [spec for nest in retrieval.nests for spec, _ in nest.failures]
    return all(map(is_ours, (*tried, *retrieval.applied)))


def _compute_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
