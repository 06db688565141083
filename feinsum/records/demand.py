"""Demand: workloads that look-ups requested and for which no fact is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from feinsum.canonical import WorkloadKey, text_digest


@dataclass(frozen=True)
class Miss:
    """A look-up without an answer; ``device`` is empty if none was named."""

    workload: WorkloadKey
    device: str

    @property
    def sort_key(self) -> tuple[str, str]:
        """The order in which misses are stored."""
        return self.workload, self.device


@dataclass(frozen=True)
class Demand:
    """How often a workload was requested, for a device, without an answer.

    Attributes:
        workload_text: the canonical einsum, if a request had it.
        device: as the requests named it; empty if they named none.
        n_callers: number of callers that requested it.
    """

    workload: WorkloadKey
    workload_text: str | None
    device: str
    count: int
    first_seen: datetime
    last_seen: datetime
    n_callers: int = 1

    @property
    def sort_key(self) -> tuple[int, int, str, str]:
        """The position in a list of demands, most wanted first."""
        return self.n_callers, self.count, self.workload, self.device


def is_text_of(text: str, workload: str) -> bool:
    """Whether a text is the canonical text that a key digests.

    >>> from feinsum.canonical import canonicalize
    >>> from feinsum.ir import array, einsum
    >>> form = canonicalize(einsum("ij->j", array("A", (3, 4))))
    >>> is_text_of(form.text, form.key), is_text_of("another", form.key)
    (True, False)
    """
    return workload.endswith(f"-{text_digest(text)}")
