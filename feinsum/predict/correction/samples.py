"""Trials as samples: what can be learnt from, in groups that can be compared.

A database can hold anything. What is no sound trial of a recipe that can be predicted
is counted by its reason, and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from feinsum.errors import InvalidParameterError, UnknownTransformError
from feinsum.ir import BatchedEinsum, from_text
from feinsum.predict.correction.features import (
    Values,
    context_features,
    recipe_features,
)
from feinsum.predict.machine import machine_of
from feinsum.records import Device, Trial
from feinsum.transforms import check_spec
from feinsum.transforms.ranking import Costed, at_sizes

MOST_CHARACTERS = 4000
"""Longest text of a workload; longer ones are seldom tuned and slow to read."""

MOST_RECIPES = 500
"""Most recipes of a group, the latest ones: no workload can fill the memory."""

LEAST, MOST = 1e-12, 1e12
"""Beyond these a number is no time, and no ratio of times, that anyone measured."""

FEWEST_RECIPES = 2
"""Fewest recipes of a group: a single one cannot be compared."""


class GroupKey(NamedTuple):
    """The common properties of comparable trials."""

    workload_text: str
    sizes: tuple[tuple[str, int], ...]
    device_id: str
    driver_version: str


@dataclass(frozen=True, eq=False)
class Group:
    """Recipes that were tried for one workload, at the same sizes, on one device.

    Attributes:
        workload_text: the canonical einsum.
        device_id: of the device.
        recipes: with their analytic costs.
        measured: for each recipe its time, over that of the untransformed kernel.
        recipe, context: the features.
    """

    workload_text: str
    device_id: str
    recipes: tuple[Costed, ...]
    measured: tuple[float, ...]
    recipe: Values
    context: Values

    @property
    def notation(self) -> str:
        """Einsum notation without extents: workloads that share it are alike."""
        return self.workload_text.partition(" | ")[0]


class Sample(NamedTuple):
    """A recipe that was tried; the fields of a :class:`Group` for one of them."""

    recipe: Costed
    measured: float
    row: Values
    context: Values


@dataclass(frozen=True)
class Samples:
    """Trials to learn from.

    Attributes:
        left_out: how many trials were not taken, by reason.
    """

    groups: tuple[Group, ...]
    left_out: Mapping[str, int]

    @property
    def n_trials(self) -> int:
        return sum(len(group.recipes) for group in self.groups)

    @property
    def notations(self) -> tuple[str, ...]:
        """The notations of all groups, sorted."""
        return tuple(sorted({group.notation for group in self.groups}))

    @property
    def n_devices(self) -> int:
        return len({group.device_id for group in self.groups})


def samples_of(trials: Iterable[Trial]) -> Samples:
    """Return the trials that can be learnt from; nothing in a trial raises.

    Of several trials of one recipe the latest counts, as in a tuning.
    """
    left_out: Counter[str] = Counter()
    tried: dict[GroupKey, dict[str, Sample]] = {}
    for trial in trials:
        sample = _sample(trial)
        if isinstance(sample, str):
            left_out[sample] += 1
            continue
        samples = tried.setdefault(_group_key(trial), {})
        # the latest trial of a recipe counts, and stands last in its group
        left_out["tried again"] += samples.pop(str(trial.spec), None) is not None
        samples[str(trial.spec)] = sample
        # dictionaries keep their order: the first is the oldest
        if len(samples) > MOST_RECIPES:
            del samples[next(iter(samples))]
            left_out["too many of one workload"] += 1
    groups: list[Group] = []
    for key, samples in sorted(tried.items(), key=itemgetter(0)):
        if len(samples) < FEWEST_RECIPES:
            left_out["nothing to compare with"] += len(samples)
        else:
            groups.append(_group(key, [*samples.values()]))
    return Samples(tuple(groups), {k: n for k, n in sorted(left_out.items()) if n})


def _group_key(trial: Trial) -> GroupKey:
    device, driver = trial.environment.device, trial.environment.driver_version
    sizes = tuple(sorted(trial.sizes.items()))
    return GroupKey(trial.workload_text, sizes, device.id, driver)


def _sample(trial: Trial) -> Sample | str:
    """Return the sample of a trial, or why it gives none."""
    if not trial.is_ok:
        return "failed"
    if not _is_time(trial.cost):
        return "a time that is none"
    device = trial.environment.device
    if device.kind != "cpu":
        return "not on a CPU"
    einsum = _einsum(trial.workload_text)
    if einsum is None:
        return "no einsum that can be read"
    if not _has_sizes(einsum, trial.sizes):
        return "sizes that do not fit"
    try:
        return _costed(trial, einsum, device)
    except UnknownTransformError:
        return "a transform that is not here"
    except InvalidParameterError:
        return "parameters outside their space"
    except Exception:  # noqa: BLE001  # families may be those of users
        return "a cost that fails"


def _costed(trial: Trial, einsum: BatchedEinsum, device: Device) -> Sample | str:
    transform = check_spec(trial.spec, einsum)
    if transform.cost is None:
        return "a transform without a cost"
    sized, machine = at_sizes(einsum, trial.sizes), machine_of(device)
    seconds = transform.cost(sized, trial.spec.parameters, machine)
    if not _is_time(seconds):
        return "a cost that fails"
    recipe = Costed(seconds, trial.spec)
    (row,) = recipe_features(sized, [recipe])
    return Sample(recipe, trial.cost, row, context_features(sized, machine))


def _is_time(value: float) -> bool:
    return LEAST < value < MOST


@lru_cache(64)
def _einsum(text: str) -> BatchedEinsum | None:
    if len(text) > MOST_CHARACTERS:
        return None
    try:
        return from_text(text)
    except Exception:  # noqa: BLE001  # a text can be anything
        return None


def _has_sizes(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    """Tell whether every size parameter has a value, and a positive one."""
    names = {x.name for x in einsum.size_params}
    return names == set(sizes) and all(value >= 1 for value in sizes.values())


def _group(key: GroupKey, samples: Sequence[Sample]) -> Group:
    recipes, measured, rows, contexts = zip(*samples, strict=True)
    return Group(
        key.workload_text,
        key.device_id,
        recipes,
        measured,
        np.array(rows),
        contexts[0],
    )
