"""Tuning records and trials: which recipe ran, how fast, and how it was verified.

A recipe and the untransformed kernel are timed in turns, so that a machine that slows
down slows both. For samples of 2.0, 2.1 and 2.0 ms and a baseline of 8.0, 8.4 and 8.0
ms, the speed-up is the ratio of the medians, 4.0; its interval is that of the median of
the recipe's samples (a notch), because all recipes of one run have the same baseline.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from math import inf, sqrt
from statistics import median, quantiles
from typing import Annotated, Any, NamedTuple, TypeAlias

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from constantdict import constantdict

from feinsum.canonical import WorkloadKey
from feinsum.errors import InvalidRecordError
from feinsum.records.document import Document, Part, get_utc_now
from feinsum.records.environment import Environment
from feinsum.words import format_brief, format_count

ParameterValue: TypeAlias = bool | int | str | tuple[int | str, ...]

HOST_PREFIX = "library_"
"""Prefix of the names of transforms that call a library of the host."""

_HEAD = re.compile(r"([a-z][a-z0-9_]*)@(\d+)\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class TransformSpec(Part):
    """A registered transform's name, its version, and parameters.

    >>> spec = TransformSpec("rowwise", 1, {"lanes": 8, "index": "a"})
    >>> str(spec)
    "rowwise@1(index='a', lanes=8)"
    >>> TransformSpec.parse(str(spec)) == spec
    True
    """

    name: str
    version: int
    parameters: Mapping[str, ParameterValue]

    def __post_init__(self) -> None:
        # in one order, so that equal specs have equal texts and ids
        ordered = dict(sorted(self.parameters.items()))
        object.__setattr__(self, "parameters", constantdict(ordered))

    @property
    def is_on_host(self) -> bool:
        """Whether a library of the host computes it, by the transform's name."""
        return self.name.startswith(HOST_PREFIX)

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.parameters.items())
        return f"{self.name}@{self.version}({inside})"

    @classmethod
    def parse(cls, text: str) -> TransformSpec:
        """Parse the text form.

        Raises:
            InvalidRecordError: if the text is not of the form
                ``name@version(parameter=value, ...)`` with literal values.
        """
        if not isinstance(text, str):
            raise _refuse(repr(text), "expected text, or a TransformSpec")
        head = _HEAD.fullmatch(text.strip())
        if head is None:
            raise _refuse(text, _describe_missing_part(text.strip()))
        name, version, inside = head.groups()
        try:
            parameters = _parse_parameters(inside)
            number = int(version)
        except SyntaxError as error:
            # the offset counts from "f(", which the text does not have
            position = max((error.offset or 0) - len("f(") - 1, 0)
            excerpt = inside[position : position + 20] or inside
            raise _refuse(text, f"{excerpt!r} cannot be parsed: {error.msg}") from None
        except (TypeError, ValueError) as error:
            raise _refuse(text, str(error)) from None
        except (MemoryError, RecursionError):
            raise _refuse(text, "the values are nested too deeply") from None
        for key, value in parameters.items():
            if not _is_parameter(value):
                raise _refuse(
                    text, f"{key}={value!r} is not an int, bool, text or tuple"
                )
        return cls(name, number, parameters)


class FramedSpec(NamedTuple):
    """A recipe, and the text of the workload to whose names it refers."""

    spec: TransformSpec
    frame: str


def _describe_missing_part(text: str) -> str:
    """Describe the missing part of ``name@version(parameter=value, ...)``."""
    form = "expected name@version(parameter=value, ...)"
    head, bracket, _ = text.partition("(")
    name, separator, version = head.partition("@")
    if not bracket:
        return f"the parameters in brackets are missing; {form}"
    if not separator:
        return f"{name!r} has no version, such as {name or 'name'}@1; {form}"
    if not version.isascii() or not version.isdigit():
        return f"{version!r} is no version; {form}"
    if not text.endswith(")"):
        return f"the closing bracket is missing; {form}"
    return f"{name!r} is no name of a transform; {form}"


def _parse_parameters(inside: str) -> dict[str, Any]:
    """Parse the literals of ``key=value, ...``; nothing is executed."""
    # Specs come from others, so the values must be literals. Python's own parser reads
    # them as the arguments of a call that is never made.
    match ast.parse(f"f({inside})", mode="eval").body:
        case ast.Call(func=ast.Name(), args=[], keywords=keywords):
            pass
        case ast.Call(func=ast.Name(), args=[first, *_]):
            raise ValueError(f"{ast.unparse(first)!r} has no name; write name=value")
        case _:
            raise ValueError("expected only named parameters")
    parameters: dict[str, Any] = {}
    for keyword in keywords:
        name, value = keyword.arg, ast.unparse(keyword.value)
        if name is None:
            raise ValueError(f"'**{value}' is not a parameter; write name=value")
        if name in parameters:
            raise ValueError(f"the parameter {name!r} is given twice")
        try:
            parameters[name] = ast.literal_eval(keyword.value)
        except ValueError:
            raise ValueError(
                f"{name}={value} is not a literal; expected a number, True, False, a "
                "quoted text, or a tuple"
            ) from None
    return parameters


def _is_parameter(value: object) -> bool:
    if isinstance(value, tuple):  # one level: JSON has no tuples, so lists become some
        return all(type(item) in (int, str) for item in value)
    return isinstance(value, (bool, int, str))


def _refuse(text: str, problem: str) -> InvalidRecordError:
    return InvalidRecordError(f"transform spec {text!r}: {problem}")


NOISE = 0.2
"""Interquartile range over the median above which times count as noisy."""

Seconds = Annotated[float, Gt(0)]
Count = Annotated[int, Ge(0), Le(2**63 - 1)]
Size = Annotated[int, Ge(-(2**63)), Le(2**63 - 1)]


@dataclass(frozen=True)
class Verification(Part):
    """How a kernel was compared with the reference evaluator.

    Attributes:
        reference: name of the reference.
        tolerance: largest error allowed, relative to the largest result.
        largest_error: largest error seen, relative to the largest result.
        sizes: the values of the size parameters at which it was compared.
    """

    reference: str
    tolerance: float
    largest_error: float
    sizes: tuple[Mapping[str, Size], ...]

    def __post_init__(self) -> None:
        frozen = tuple(constantdict(sizes) for sizes in self.sizes)
        object.__setattr__(self, "sizes", frozen)


@dataclass(frozen=True)
class Measurement(Part):
    """All samples of a kernel and of the untransformed one, from one run.

    Attributes:
        samples_s: one time per round, in seconds.
        baseline_s: the same for the untransformed kernel, interleaved.
        timer: ``opencl-profiling`` (device clock) or ``wall``.
        n_warmup: rounds before the first sample.
        sizes: the values of the size parameters.
        operations: exact number of arithmetic operations by dtype.
        footprint_bytes: bytes of all operands and results, each once.
    """

    mappings = ("sizes", "operations")

    samples_s: Annotated[tuple[Seconds, ...], MinLen(1)]
    baseline_s: Annotated[tuple[Seconds, ...], MinLen(1)]
    timer: str
    n_warmup: Count
    sizes: Mapping[str, Size]
    operations: Mapping[str, Count]
    footprint_bytes: Count
    verification: Verification

    # computed once: a look-up ranks by them, and parsing a record costs hardly more
    @cached_property
    def quartiles_s(self) -> Quartiles:
        return compute_quartiles(self.samples_s)

    @property
    def median_s(self) -> float:
        return self.quartiles_s.median

    @cached_property
    def baseline_median_s(self) -> float:
        """Median time of the untransformed kernel, in seconds."""
        return median(self.baseline_s)

    @property
    def spread_s(self) -> float:
        """Interquartile range of the samples, in seconds."""
        return self.quartiles_s.spread

    @property
    def is_noisy(self) -> bool:
        """See :func:`is_noisy`."""
        return self.quartiles_s.is_noisy

    @property
    def speedup(self) -> float:
        """Median time of the untransformed kernel over this one's."""
        return self.baseline_median_s / self.median_s

    @property
    def is_faster(self) -> bool:
        """Whether it is faster than the untransformed kernel, by a finite factor."""
        # infinite if a sample is denormal: no such time was measured
        return 1 < self.speedup < inf

    @cached_property
    def speedup_interval(self) -> tuple[float, float]:
        """The speed-up at the ends of the interval in which the median lies.

        See :func:`compute_median_interval`. That of the untransformed kernel is left
        out: all that ran beside it in one run have the same.
        """
        low, high = _compute_notch(self.samples_s, self.quartiles_s)
        return self.baseline_median_s / high, self.baseline_median_s / low

    @property
    def giga_operations_per_s(self) -> float:
        return sum(self.operations.values()) / self.median_s * 1e-9

    def __repr__(self) -> str:
        return format_brief(
            self,
            f"{self.median_s * 1e3:.4g} ms (IQR {self.spread_s * 1e3:.2g} ms, "
            f"{format_count(len(self.samples_s), 'sample')}), {self.speedup:.3g} times "
            "as fast as "
            "untransformed",
        )


class Quartiles(NamedTuple):
    """The quartiles of samples."""

    low: float
    median: float
    high: float

    @property
    def spread(self) -> float:
        """The interquartile range."""
        return self.high - self.low

    @property
    def is_noisy(self) -> bool:
        """Whether the interquartile range is above a fifth of the median."""
        return self.spread > NOISE * self.median


def is_noisy(samples: tuple[float, ...]) -> bool:
    """Return whether the interquartile range is above a fifth of the median.

    >>> is_noisy((1.0, 1.0, 1.1)), is_noisy((1.0, 1.0, 2.0))
    (False, True)
    """
    return compute_quartiles(samples).is_noisy


def compute_median_interval(samples: tuple[float, ...]) -> tuple[float, float]:
    """Return the notch of a box plot; if two do not overlap, their medians differ.

    That is 1.57 interquartile ranges over the square root of the number of samples on
    both sides of the median, as far as there are samples.

    Source: McGill, Tukey and Larsen 1978, Variations of box plots.

    >>> compute_median_interval((1.0,) * 8 + (1.1,) * 8)
    (1.01075, 1.08925)
    """
    return _compute_notch(samples, compute_quartiles(samples))


def _compute_notch(
    samples: tuple[float, ...], quartiles: Quartiles
) -> tuple[float, float]:
    # 1.57: medians whose notches do not overlap differ at the level of 5 %
    half = 1.57 * quartiles.spread / sqrt(len(samples))
    middle = quartiles.median
    return max(middle - half, min(samples)), min(middle + half, max(samples))


def compute_quartiles(samples: tuple[float, ...]) -> Quartiles:
    """Compute the quartiles of at least one sample.

    >>> compute_quartiles((1.0, 2.0, 3.0))
    Quartiles(low=1.5, median=2.0, high=2.5)
    """
    if len(samples) == 1:  # of a slow untransformed kernel; quantiles needs two
        return Quartiles(samples[0], samples[0], samples[0])
    # inclusive: the samples are the whole population, so quartiles lie between them
    return Quartiles(*quantiles(samples, n=4, method="inclusive"))


@dataclass(frozen=True)
class TuningRecord(Document):
    """A recipe and its performance on a workload in an environment.

    Attributes:
        workload: the key of the canonical einsum.
        workload_text: the canonical einsum as recorded; compared on every hit.
            :attr:`spec` refers to its names.
        provenance: who or what recorded it, as free text by topic.
        recorded_at: UTC, ISO 8601.
    """

    mappings = ("provenance",)

    workload: WorkloadKey
    workload_text: str
    environment: Environment
    spec: TransformSpec
    measurement: Measurement
    provenance: Mapping[str, str] = field(default_factory=constantdict)
    recorded_at: str = field(default_factory=get_utc_now)

    def __repr__(self) -> str:
        return format_brief(self, f"{self.id[:12]}: {self.spec}, {self.measurement!r}")

    @property
    def recipe(self) -> FramedSpec:
        """The recipe, with the text to whose names it refers."""
        return FramedSpec(self.spec, self.workload_text)


OK = "ok"

MESSAGE_LENGTH = 2000
"""Maximum stored characters of a message."""


def _get_time() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True)
class Trial(Document):
    """The outcome of one recipe, good or bad; stored, but never served.

    Attributes:
        workload, workload_text, sizes: the tuned workload, in canonical names.
        status: ``ok``, or the code of an error of :mod:`feinsum.errors`.
        message: what went wrong, in words.
        median_s: the recipe's median time, if it passed.
        ratio: its time over the untransformed kernel's, if it passed; see
            :mod:`feinsum.tuning.trials`.
        recorded_at: UTC, ISO 8601.
    """

    mappings = ("sizes",)

    workload: WorkloadKey
    workload_text: str
    sizes: Mapping[str, int]
    environment: Environment
    spec: TransformSpec
    status: str
    message: Annotated[str, MaxLen(MESSAGE_LENGTH)] = ""
    median_s: Annotated[float, Gt(0)] | None = None
    ratio: Annotated[float, Gt(0)] | None = None
    recorded_at: str = field(default_factory=_get_time)

    def __post_init__(self) -> None:
        super().__post_init__()
        # A trial that passed has both times, one that failed has none.
        n_times = (self.median_s is not None) + (self.ratio is not None)
        if n_times != 2 * self.is_ok:
            raise InvalidRecordError(
                f"a trial of {self.spec} with the status {self.status!r} was given "
                f"{n_times} of median_s and ratio; expected both if it is {OK}, "
                "else none"
            )

    def __repr__(self) -> str:
        time = f", {self.median_s * 1e3:.4g} ms" if self.median_s else ""
        message = f": {self.message}" if self.message else ""
        return format_brief(self, f"{self.spec}: {self.status}{time}{message}")

    @property
    def is_ok(self) -> bool:
        return self.status == OK

    @property
    def cost(self) -> float:
        """The ranking key, lowest first: :attr:`ratio`, infinite if it failed."""
        return float("inf") if self.ratio is None else self.ratio
