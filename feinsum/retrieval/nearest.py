"""What is known of an einsum, or else of the same one at other extents."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from feinsum.canonical import CanonicalForm, canonicalize
from feinsum.errors import FeinsumError, InvalidRecordError
from feinsum.ir import from_text
from feinsum.raising import RaisedNest
from feinsum.records import Environment, Extents, Level, Match, Policy, TuningRecord
from feinsum.retrieval.facts import Facts
from feinsum.retrieval.recipes import Known, match_of
from feinsum.transforms import suits_device

__all__ = ["Form", "Nearest", "form_of", "known_of", "nearest"]

logger = logging.getLogger(__name__)

FRAME_FACTOR = 16
"""How much longer than today's an older text of a workload may be."""


class Nearest(NamedTuple):
    """What is known of one of the forms of an einsum.

    Attributes:
        k: the number of the form; from 1 on it has other extents.
    """

    k: int
    records: list[TuningRecord]
    extents: Extents
    match: Match


Form: TypeAlias = tuple[CanonicalForm, Mapping[str, int]]
"""A canonical form, and what extents its size parameters have, as far as known."""


def known_of(
    nest: RaisedNest, facts: Facts, environment: Environment, policy: Policy
) -> Known:
    """What is known of a nest, or else of the same one at other extents."""
    nests = [nest, *nest.generalized_each()]
    forms = (form_of(one.form, one.generalized) for one in nests)
    near = nearest(forms, facts, environment, policy)
    return Known(
        nests[near.k],
        near.records,
        environment,
        policy,
        near.extents,
        is_nearest=near.k > 0,
    )


def form_of(form: CanonicalForm, sizes: Mapping[str, int]) -> Form:
    """A form, and the extents behind the size parameters of its einsum."""
    names = form.relabeling.size_params
    return form, {names[name]: n for name, n in sizes.items() if name in names}


def nearest(
    forms: Iterable[Form], facts: Facts, environment: Environment, policy: Policy
) -> Nearest:
    """Which form has the best match; the others are asked for if the first has none.

    Args:
        forms: of an einsum, and then of the same one at other extents.

    Recipes for other kinds of devices than this one are left out.
    """

    def known(k: int, form: CanonicalForm, sizes: Mapping[str, int]) -> Nearest:
        sound, extents = _known(form, sizes, facts)
        records = [r for r in sound if suits_device(r.spec, environment.device.kind)]
        match = match_of(
            form, records, environment, policy, extents=extents, is_nearest=k > 0
        )
        return Nearest(k, records, extents, match)

    rest = iter(forms)
    first = known(0, *next(rest))
    if first.match.level < Level.NEAREST_EXTENTS:
        return first
    others = list(rest)
    facts.ask(form for form, _ in others)
    found = [known(k, form, sizes) for k, (form, sizes) in enumerate(others, start=1)]
    return min([first, *found], key=_nearness)


def _nearness(found: Nearest) -> tuple[Level, bool, float, int]:
    match = found.match
    return match.level, not match.ranking, match.distance, found.k


def _known(
    form: CanonicalForm, sizes: Mapping[str, int], facts: Facts
) -> tuple[list[TuningRecord], Extents]:
    """The records of a workload, and its extents in the names of each text of them.

    Records of another workload under its key are logged and left out.
    """
    records = facts.of(form)
    extents: dict[str, Mapping[str, int]] = {}
    doubts: dict[str, str] = {}
    for frame in sorted({record.workload_text for record in records}):
        try:
            extents[frame] = _in_frame(frame, form, sizes)
        except FeinsumError as error:
            doubts[frame] = str(error)
    for record in records:
        if doubt := doubts.get(record.workload_text):
            logger.error("record %s is left out: %.1000s", record.id, doubt)
    return [r for r in records if r.workload_text in extents], extents


def _in_frame(
    frame: str, form: CanonicalForm, sizes: Mapping[str, int]
) -> Mapping[str, int]:
    """Extents in the names of a text, if that is the workload.

    It is as written now, or as an older canonicalizer wrote it.

    Raises:
        InvalidRecordError: if it is another workload, or none.
    """
    if frame == form.text:
        return sizes
    if len(frame) > FRAME_FACTOR * len(form.text):
        raise InvalidRecordError(f"its text of {len(frame)} characters is too long")
    try:
        found = canonicalize(from_text(frame))
    except FeinsumError as error:
        raise InvalidRecordError(
            f"its text {frame!r} is no einsum that can be canonicalized: {error}"
        ) from None
    if found.text != form.text:
        raise InvalidRecordError(
            f"it has the key of another workload: {frame!r} is not {form.text!r}"
        )
    names = found.relabeling.size_params
    return {name: sizes[new] for name, new in names.items() if new in sizes}
