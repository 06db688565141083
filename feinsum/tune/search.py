"""Search strategies over the configurations of the transforms that fit.

The one door to Optuna; studies live in memory, our records are the store.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Literal, Protocol, get_args

from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum
from feinsum.records import TransformSpec
from feinsum.transforms import Transform, configurations

__all__ = ["Search", "Strategy", "make_search"]

Choices = tuple[tuple[str, str], ...]
Strategy = Literal["tpe", "random", "exhaustive"]


class Search(Protocol):
    """Proposes configurations, each once, and learns from their times.

    Attributes:
        n_configurations: how many there are.
    """

    n_configurations: int

    def ask(self) -> TransformSpec | None:
        """The next configuration, or None when there is none left."""
        ...

    def tell(self, spec: TransformSpec, seconds: float) -> None:
        """The time of a proposed configuration; infinite if it failed."""
        ...


def make_search(
    strategy: Strategy,
    einsum: BatchedEinsum,
    transforms: Sequence[Transform],
    seed: int,
    first: Sequence[TransformSpec] = (),
) -> Search:
    """A search over everything that fits ``einsum``.

    Args:
        first: what to propose before all else, as far as it fits.

    Raises:
        FeinsumError: for an unknown strategy.
    """
    spaces = {t: list(configurations(t, einsum)) for t in transforms}
    match strategy:
        case "exhaustive":
            return _Listed(_ahead(first, _interleaved(spaces)))
        case "random":
            rest = _interleaved(spaces)
            random.Random(seed).shuffle(rest)  # noqa: S311  (no cryptography)
            return _Listed(_ahead(first, rest))
        case "tpe":
            return _Tpe(spaces, seed, first)
    raise FeinsumError(
        f"strategy {strategy!r} is unknown; expected one of {get_args(Strategy)}"
    )


def _interleaved(
    spaces: Mapping[Transform, Sequence[TransformSpec]],
) -> list[TransformSpec]:
    """The configurations of all families, one of each in turn."""
    columns = zip_longest(*spaces.values())
    return [spec for spec in chain.from_iterable(columns) if spec is not None]


def _ahead(
    first: Sequence[TransformSpec], specs: Sequence[TransformSpec]
) -> list[TransformSpec]:
    """The specs, those of ``first`` ahead."""
    wanted = dict.fromkeys(first)
    known = [spec for spec in wanted if spec in set(specs)]
    return [*known, *(spec for spec in specs if spec not in wanted)]


class _Listed:
    """Takes configurations in a given order."""

    def __init__(self, specs: Sequence[TransformSpec]) -> None:
        self.n_configurations = len(specs)
        self._left = list(reversed(specs))

    def ask(self) -> TransformSpec | None:
        return self._left.pop() if self._left else None

    def tell(self, spec: TransformSpec, seconds: float) -> None:
        """Nothing is learnt."""


class _Tpe:
    """Optuna's tree-structured Parzen estimator, after a first one per family.

    What is asked for first comes before these.
    """

    FAILED_S = 1e3

    def __init__(
        self,
        spaces: dict[Transform, list[TransformSpec]],
        seed: int,
        first: Sequence[TransformSpec],
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._specs = {
            t.name: {_choices(spec): spec for spec in specs}
            for t, specs in spaces.items()
            if specs
        }
        self._spaces = {name: _offered(specs) for name, specs in self._specs.items()}
        self._unseen = dict.fromkeys(_interleaved(spaces))
        self.n_configurations = len(self._unseen)
        each = [next(iter(specs.values())) for specs in self._specs.values()]
        known = [spec for spec in first if spec in self._unseen]
        self._first = list(dict.fromkeys([*known, *each]))
        self._trials: dict[TransformSpec, Any] = {}
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study = optuna.create_study(sampler=sampler)

    def ask(self) -> TransformSpec | None:
        if not self._unseen:
            return None
        if self._first:
            spec = self._first.pop(0)
            self._study.enqueue_trial(self._values(spec))
            return self._take(spec, self._study.ask())
        for _ in range(20):
            trial = self._study.ask()
            wanted = self._suggest(trial)
            if wanted is not None and wanted in self._unseen:
                return self._take(wanted, trial)
            self._study.tell(trial, state=_pruned())
        return self._take(next(iter(self._unseen)), None)

    def tell(self, spec: TransformSpec, seconds: float) -> None:
        trial = self._trials.pop(spec, None)
        if trial is not None:
            self._study.tell(trial, min(seconds, self.FAILED_S))

    def _take(self, spec: TransformSpec, trial: Any) -> TransformSpec:
        del self._unseen[spec]
        if trial is not None:
            self._suggest(trial)
            self._trials[spec] = trial
        return spec

    def _values(self, spec: TransformSpec) -> dict[str, Any]:
        inner = {f"{spec.name}.{name}": value for name, value in _choices(spec)}
        return {"transform": spec.name, **inner}

    def _suggest(self, trial: Any) -> TransformSpec | None:
        """The configuration that Optuna wants; None if a constraint forbids it."""
        name = trial.suggest_categorical("transform", list(self._specs))
        specs = self._specs[name]
        wanted = [
            (parameter, trial.suggest_categorical(f"{name}.{parameter}", choices))
            for parameter, choices in self._spaces[name].items()
        ]
        return specs.get(tuple(wanted))


def _offered(configurations: Iterable[Choices]) -> dict[str, list[str]]:
    """The choices of each parameter that some configuration has."""
    offered: dict[str, dict[str, None]] = {}
    for choices in configurations:
        for parameter, value in choices:
            offered.setdefault(parameter, {})[value] = None
    return {parameter: list(values) for parameter, values in offered.items()}


def _choices(spec: TransformSpec) -> Choices:
    """The parameters as Optuna knows them: by name, their values as text."""
    return tuple((name, repr(value)) for name, value in spec.parameters.items())


def _pruned() -> Any:
    from optuna.trial import TrialState

    return TrialState.PRUNED
