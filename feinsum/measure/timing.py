"""Timing: warm-up, then interleaved rounds, all samples kept.

Three kernels A, B, C of which C is slow and takes part in every second round
(``every=[1, 1, 2]``, ``is_rotating=True``)::

    warm-up    A B C   A B          C warms up once
    round 0    A B C
    round 1    B A                  k-th samples of A and B are of one round
    round 2    C A B
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from feinsum.measure.arguments import draw_arguments
from feinsum.measure.kernel import BoundKernel, compile_kernel
from feinsum.measure.trial import Timeable, choose_common_timer
from feinsum.select import MIN_SAMPLES
from feinsum.targets.devices import open_device
from feinsum.targets.layout import bind_sizes_of, get_entry_kernel
from feinsum.targets.protocol import OpenDevice, Timer

MAX_SAMPLES = 512
"""Maximum samples of a fact; a kernel of 1 us runs tens of thousands of times."""


def timeit(
    t_unit: Any,
    arguments: Mapping[str, Any],
    *,
    device: OpenDevice | str | None = None,
    rounds: int = 20,
    warmup: int = 5,
    min_total_s: float = 0.05,
    max_total_s: float = 30.0,
) -> tuple[float, ...]:
    """Time one kernel, in seconds; see :func:`interleave` for the policy.

    The kernel alone is timed, as feinsum compiles it, on arrays that stay in place. A
    call of ``t_unit.executor()`` also checks its arguments and allocates results, and
    Loopy's own executor of a C target compiles without these options, so it takes
    longer.

    Args:
        t_unit: a Loopy translation unit with one entry point.
        arguments: values by name. Sizes are enough: missing arrays and scalars are
            drawn at random (with a fixed seed).
        device: an open device, or a selector for :func:`open_device`.
        rounds: as for :func:`interleave`.
        warmup: as for :func:`interleave`.
        min_total_s: as for :func:`interleave`.
        max_total_s: as for :func:`interleave`.
    """
    bound = bind_at(t_unit, arguments, device=device)
    (samples,) = interleave(
        [bound],
        rounds=rounds,
        warmup=warmup,
        min_total_s=min_total_s,
        max_total_s=max_total_s,
    )
    return samples


def bind_at(
    t_unit: Any,
    arguments: Mapping[str, Any],
    *,
    device: OpenDevice | str | None = None,
) -> BoundKernel:
    """Compile and bind, drawing missing ``arguments`` at random."""
    if device is None or isinstance(device, str):
        device = open_device(device)
    compiled = compile_kernel(t_unit, device)
    sizes = bind_sizes_of(get_entry_kernel(compiled.t_unit), arguments)
    drawn = draw_arguments(compiled.t_unit, sizes, np.random.default_rng(0))
    return compiled.bind({**drawn, **arguments})


def interleave(
    kernels: Sequence[Timeable],
    *,
    rounds: int = 20,
    warmup: int = 5,
    min_total_s: float = 0.05,
    max_total_s: float = 30.0,
    every: Sequence[int] = (),
    is_rotating: bool = False,
    clock: Callable[[], float] = perf_counter,
) -> tuple[tuple[float, ...], ...]:
    """Time several kernels, one run of each per round: A B C A B C ...

    Slow drift of the machine affects all kernels equally, so ratios are preserved. All
    kernels use the clock named by :func:`choose_common_timer`. The k-th sample of a
    kernel is from the k-th round in which it takes part.

    Args:
        kernels: the kernels to time, bound to their arguments.
        rounds: minimum number of samples of a kernel that is not capped.
        warmup: rounds before the first sample, which are discarded.
        min_total_s: rounds continue until every kernel has run this long.
        max_total_s: a kernel that has run this long gets no more rounds. The first run,
            which may compile, does not count. A capped kernel still gets one warm-up
            run (unless ``warmup`` is zero) and :data:`MIN_SAMPLES` samples.
        every: for each kernel, it takes part in the rounds whose number is divisible by
            this, and once in the warm-up unless it is 1; by default in all rounds.
        is_rotating: each round begins with the next kernel: A B C B C A C A B ...
        clock: host clock for these two bounds, in seconds.

    Returns:
        For each kernel, all samples in seconds, in the order of the rounds.
    """
    timer = choose_common_timer(kernels)
    runs = [
        _Series(kernel, timer, clock, max_total_s, step)
        for kernel, step in zip(kernels, every or [1] * len(kernels), strict=True)
    ]
    for k in range(warmup):
        for series in runs:
            if k == 0 or (series.every == 1 and not series.is_capped):
                series.run()
    # Warm-up counts towards the cap of a slow kernel, not towards the minimum.
    for series in runs:
        series.warmed_s = series.spent_s
    for k in count():
        if not any(series.wants_more(rounds, min_total_s) for series in runs):
            break
        first = k % len(runs) if is_rotating else 0
        for series in runs[first:] + runs[:first]:
            if k % series.every == 0 and series.may_run:
                series.sample()
    return tuple(tuple(series.samples_s) for series in runs)


def thin_samples(samples: tuple[float, ...]) -> tuple[float, ...]:
    """Keep at most :data:`MAX_SAMPLES` samples, evenly spread over the rounds.

    The choice depends only on the number of samples: if two kernels took part in the
    same rounds, their k-th samples are still from the same round.

    >>> len(thin_samples((1e-6,) * 5000)), thin_samples((3.0, 1.0, 2.0))
    (512, (3.0, 1.0, 2.0))
    """
    if (n := len(samples)) <= MAX_SAMPLES:
        return samples
    return tuple(samples[k * n // MAX_SAMPLES] for k in range(MAX_SAMPLES))


@dataclass
class _Series:
    """The runs of one kernel.

    Attributes:
        every: it takes part in the rounds whose number this divides.
        spent_s: host time of all runs but the first.
        warmed_s: the part of it that was warm-up.
    """

    kernel: Timeable
    timer: Timer
    clock: Callable[[], float]
    max_total_s: float
    every: int = 1
    spent_s: float = 0.0
    warmed_s: float = 0.0
    is_first: bool = True
    samples_s: list[float] = field(default_factory=list)

    def run(self) -> float:
        start = self.clock()
        seconds = self.kernel.run(self.timer)
        if not self.is_first:
            self.spent_s += self.clock() - start
        self.is_first = False
        return seconds

    def sample(self) -> None:
        self.samples_s.append(self.run())

    @property
    def is_capped(self) -> bool:
        return self.spent_s >= self.max_total_s

    @property
    def may_run(self) -> bool:
        return not self.is_capped or len(self.samples_s) < MIN_SAMPLES

    def wants_more(self, rounds: int, min_total_s: float) -> bool:
        """Return whether this kernel needs another round."""
        is_short = self.spent_s - self.warmed_s < min_total_s
        # A kernel of every k-th round counts as sampled in the rounds between.
        return self.may_run and (len(self.samples_s) * self.every < rounds or is_short)
