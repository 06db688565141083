"""The registry: which transforms are installed, and how a spec is applied.

A record can only name what is registered; nothing else can run.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import islice, product
from typing import get_args

import loopy as lp

from feinsum.errors import (
    InvalidParameterError,
    TransformError,
    UnknownTransformError,
)
from feinsum.ir import BatchedEinsum, Workload, WorkloadLike, workload_of
from feinsum.raising import LoopNest
from feinsum.records import ParameterValue, TransformSpec
from feinsum.records.environment import DeviceKind
from feinsum.transforms.cost import Machine

ALL_DEVICES: frozenset[DeviceKind] = frozenset(get_args(DeviceKind))
Parameters = Mapping[str, ParameterValue]
Space = Mapping[str, tuple[ParameterValue, ...]]
"""The values that each parameter can take, the recommended one first."""
Cost = Callable[[BatchedEinsum, Parameters, Machine], float]
"""About how many seconds a configuration takes, for an einsum of known extents."""


@dataclass(frozen=True)
class Transform:
    """A family of recipes: a parametrized rewrite of loop nests.

    Attributes:
        space: the parameter space for a workload, whose einsum is canonical; an empty
            tuple of values, or no space at all, means that the family does not fit it.
            Values offered only at some sizes must be admitted at others.
        apply: rewrites a nest, given every parameter.
        constraint: returns why a configuration of the space is pointless, or None; at
            unknown sizes it must reject no more than at some known ones.
        is_searched: whether searches try the family. Recorded recipes are used anyway.
        devices: the kinds of devices for its recipes.
        starts: configurations of the space, besides the recommended one, with which a
            search begins, for example for devices with other registers.
        admits: whether a recorded recipe may have a value that is not offered; may
            raise InvalidParameterError itself.
        cost: the cost by which :mod:`feinsum.predict` chooses among configurations of
            all families; a family without one is never predicted.
        proposals: the configurations to choose from; by default the recommended one
            and the starts. Some may be pointless.
        intermediate_bytes: size of the arrays that hold products of operands, for an
            einsum with known extents; for families that have such arrays.
        in_full: the same configuration with parameters that mean the same in every
            version of this package, as stored in facts; for families that leave choices
            to costs.
        is_sparse: whether the family is for einsums with a sparse operand; others are
            for those without.
    """

    name: str
    version: int
    summary: str
    space: Callable[[Workload], Space | None]
    apply: Callable[[lp.TranslationUnit, LoopNest, Parameters], lp.TranslationUnit]
    constraint: Callable[[Workload, Parameters], str | None] = (
        lambda _workload, _parameters: None
    )
    is_searched: Callable[[BatchedEinsum], bool] = lambda _einsum: True
    devices: frozenset[DeviceKind] = ALL_DEVICES
    starts: Callable[[Workload], tuple[Parameters, ...]] = lambda _workload: ()
    admits: Callable[[BatchedEinsum, str, ParameterValue], bool] = (
        lambda _einsum, _name, _value: False
    )
    cost: Cost | None = None
    proposals: Callable[[Workload], Iterable[Parameters]] | None = None
    intermediate_bytes: Callable[[BatchedEinsum, Parameters], int] | None = None
    in_full: Callable[[BatchedEinsum, Parameters], Parameters] = (
        lambda _einsum, parameters: parameters
    )
    is_sparse: bool = False

    def spec(self, parameters: Parameters) -> TransformSpec:
        return TransformSpec(self.name, self.version, parameters)

    def fits(self, subject: WorkloadLike) -> bool:
        return self.offered(subject) is not None

    def offered(self, subject: WorkloadLike) -> Space | None:
        """The parameter space; None if the family does not fit.

        Also None if it is for operands with other storage.
        """
        workload = workload_of(subject)
        has_tree = workload.einsum.sparse_position is not None
        space = self.space(workload) if has_tree == self.is_sparse else None
        return space if space is not None and all(space.values()) else None


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
    for part in ("space", "apply"):
        if not callable(getattr(transform, part)):
            raise TransformError(
                f"{part} of the transform {name} is of type "
                f"{type(getattr(transform, part)).__name__}; expected a function"
            )


def _is_of_script(transform: Transform) -> bool:
    return transform.apply.__module__ == "__main__"


def find_transform(name: str, version: int) -> Transform:
    """The registered transform.

    Raises:
        UnknownTransformError: listing the registered ones.

    >>> import feinsum.transforms.library
    >>> find_transform("rowwise", 1).name
    'rowwise'
    """
    found = REGISTRY.get((name, version))
    if found is not None:
        return found
    known = sorted(f"{n}@{v}" for n, v in REGISTRY)
    close = get_close_matches(f"{name}@{version}", known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UnknownTransformError(
        f"no transform {name}@{version} is registered here; {hint}there are: "
        f"{', '.join(known)}"
    )


def applicable_transforms(
    subject: WorkloadLike, kind: DeviceKind | None = None
) -> tuple[Transform, ...]:
    """The transforms to search for a canonical einsum, by name; newest versions.

    Args:
        subject: the einsum, or the workload with its sizes.
        kind: kind of device; by default, only transforms for every kind are returned.
    """
    kinds = ALL_DEVICES if kind is None else {kind}
    suited = sorted(key for key, t in REGISTRY.items() if kinds <= t.devices)
    newest = [REGISTRY[key] for key in dict(suited).items()]
    workload = workload_of(subject)
    return tuple(
        t for t in newest if t.fits(workload) and t.is_searched(workload.einsum)
    )


def in_full(spec: TransformSpec, einsum: BatchedEinsum) -> TransformSpec:
    """The recipe as stored in a fact: nothing is left to costs, which may change."""
    transform = find_transform(spec.name, spec.version)
    return transform.spec(transform.in_full(einsum, spec.parameters))


def renewed(spec: TransformSpec) -> TransformSpec:
    """The same parameters in the newest version of the family, or what is unknown.

    >>> import feinsum.transforms.library
    >>> str(renewed(TransformSpec("rowwise", 1, {"block": 4})))
    'rowwise@2(block=4)'
    """
    versions = [version for name, version in REGISTRY if name == spec.name]
    return replace(spec, version=max(versions, default=spec.version))


def suits_device(spec: TransformSpec, kind: DeviceKind) -> bool:
    """Whether a recipe is for a kind of device; True for unknown recipes."""
    transform = REGISTRY.get((spec.name, spec.version))
    return transform is None or kind in transform.devices


def configurations(
    transform: Transform, subject: WorkloadLike
) -> Iterator[TransformSpec]:
    """Every configuration of the space that satisfies the constraints.

    There are none if the transform does not fit the einsum.
    """
    workload = workload_of(subject)
    space = transform.offered(workload)
    if space is None:
        return
    for parameters in points(space, workload, transform.constraint):
        yield transform.spec(parameters)


def points(
    space: Space,
    workload: Workload,
    constraint: Callable[[Workload, Parameters], str | None],
) -> Iterator[Parameters]:
    """Every choice of values that the constraint allows."""
    return (one for one in choices(space) if constraint(workload, one) is None)


def choices(space: Space) -> Iterator[Parameters]:
    """Every choice of values, the last one changing first."""
    for values in product(*space.values()):
        yield dict(zip(space, values, strict=True))


def every(
    space: Callable[[Workload], Space | None],
) -> Callable[[Workload], Iterable[Parameters]]:
    """All configurations as the proposals of a family: its cost chooses."""
    return lambda workload: choices(space(workload) or {})


def proposed(transform: Transform, subject: WorkloadLike) -> Iterator[Parameters]:
    """The configurations of a family from which predictions choose."""
    workload = workload_of(subject)
    space = transform.offered(workload)
    if space is None:
        return
    if transform.proposals is None:
        yield from islice(points(space, workload, transform.constraint), 1)
        yield from transform.starts(workload)
        return
    for parameters in transform.proposals(workload):
        if transform.constraint(workload, parameters) is None:
            yield parameters


def check_spec(spec: TransformSpec, subject: WorkloadLike) -> Transform:
    """The transform of ``spec``, if its parameters are in the space, or are admitted.

    Args:
        subject: the canonical einsum to which the parameters refer.

    Raises:
        UnknownTransformError: if it is not registered.
        InvalidParameterError: naming the parameter, its value and the choices.
    """
    transform, workload = find_transform(spec.name, spec.version), workload_of(subject)
    einsum, space = workload.einsum, transform.offered(workload)
    if space is None:
        raise InvalidParameterError(
            f"{spec.name}@{spec.version} does not fit the einsum {einsum.subscripts}"
        )
    if set(spec.parameters) != set(space):
        raise InvalidParameterError(
            f"{spec}: expected the parameters {', '.join(sorted(space))}; "
            f"got {', '.join(sorted(spec.parameters)) or 'none'}"
        )
    for name, value in spec.parameters.items():
        choices = space[name]
        is_offered = repr(value) in map(repr, choices)  # True is not 1
        if not (is_offered or transform.admits(einsum, name, value)):
            raise InvalidParameterError(
                f"{spec}: {name}={value!r} is outside its space {list(choices)}"
            )
    problem = transform.constraint(workload, spec.parameters)
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
        place = _place_in(transform, error)
        if not place:
            raise
        raise type(error)(f"{error}{place}") from error
    except Exception as error:  # Loopy raises errors of many kinds
        raise TransformError(
            f"{spec} cannot be applied to kernel {nest.kernel_name!r}: "
            f"{type(error).__name__}: {error}{_place_in(transform, error)}"
        ) from error
    if not isinstance(result, lp.TranslationUnit):
        raise TransformError(
            f"{spec} returned a value of type {type(result).__name__}; expected a "
            "loopy.TranslationUnit, such as the t_unit of a schedule"
        )
    return result


def _place_in(transform: Transform, error: Exception) -> str:
    """Where a user's transform failed: the last line of its own file.

    A trial fails in another process, and only its message comes back.
    """
    module = transform.apply.__module__
    code = getattr(transform.apply, "__code__", None)
    if module.startswith("feinsum.") or code is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == code.co_filename]
    if not own:
        return ""
    last = own[-1]
    line = f": {last.line}" if last.line else ""
    return f" (at {last.filename}:{last.lineno}, in {last.name}{line})"
