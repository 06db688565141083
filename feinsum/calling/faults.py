"""Recipes that cost a process its GPU; later processes leave them out.

They are kept on disk for this machine, device, driver and version of feinsum's source.
"""

from __future__ import annotations

import hashlib

from feinsum.cache import default_cache
from feinsum.ir import BatchedEinsum, to_text
from feinsum.measure import OpenDevice
from feinsum.records import TransformSpec
from feinsum.retrieval.identity import fingerprint, is_ours


def note_fault(einsum: BatchedEinsum, spec: TransformSpec, opened: OpenDevice) -> None:
    """Remember a recipe for an einsum.

    Those of users are not, whose source may change; nor is any without a cache.
    """
    cache = default_cache()
    if cache is not None and is_ours(spec):
        cache.write(_key(einsum, spec, opened), str(spec).encode())


def is_faulty(einsum: BatchedEinsum, spec: TransformSpec, opened: OpenDevice) -> bool:
    """Whether a process of this machine noted it."""
    cache = default_cache()
    return cache is not None and cache.read(_key(einsum, spec, opened)) is not None


def _key(einsum: BatchedEinsum, spec: TransformSpec, opened: OpenDevice) -> str:
    place = fingerprint(opened.environment({}))
    text = "\0".join(("fault", to_text(einsum), str(spec), place))
    return hashlib.sha256(text.encode()).hexdigest()
