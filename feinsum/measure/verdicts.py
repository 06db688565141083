"""Requests to the process that verifies and times recipes, and its verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from constantdict import constantdict

from feinsum.records import OK, TransformSpec, get_utc_now
from feinsum.records.document import STRICT


@dataclass(frozen=True)
class CompiledHostKernel:
    """A kernel of the host, compiled.

    Attributes:
        path: path of the shared object.
        arguments: the name of each, in the order of the entry point; the dtype of those
            that are scalars, and nothing for arrays, which lie in C order.
        function: the name of a plain C function, of pointers and scalars; without one
            the entry point is that of kernels for the threads of the host.
    """

    __pydantic_config__ = STRICT

    path: str
    arguments: tuple[tuple[str, str], ...]
    function: str = ""


@dataclass(frozen=True)
class RandomArgument:
    """An argument of kernels that are compared; its entries are random.

    Attributes:
        n_entries: length of the buffer of an array; zero for a scalar.
        value: of a scalar.
        below: exclusive bound of the entries of an index array; zero if there is none.
        is_read, is_written: what the given kernel does with an array.
    """

    __pydantic_config__ = STRICT

    dtype: str
    n_entries: int = 0
    value: float | int = 0
    below: int = 0
    is_read: bool = True
    is_written: bool = False


@dataclass(frozen=True)
class KernelComparison:
    """A kernel as its user builds it, and its possible replacements.

    Attributes:
        pool: the path of the shared object of the threads that they run on; empty if
            all programs are plain functions.
        programs: all compute the same; see ``pairs``.
        pairs: the number of a program of the given kernel, and of one of a kernel with
            recipes that is timed against it.
        arguments: by name.
        tolerance: maximum error against the given kernel, relative to the largest entry
            of an array.
        checked: arguments of other sizes, for which results are only compared.
    """

    __pydantic_config__ = STRICT

    pool: str
    programs: tuple[CompiledHostKernel, ...]
    pairs: tuple[tuple[int, int], ...]
    arguments: Mapping[str, RandomArgument]
    tolerance: float
    checked: tuple[Mapping[str, RandomArgument], ...] = ()


@dataclass(frozen=True)
class VerificationRequest:
    """A trial: whether a recipe is right on a device, and how fast it is.

    Attributes:
        frame: the text of the workload whose names the recipe uses.
        device: the id of the device.
        memory_bytes: how much the process may allocate, if the device is the CPU.
        sizes: values of the size parameters of the workload, at which the recipe is
            timed.
        limit_s: seconds after which the trial is stopped.
        timing_lock: path of a file that processes which compute at the same time lock
            while they take times; empty if this process is alone.
        kernels: whole kernels that are compared instead, one of them with the recipe.
    """

    __pydantic_config__ = STRICT

    frame: str
    spec: TransformSpec
    device: str
    memory_bytes: int
    sizes: Mapping[str, int] = field(default_factory=constantdict)
    limit_s: float = 60.0
    timing_lock: str = ""
    kernels: KernelComparison | None = None


@dataclass(frozen=True)
class Verdict:
    """The verdict on a recipe.

    Attributes:
        code: ``ok``, or the code of an error of :mod:`feinsum.errors`.
        message: what went wrong, in words.
        found_at: UTC, ISO 8601.
        least_s, baseline_s: the time of the recipe and that of the untransformed
            kernel, in turns; zero if it was not timed.
        sizes: at which it was timed.
        samples: of whole kernels, the times of each program in turns; nothing for one
            whose results differ from those of the given kernel.
    """

    __pydantic_config__ = STRICT

    code: str
    message: str = ""
    found_at: str = field(default_factory=get_utc_now)
    least_s: float = 0.0
    baseline_s: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=constantdict)
    samples: tuple[tuple[float, ...], ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether the recipe is correct; it may still be slow."""
        return self.code == OK

    @property
    def speedup(self) -> float:
        """Speed-up over the untransformed kernel; zero if the recipe was not timed."""
        return self.baseline_s / self.least_s if self.least_s > 0 else 0.0
