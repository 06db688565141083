"""A connection to the scheduler of a cluster; only this module imports Dask.

Only the name of a function and texts go over it. Dask itself uses pickle, so clusters
need a trusted network, or TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from feinsum.errors import DeviceUnavailableError
from feinsum.extras import require_extra

ATTEMPT_S = 5.0
"""How long one attempt to connect may take."""

FETCH_LIMIT_S = 10.0
"""How long the result of a finished errand may take to arrive."""

RELEASE_LIMIT_S = 5.0
TELL_LIMIT_S = 5.0


class ConnectionLost(Exception):  # noqa: N818  (caught by us, always)
    """The scheduler is gone, and with it all errands."""


class WorkerLost(Exception):  # noqa: N818  (caught by us, always)
    """The worker of an errand is gone, or could not do it; the message says why."""


@dataclass(frozen=True, eq=False)
class Errand:
    """A call of a function with a text, on a worker."""

    worker: str
    text: str
    future: Any


class Connection:
    """Sends errands to workers that the caller chooses.

    Args:
        address: of the scheduler, such as ``tcp://host:8786``.

    Raises:
        FeinsumError: if Dask is not installed.
    """

    def __init__(self, address: str) -> None:
        with require_extra("distributed", "cluster", "a tuning on a cluster"):
            import distributed  # noqa: F401  (only whether it is there)

        self.address = address
        self._client: Any = None

    def open(self, limit_s: float) -> None:
        """Connect or reconnect, retrying for the given time.

        Raises:
            DeviceUnavailableError: if there is no answer.
        """
        from distributed import Client

        self.close()
        attempt_s, deadline = min(ATTEMPT_S, limit_s), monotonic() + limit_s
        while self._client is None:
            try:
                # Not the default client: programs of the user may have one.
                self._client = Client(
                    self.address, timeout=attempt_s, set_as_default=False
                )
            except (OSError, RuntimeError, TypeError, ValueError) as error:
                if not isinstance(error, OSError) or monotonic() > deadline:
                    raise DeviceUnavailableError(
                        f"no scheduler answers at {self.address!r} within {limit_s:g} "
                        f"s: {error}; expected an address such as tcp://host:8786 of a "
                        "running scheduler. Finished trials are kept: restart the same "
                        "tuning to resume it"
                    ) from None
                sleep(0.2)

    def close(self) -> None:
        """Disconnect, if still connected."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # the connection may be half closed
                client.close(timeout=ATTEMPT_S)

    def workers(self) -> set[str]:
        """Return the addresses of the current workers.

        Raises:
            ConnectionLost: if the scheduler is gone.
        """
        if self._client is None or self._client.status != "running":
            raise ConnectionLost
        try:
            return set(self._client.nthreads())
        except Exception as error:  # Dask raises errors of many kinds
            raise ConnectionLost from error

    def send(self, worker: str, function: Callable[[str], Any], text: str) -> Errand:
        """Call a function on one worker only; equal texts are two errands.

        Raises:
            ConnectionLost: if the scheduler is gone.
        """
        try:
            # pure=False: Dask would answer equal tasks from its cache.
            future = self._client.submit(function, text, workers=[worker], pure=False)
        except Exception as error:  # Dask raises errors of many kinds
            raise ConnectionLost from error
        return Errand(worker, text, future)

    def fetch(self, errand: Errand) -> str | None:
        """Return the result of the function; None while it runs.

        Raises:
            ConnectionLost: if the scheduler is gone.
            WorkerLost: if the worker will not answer.
        """
        match errand.future.status:
            case "pending":
                return None
            case "finished":
                try:
                    return str(errand.future.result(timeout=FETCH_LIMIT_S))
                except Exception as error:  # Dask raises errors of many kinds
                    raise WorkerLost(f"its answer is lost: {error!r:.200}") from error
            case "error":
                raise WorkerLost(f"{errand.future.exception()!r:.200}")
            case "cancelled":  # we cancel nothing: the scheduler was lost
                raise ConnectionLost
        raise WorkerLost("its answer is lost")

    def drop(self, errand: Errand) -> None:
        """Forget an errand; if it has not begun, it never will."""
        with suppress(Exception):  # the scheduler may be gone
            errand.future.cancel()

    def tell(
        self, workers: Sequence[str], function: Callable[[str], None], text: str
    ) -> None:
        """Call a short function on workers now, concurrently with their task."""
        with suppress(Exception):  # workers or the scheduler may be gone
            self._client.run(
                function,
                text,
                workers=[*workers],
                on_error="ignore",
                callback_timeout=TELL_LIMIT_S,
            )

    def finish(self, errands: list[Errand]) -> None:
        """Wait briefly for errands to finish; they continue if that is too short."""
        from distributed import fire_and_forget

        futures = [errand.future for errand in errands]
        deadline = monotonic() + RELEASE_LIMIT_S
        with suppress(Exception):  # the scheduler may be gone
            fire_and_forget(futures)
            while monotonic() < deadline and not all(f.done() for f in futures):
                sleep(0.05)
