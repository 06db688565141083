"""The notations of all workloads, read rarely."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

KEPT_S = 2.0
"""How long the notations of all workloads are taken not to have changed."""


class Notations:
    """How the texts of workloads begin; read again after :data:`KEPT_S`."""

    def __init__(self, read: Callable[[], frozenset[str]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._until = 0.0

    def __call__(self) -> frozenset[str]:
        """All of them; of many who ask at once one reads."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._known = self._read()
                self._until = time.monotonic() + KEPT_S
            return self._known
