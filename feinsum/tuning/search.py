"""Search strategies over the configurations of the transforms that fit.

Only this module imports Optuna. Studies are in memory; our records are the store.
Searches start from the best recipes of neighbours.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import chain, groupby, zip_longest
from typing import Any, Literal, get_args

from feinsum.extras import require_extra
from feinsum.ir import WorkloadLike, as_workload
from feinsum.options import check_option
from feinsum.records import (
    Environment,
    Remoteness,
    Store,
    TransformSpec,
    TuningRecord,
    compute_remoteness,
    get_match_level,
    rank,
)
from feinsum.targets.quiet import drop_when_quiet, is_silenced, quiet
from feinsum.transforms import Transform, list_configurations, with_newest_version

Choices = tuple[tuple[str, str], ...]

Strategy = Literal["tpe", "random", "exhaustive"]


class ConfigurationSearch:
    """Proposes configurations in a given order, each once.

    Attributes:
        left: the configurations not yet proposed.
        n_configurations: the number of all.
    """

    def __init__(self, specs: Sequence[TransformSpec]) -> None:
        self.left: dict[TransformSpec, None] = dict.fromkeys(specs)
        self.n_configurations = len(self.left)

    def prefer(self, specs: Sequence[TransformSpec]) -> None:
        """Propose these before all others, in this order, if not yet proposed."""
        wanted = dict.fromkeys(spec for spec in specs if spec in self.left)
        self.left = wanted | self.left

    def learn(self, spec: TransformSpec, cost: float) -> bool:
        """Mark a configuration as proposed and answered; returns whether it was new."""
        is_left = spec in self.left
        self.left.pop(spec, None)
        return is_left

    def ask(self) -> TransformSpec | None:
        """Return the next configuration, or None if none is left.

        The costs of earlier ones may still be unknown.
        """
        spec = next(iter(self.left), None)
        if spec is not None:
            del self.left[spec]
        return spec

    def tell(self, spec: TransformSpec, cost: float) -> None:
        """Record the cost of a proposed configuration; infinite if it failed.

        Nothing is learned from it here.
        """


def make_search(
    strategy: Strategy,
    subject: WorkloadLike,
    transforms: Sequence[Transform],
    seed: int,
    is_allowed: Callable[[TransformSpec], bool] = lambda _spec: True,
) -> ConfigurationSearch:
    """Make a search over all allowed configurations that fit an einsum or workload.

    Raises:
        InvalidOptionError: for an unknown strategy.
    """
    check_strategy(strategy)
    workload = as_workload(subject)
    spaces = {
        t: [*filter(is_allowed, list_configurations(t, workload))] for t in transforms
    }
    match strategy:
        case "exhaustive":
            return ConfigurationSearch(_interleave(spaces))
        case "random":
            shuffled = _interleave(spaces)
            random.Random(seed).shuffle(shuffled)  # noqa: S311  (no cryptography)
            return ConfigurationSearch(shuffled)
        case "tpe":
            return _Tpe(spaces, seed)


def check_strategy(strategy: str) -> None:
    """Refuse a strategy that does not exist.

    Raises:
        InvalidOptionError: naming the existing ones.
    """
    check_option("strategy", strategy, get_args(Strategy))


def _interleave(
    spaces: Mapping[Transform, Sequence[TransformSpec]],
) -> list[TransformSpec]:
    """Interleave the configurations of all families, one of each in turn."""
    columns = zip_longest(*spaces.values())
    return [spec for spec in chain.from_iterable(columns) if spec is not None]


def _silence_optuna(optuna: Any) -> None:
    """Silence Optuna's study logs and experimental warnings in quiet contexts.

    Its verbosity and the filters of warnings belong to the user's own studies.
    """
    logging.getLogger(optuna.storages.InMemoryStorage.__module__).addFilter(
        drop_when_quiet
    )
    # Optuna's warning has its own class, but filters affect the whole process.
    names = vars(sys.modules[optuna.samplers.TPESampler.__module__])
    loud = names.get("warn_experimental_argument")
    if loud is None or hasattr(loud, "__wrapped__"):
        return

    @wraps(loud)
    def warn(option: str) -> None:
        if not is_silenced(optuna.exceptions.ExperimentalWarning):
            loud(option)

    names["warn_experimental_argument"] = warn


class _Tpe(ConfigurationSearch):
    """Optuna's tree-structured Parzen estimator, after promising configurations.

    First comes what is preferred, then the recommended configuration of each family,
    then the best of these with one parameter changed at a time, and with all of the
    changes that made it faster. From then on every other proposal is the best so far
    with one parameter changed, so that searches with other seeds end at similar ones. A
    proposal without a known cost counts as bad, so that no neighbour is proposed at the
    same time.
    """

    FAILED = 1e9
    """The cost of a failed trial; only the order of costs counts."""

    def __init__(
        self,
        spaces: dict[Transform, list[TransformSpec]],
        seed: int,
    ) -> None:
        with require_extra("optuna", "tune", "a tuning that learns"):
            import optuna

        self._specs = {
            t.name: {_format_choices(spec): spec for spec in specs}
            for t, specs in spaces.items()
            if specs
        }
        self._spaces = {
            name: _collect_choices(specs) for name, specs in self._specs.items()
        }
        super().__init__(_interleave(spaces))
        self._first = [next(iter(specs.values())) for specs in self._specs.values()]
        self._trials: dict[TransformSpec, Any] = {}
        self._costs: dict[TransformSpec, float] = {}
        self._guesses = self._generate_guesses()
        self._random = random.Random(seed)  # noqa: S311  (no cryptography)
        self._pruned = optuna.trial.TrialState.PRUNED
        _silence_optuna(optuna)
        with quiet(optuna.exceptions.ExperimentalWarning):
            # constant_liar: trials under way count as bad, so that several workers are
            # not given neighbours of one another.
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=6, constant_liar=True
            )
            self._study = optuna.create_study(sampler=sampler)

    def prefer(self, specs: Sequence[TransformSpec]) -> None:
        self._first = [*specs, *self._first]

    def learn(self, spec: TransformSpec, cost: float) -> bool:
        if spec not in self.left:
            return False
        self.tell(self._take_known(spec), cost)
        return True

    def ask(self) -> TransformSpec | None:
        if not self.left:
            return None
        guess = self._take_guess()
        if guess is not None:
            return self._take_known(guess)
        # The estimator ignores constraints, and may repeat a proposal.
        for _ in range(20):
            trial = self._study.ask()
            wanted = self._read_suggestion(trial)
            if wanted is not None and wanted in self.left:
                return self._take(wanted, trial)
            self._study.tell(trial, state=self._pruned)
        return self._take(next(iter(self.left)), None)

    def tell(self, spec: TransformSpec, cost: float) -> None:
        trial = self._trials.pop(spec, None)
        if trial is not None:
            self._study.tell(trial, min(cost, self.FAILED))
        if cost < self.FAILED:
            self._costs[spec] = cost

    @property
    def _best(self) -> TransformSpec:
        return min(self._costs, key=self._costs.__getitem__)

    def _take_guess(self) -> TransformSpec | None:
        """Return a guess that precedes the estimator's own; None if there is none."""
        self._first = [spec for spec in self._first if spec in self.left]
        if self._first:
            return self._first[0]
        if not self._costs:
            return None
        return next(s for s in self._guesses if s is None or s in self.left)

    def _generate_guesses(self) -> Iterator[TransformSpec | None]:
        """Generate guesses without end; None leaves the guess to the estimator."""
        base = self._best
        # One parameter at a time, then all changes that helped together.
        changed = [near[0] for near in self._list_changes(base)]
        yield from changed
        yield self._combine_changes(base, changed)
        while True:
            yield None
            near = list(chain.from_iterable(self._list_changes(self._best)))
            yield self._random.choice(near) if near else None

    def _list_changes(self, spec: TransformSpec) -> list[list[TransformSpec]]:
        """List, for each parameter, the untried recipes that differ in it alone."""
        specs, choices_of_spec = self._specs[spec.name], dict(_format_choices(spec))
        by_parameter = []
        for parameter, values in self._spaces[spec.name].items():
            alternatives = ({**choices_of_spec, parameter: value} for value in values)
            near = (specs.get(tuple(choices.items())) for choices in alternatives)
            by_parameter.append([s for s in near if s is not None and s in self.left])
        return [near for near in by_parameter if near]

    def _combine_changes(
        self, base: TransformSpec, changed: Sequence[TransformSpec]
    ) -> TransformSpec:
        """Apply all changes that made ``base`` faster, best first, if they fit."""
        specs, together = self._specs[base.name], dict(_format_choices(base))
        limit = self._costs[base]
        faster = [s for s in changed if self._costs.get(s, limit) < limit]
        for spec in sorted(faster, key=self._costs.__getitem__):
            change = dict(set(_format_choices(spec)) - set(_format_choices(base)))
            wanted = {**together, **change}
            together = wanted if tuple(wanted.items()) in specs else together
        return specs[tuple(together.items())]

    def _take_known(self, spec: TransformSpec) -> TransformSpec:
        """Make Optuna propose this recipe."""
        self._study.enqueue_trial(self._make_values(spec))
        return self._take(spec, self._study.ask())

    def _take(self, spec: TransformSpec, trial: Any) -> TransformSpec:
        del self.left[spec]
        if trial is not None:
            self._read_suggestion(trial)
            self._trials[spec] = trial
        return spec

    def _make_values(self, spec: TransformSpec) -> dict[str, Any]:
        inner = {f"{spec.name}.{name}": value for name, value in _format_choices(spec)}
        return {"transform": spec.name, **inner}

    def _read_suggestion(self, trial: Any) -> TransformSpec | None:
        """Read the configuration of Optuna's trial; None if a constraint forbids it."""
        name = trial.suggest_categorical("transform", list(self._specs))
        specs = self._specs[name]
        wanted = [
            (parameter, trial.suggest_categorical(f"{name}.{parameter}", choices))
            for parameter, choices in self._spaces[name].items()
        ]
        return specs.get(tuple(wanted))


def _collect_choices(configurations: Iterable[Choices]) -> dict[str, list[str]]:
    """Collect the values that each parameter has in some configuration."""
    offered: dict[str, dict[str, None]] = {}
    for choices in configurations:
        for parameter, value in choices:
            offered.setdefault(parameter, {})[value] = None
    return {parameter: list(values) for parameter, values in offered.items()}


def _format_choices(spec: TransformSpec) -> Choices:
    """Write the parameters as Optuna gets them: by name, their values as text."""
    return tuple((name, repr(value)) for name, value in spec.parameters.items())


N_SEEDS = 4
"""Maximum recipes of neighbours; few, since they take trials from the search."""


def find_neighbours(
    store: Store,
    workload_text: str,
    environment: Environment,
    fitting: Collection[TransformSpec],
    limit: int = N_SEEDS,
) -> list[TransformSpec]:
    """Find the best recipes of facts with the same structure, nearest first.

    The structure is the notation of the canonical einsum, to whose names a recipe
    refers; extents, dtypes, the number of rows, sizes and devices may differ. Nearest
    are facts of this very einsum, then those with the same arrays except for extents;
    in each group, this device comes first, then nearer devices. The best recipe of
    every neighbour comes before the second best of any.

    Recipes of an older version are converted to the newest one of their family. A
    service gives none, since it is not read as a whole.

    Args:
        store: the store to read.
        workload_text: the canonical text of the einsum.
        environment: the device and the software.
        fitting: the recipes that fit the einsum; all others are skipped.
        limit: maximum number of recipes.
    """
    notation = workload_text.partition(" | ")[0]
    alike = [*store.like(notation)]

    def distance(
        record: TuningRecord,
    ) -> tuple[bool, bool, int, Remoteness, str, str]:
        measured_on = record.environment.device
        return (
            record.workload_text != workload_text,
            _list_dtypes(record.workload_text) != _list_dtypes(workload_text),
            get_match_level(record, environment),
            compute_remoteness(measured_on, environment.device),
            record.workload,
            measured_on.id,
        )

    groups = groupby(sorted(alike, key=distance), key=distance)
    rankings = [rank(records) for _, records in groups]
    in_turn = chain.from_iterable(zip_longest(*rankings))
    specs = [record.spec for record in in_turn if record is not None]
    versions = dict.fromkeys(
        v for spec in specs for v in (spec, with_newest_version(spec))
    )
    return [spec for spec in versions if spec in fitting][:limit]


def _list_dtypes(workload_text: str) -> list[str]:
    """Return the dtypes of the arrays, in order.

    >>> _list_dtypes("a b, b -> a | A0[N0,4]:<f8 A1[4]:<f4 | A0 A1")
    ['<f8', '<f4']
    """
    arrays = workload_text.split(" | ")[1].split()
    return [array.rpartition(":")[2] for array in arrays]
