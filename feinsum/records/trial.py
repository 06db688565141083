"""Trials: outcomes of the recipes that a tuning tried. Trials are not facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from annotated_types import Gt, MaxLen
from constantdict import constantdict

from feinsum.canonical import WorkloadKey
from feinsum.errors import InvalidRecordError
from feinsum.records.document import Document
from feinsum.records.environment import Environment
from feinsum.records.spec import TransformSpec
from feinsum.words import brief

OK = "ok"

MESSAGE_LENGTH = 2000
"""Maximum stored characters of a message."""


def _now() -> str:
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

    workload: WorkloadKey
    workload_text: str
    sizes: Mapping[str, int]
    environment: Environment
    spec: TransformSpec
    status: str
    message: Annotated[str, MaxLen(MESSAGE_LENGTH)] = ""
    median_s: Annotated[float, Gt(0)] | None = None
    ratio: Annotated[float, Gt(0)] | None = None
    recorded_at: str = field(default_factory=_now)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", constantdict(self.sizes))
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
        return brief(self, f"{self.spec}: {self.status}{time}{message}")

    @property
    def is_ok(self) -> bool:
        return self.status == OK

    @property
    def cost(self) -> float:
        """The ranking key, lowest first: :attr:`ratio`, infinite if it failed."""
        return float("inf") if self.ratio is None else self.ratio
