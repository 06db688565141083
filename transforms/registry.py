"""The registry: which transforms are installed, and how a spec is applied.

Records name registered families, and nothing else can run.

A family of schedules consists of three functions::

    space(workload)                          the configurations that are worth a trial
    apply(t_unit, nest, parameters)          the loop nest that one of them describes
    cost(einsum, parameters, machine)        about how many seconds it takes (optional)

One that assigns a work-item to each value of an output index has two of them::

    def space(workload):
        return Space({"index": workload.einsum.output, "block": (64, 128, 32)})

    def apply(t_unit, nest, parameters):
        schedule = begin(t_unit, nest)
        iname = schedule.inames[parameters["index"]]
        schedule, _ = split(schedule, iname, parameters["block"], outer_tag="g.0")
        return schedule.t_unit

    register(Transform("one_item", 1, "a work-item per result", space, apply))
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, islice, product
from typing import Any, NamedTuple, TypeAlias, get_args

import loopy as lp

from feinsum.errors import (
    InvalidParameterError,
    TransformError,
    UnknownTransformError,
)
from feinsum.ir import BatchedEinsum, Workload, WorkloadLike, as_workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.records import ParameterValue, TransformSpec
from feinsum.records.environment import DeviceKind

ALL_DEVICES: frozenset[DeviceKind] = frozenset(get_args(DeviceKind))
Parameters: TypeAlias = Mapping[str, Any]
"""A :data:`ParameterValue` for each parameter of a family."""
Table: TypeAlias = Mapping[str, tuple[ParameterValue, ...]]
"""The values of each parameter, the recommended one first."""
CostFunction: TypeAlias = Callable[[BatchedEinsum, Parameters, MachineModel], float]
"""About how many seconds a configuration takes, for an einsum of known extents."""


@dataclass(frozen=True)
class Space(Mapping[str, tuple[ParameterValue, ...]]):
    """The configurations of a family for one workload.

    Attributes:
        table: the values of each parameter, the recommended one first.
        constraint: returns why a configuration is pointless, or None; at unknown sizes
            it must reject no more than at some known ones.
        candidates: the values among which predictions choose by their costs, by default
            all; or a function that returns configurations, of which some may be
            pointless, if finding them takes a search: a space is made for every recipe
            that is checked.
        open: parameters whose values in a recorded recipe need not be in the table,
            such as orders of contraction, which may be offered at other sizes only; the
            constraint checks these values.
        is_searched: whether searches try the family. Recorded recipes are used anyway.

    >>> space = Space({"lanes": (4, 8), "rows": (2, 3)},
    ...               lambda p: "too many" if p["lanes"] * p["rows"] > 16 else None)
    >>> [tuple(point.values()) for point in space.points()]
    [(4, 2), (4, 3), (8, 2)]
    """

    table: Table
    constraint: Callable[[Parameters], str | None] = lambda _parameters: None
    candidates: Table | Callable[[], Iterable[Parameters]] | None = None
    open: frozenset[str] = frozenset()
    is_searched: bool = True

    def __getitem__(self, name: str) -> tuple[ParameterValue, ...]:
        return self.table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def points(self) -> Iterator[Parameters]:
        """Yield every configuration that the constraint allows."""
        return self._filter_allowed(list_choices(self))

    def proposed(self) -> Iterator[Parameters]:
        """Yield the configurations from which predictions choose."""
        chosen = self.table if self.candidates is None else self.candidates
        if isinstance(chosen, Mapping):
            return self._filter_allowed(list_choices(chosen))
        return self._filter_allowed(chosen())

    def _filter_allowed(self, points: Iterable[Parameters]) -> Iterator[Parameters]:
        return (point for point in points if self.constraint(point) is None)


def list_choices(space: Table) -> Iterator[Parameters]:
    """Yield every choice of values, the last one changing first."""
    for values in product(*space.values()):
        yield dict(zip(space, values, strict=True))


def with_starts(
    space: Space,
    starts: Callable[[], Iterable[Parameters]],
    following: Callable[[], Iterable[Parameters]] | None = None,
) -> Space:
    """Return a space whose candidates are the recommended configuration, then starts.

    Args:
        space: the parameters and their values.
        starts: returns configurations that were fast elsewhere; the constraint may
            exclude some of them.
        following: returns the candidates after these; by default all configurations.
    """

    def candidates() -> Iterator[Parameters]:
        remaining = space.points() if following is None else following()
        yield from chain(islice(space.points(), 1), starts(), remaining)

    return replace(space, candidates=candidates)


class NestSteps(NamedTuple):
    """The nests of a family that makes several out of one.

    Attributes:
        einsums: the einsum of each nest. The results of all but the last are in global
            memory.
        recipes: returns the recipe of each nest.
    """

    einsums: Sequence[BatchedEinsum]
    recipes: Callable[[], Sequence[TransformSpec]]


STEPS = "steps"
"""The parameter of families of several nests that names the recipe of each nest, or a
rule that chooses them.
"""


@dataclass(frozen=True)
class Transform:
    """A family of schedules: a parametrized rewrite of loop nests.

    Attributes:
        space: the configurations for a workload, whose einsum is canonical: a
            :class:`Space`, or a plain dictionary of values. None, or an empty tuple of
            values, means that the family does not fit it.
        apply: rewrites a nest, given every parameter.
        cost: the cost by which :mod:`feinsum.predict` chooses among configurations of
            all families; a family without one is never predicted.
        devices: the kinds of devices for its recipes.
        is_sparse: whether the family is for einsums with a sparse operand; the others
            are for dense einsums.
        steps: the nests into which it divides an einsum with known extents, for
            families of several nests.
    """

    name: str
    version: int
    summary: str
    space: Callable[[Workload], Table | None]
    apply: Callable[[lp.TranslationUnit, LoopNest, Parameters], lp.TranslationUnit]
    cost: CostFunction | None = None
    devices: frozenset[DeviceKind] = ALL_DEVICES
    is_sparse: bool = False
    steps: Callable[[BatchedEinsum, Parameters], NestSteps] | None = None

    def spec(self, parameters: Parameters) -> TransformSpec:
        return TransformSpec(self.name, self.version, parameters)

    def fits(self, subject: WorkloadLike) -> bool:
        return self.get_space(subject) is not None

    def get_space(self, subject: WorkloadLike) -> Space | None:
        """Return the space of a workload; None if the family does not fit it.

        Families for sparse operands fit no dense einsum, and the others no sparse one.

        Raises:
            TransformError: if the function ``space`` returns something else.
        """
        workload = as_workload(subject)
        has_tree = workload.einsum.sparse_position is not None
        values = self.space(workload) if has_tree == self.is_sparse else None
        if values is not None and not isinstance(values, Mapping):
            raise TransformError(
                f"the space of {self.name}@{self.version} is a value of type "
                f"{type(values).__name__}; expected the values of each parameter, such "
                "as {'block': (64, 16)}, or None"
            )
        if values is None or not all(values.values()):
            return None
        return values if isinstance(values, Space) else Space(values)

    def starts(self, subject: WorkloadLike) -> tuple[Parameters, ...]:
        """Return the first eight candidates besides the recommended configuration."""
        space = self.get_space(subject)
        if space is None or space.candidates is None:
            return ()
        first: list[Parameters] = [*islice(space.points(), 1)]
        for point in space.proposed():
            if point not in first:
                first.append(point)
            if len(first) == 9:
                break
        return tuple(first[1:])


REGISTRY: dict[tuple[str, int], Transform] = {}
"""Every registered transform by name and version."""


def register(transform: Transform) -> Transform:
    """Register a transform.

    A transform of a script or notebook replaces an earlier one, as when a cell is run
    again.

    Raises:
        TransformError: if another one has its name and version, or these cannot occur
            in a recipe.
    """
    _check_transform(transform)
    key = transform.name, transform.version
    if key in REGISTRY and _is_of_script(transform) and _is_of_script(REGISTRY[key]):
        REGISTRY[key] = transform
    if REGISTRY.setdefault(key, transform) is not transform:
        raise TransformError(
            f"a transform {transform.name}@{transform.version} is already registered; "
            "give the new one a different version"
        )
    return transform


def _check_transform(transform: Transform) -> None:
    name, version = transform.name, transform.version
    if not (isinstance(name, str) and re.fullmatch("[a-z][a-z0-9_]*", name)):
        raise TransformError(
            f"a transform has the name {name!r}; expected lower case, digits and _"
        )
    if type(version) is not int or version < 1:
        raise TransformError(
            f"the transform {name} has version={version!r}; expected an integer from 1"
        )
    for field in ("space", "apply"):
        if not callable(getattr(transform, field)):
            raise TransformError(
                f"{field} of the transform {name} is of type "
                f"{type(getattr(transform, field)).__name__}; expected a function"
            )


def _is_of_script(transform: Transform) -> bool:
    return transform.apply.__module__ == "__main__"


def find_transform(name: str, version: int) -> Transform:
    """Return the registered transform.

    Raises:
        UnknownTransformError: listing the registered ones.

    >>> import feinsum.transforms.library
    >>> find_transform("rowwise", 1).name
    'rowwise'
    """
    transform = REGISTRY.get((name, version))
    if transform is not None:
        return transform
    registered = sorted(f"{n}@{v}" for n, v in REGISTRY)
    close = get_close_matches(f"{name}@{version}", registered, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UnknownTransformError(
        f"no transform {name}@{version} is registered here; {hint}there are: "
        f"{', '.join(registered)}"
    )


def find_applicable_transforms(
    subject: WorkloadLike, kind: DeviceKind | None = None
) -> tuple[Transform, ...]:
    """Return the newest versions of the transforms to search, by name.

    Args:
        subject: the einsum, or the workload with its sizes.
        kind: kind of device; by default, only transforms for every kind are returned.
    """
    kinds = ALL_DEVICES if kind is None else {kind}
    suited = sorted(key for key, t in REGISTRY.items() if kinds <= t.devices)
    # the keys are sorted, and a dict keeps the last version for each name
    newest = [REGISTRY[key] for key in dict(suited).items()]
    workload = as_workload(subject)
    spaces = ((transform, transform.get_space(workload)) for transform in newest)
    return tuple(t for t, space in spaces if space is not None and space.is_searched)


def with_named_steps(spec: TransformSpec, einsum: BatchedEinsum) -> TransformSpec:
    """Return the recipe as stored in a fact, with the recipes of all steps by name.

    A recipe that leaves this choice to the costs may mean another kernel in a later
    version of this package, which corrects a cost.
    """
    steps = find_transform(spec.name, spec.version).steps
    if steps is None:
        return spec
    named = tuple(map(str, steps(einsum, spec.parameters).recipes()))
    return replace(spec, parameters={**spec.parameters, STEPS: named})


def with_newest_version(spec: TransformSpec) -> TransformSpec:
    """Return the recipe with the newest version of its family, and equal parameters.

    >>> import feinsum.transforms.library
    >>> str(with_newest_version(TransformSpec("rowwise", 1, {"block": 4})))
    'rowwise@2(block=4)'
    """
    versions = [version for name, version in REGISTRY if name == spec.name]
    return replace(spec, version=max(versions, default=spec.version))


def suits_device(spec: TransformSpec, kind: DeviceKind) -> bool:
    """Return whether a recipe suits a kind of device; True for unknown families."""
    transform = REGISTRY.get((spec.name, spec.version))
    return transform is None or kind in transform.devices


def list_configurations(
    transform: Transform, subject: WorkloadLike
) -> Iterator[TransformSpec]:
    """Yield every configuration of the space that satisfies the constraints.

    There are none if the transform does not fit the einsum.
    """
    space = transform.get_space(subject)
    if space is not None:
        yield from map(transform.spec, space.points())


def list_proposed(transform: Transform, subject: WorkloadLike) -> Iterator[Parameters]:
    """Yield the configurations of a family from which predictions choose."""
    space = transform.get_space(subject)
    return iter(()) if space is None else space.proposed()


def check_spec(spec: TransformSpec, subject: WorkloadLike) -> Transform:
    """Find the transform of ``spec``, and check its parameters.

    Args:
        spec: name, version and parameters of the transform.
        subject: the canonical einsum to which the parameters refer.

    Raises:
        UnknownTransformError: if it is not registered.
        InvalidParameterError: naming the parameter, its value and the choices.
    """
    transform, workload = find_transform(spec.name, spec.version), as_workload(subject)
    space = transform.get_space(workload)
    if space is None:
        raise InvalidParameterError(
            f"{spec.name}@{spec.version} does not fit the einsum "
            f"{workload.einsum.subscripts}"
        )
    if set(spec.parameters) != set(space):
        raise InvalidParameterError(
            f"{spec}: expected the parameters {', '.join(sorted(space))}; "
            f"got {', '.join(sorted(spec.parameters)) or 'none'}"
        )
    for name, value in spec.parameters.items():
        is_offered = repr(value) in map(repr, space[name])  # True is not 1
        if not (is_offered or name in space.open):
            raise InvalidParameterError(
                f"{spec}: {name}={value!r} is outside its space {list(space[name])}"
            )
    problem = space.constraint(spec.parameters)
    if problem is not None:
        raise InvalidParameterError(f"{spec}: {problem}")
    return transform


def apply_spec(
    spec: TransformSpec, t_unit: lp.TranslationUnit, nest: LoopNest
) -> lp.TranslationUnit:
    """Apply a recipe to a nest given in the names of the canonical einsum.

    Raises:
        UnknownTransformError, InvalidParameterError: see :func:`check_spec`.
        TransformError: if Loopy refuses a step; with Loopy's message.
    """
    transform = check_spec(spec, nest.einsum)
    try:
        result = transform.apply(t_unit, nest, spec.parameters)
    except TransformError as error:
        location = _find_failing_line(transform, error)
        if not location:
            raise
        raise type(error)(f"{error}{location}") from error
    except Exception as error:  # Loopy raises errors of many kinds
        raise TransformError(
            f"{spec} cannot be applied to kernel {nest.kernel_name!r}: "
            f"{type(error).__name__}: {error}{_find_failing_line(transform, error)}"
        ) from error
    if not isinstance(result, lp.TranslationUnit):
        raise TransformError(
            f"{spec} returned a value of type {type(result).__name__}; expected a "
            "loopy.TranslationUnit, such as the t_unit of a schedule"
        )
    return result


def _find_failing_line(transform: Transform, error: Exception) -> str:
    """Return the last line of a user's own file in a traceback, for a message.

    A trial runs in another process, which returns the message alone, so users would not
    see where their code failed. The library's own transforms need no such line.
    """
    module = transform.apply.__module__
    code = getattr(transform.apply, "__code__", None)
    if module.startswith("feinsum.") or code is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    frames_of_file = [f for f in frames if f.filename == code.co_filename]
    if not frames_of_file:
        return ""
    last = frames_of_file[-1]
    line = f": {last.line}" if last.line else ""
    return f" (at {last.filename}:{last.lineno}, in {last.name}{line})"
