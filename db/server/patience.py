"""Patience with a database server that restarts or drops connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from feinsum.db.sql.failures import LostConnectionError

T = TypeVar("T")

PATIENCE_S = 10.0
"""How long a question waits for a server that was there before."""

# At first without a pause: often only connections in the pool are stale.
PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Between attempts; the last one again and again."""


class Patience:
    """Retries after a lost connection, until the server is back.

    Once a server was away for :data:`PATIENCE_S`, requests fail at once until one
    succeeds.

    >>> answers = iter([LostConnectionError("ended"), 7])
    >>> def ask():
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> Patience()(ask)
    7
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._is_away = False

    def __call__(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which may run several times.

        Raises:
            LostConnectionError: if the server did not come back.
        """
        began_s, n = time.monotonic(), 0
        while True:
            try:
                found = work()
            except LostConnectionError:
                waited_s = time.monotonic() - began_s
                if self._is_away or waited_s > self._patience_s:
                    self._is_away = True
                    raise
                time.sleep(PAUSES_S[min(n, len(PAUSES_S) - 1)])
                n += 1
            else:
                self._is_away = False
                return found


def patiently(*names: str) -> Callable[[type[T]], type[T]]:
    """A class whose methods with these names retry after a lost connection.

    Each of them must be one transaction that may run twice. The instances have a
    :class:`Patience` as ``patience``.
    """

    def decorate(kind: type[T]) -> type[T]:
        for name in names:
            setattr(kind, name, _patient(getattr(kind, name)))
        return kind

    return decorate


def _patient(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def ask(self: Any, *args: Any, **options: Any) -> Any:
        return self.patience(lambda: method(self, *args, **options))

    return ask
