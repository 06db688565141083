"""Metrics in the text format of Prometheus; of all workers together."""

from __future__ import annotations

import os
from functools import cache

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = CONTENT_TYPE_LATEST

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Variable of prometheus-client: the folder in which workers combine their numbers."""

# a look-up takes about a millisecond, a canonicalization up to seconds
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

REQUESTS = Counter(
    "feinsum_requests", "Requests answered", ("method", "route", "status")
)
SECONDS = Histogram(
    "feinsum_request_seconds", "Time until an answer was sent", ("route",),
    buckets=BUCKETS,
)  # fmt: skip
ANSWERS = Counter("feinsum_best_answers", "Look-ups of a workload", ("outcome",))

# the library looks labels up under a lock
_requests = cache(REQUESTS.labels)
_seconds = cache(SECONDS.labels)
_answers = cache(ANSWERS.labels)


def observe(method: str, route: str, status: int, seconds: float) -> None:
    """Count a request; ``route`` is a pattern, never a path that was sent."""
    _requests(method, route, str(status)).inc()
    _seconds(route).observe(seconds)


def count_answer(outcome: str, n: int = 1) -> None:
    """Count look-ups: ``hit``, ``miss`` or ``not-modified``."""
    _answers(outcome).inc(n)


def render_metrics() -> bytes:
    """Return all metrics as text."""
    # with several workers, each has a file of numbers; a scrape adds them up
    if FOLDER_VARIABLE not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
