"""Counts lost workers, and makes their tasks wait for the restarted ones."""

from __future__ import annotations

from typing import Any

WATCH = "feinsum-watch"


def n_lost(dask_scheduler: Any) -> int:
    """The number of workers that a watched scheduler has lost so far."""
    found: int = dask_scheduler.plugins[WATCH].n_lost
    return found


def watch() -> Any:
    """Install a scheduler plugin that counts lost workers.

    Tasks of a lost worker wait for the one restarted under its name, which may have
    another address.
    """
    from distributed import SchedulerPlugin

    class Watch(SchedulerPlugin):  # type: ignore[misc]  # Dask has no types
        name, idempotent = WATCH, True

        def __init__(self) -> None:
            self.n_lost = 0
            self.names: dict[str, Any] = {}
            self.gone: dict[Any, str] = {}

        async def start(self, scheduler: Any) -> None:
            self.names = {at: ws.name for at, ws in scheduler.workers.items()}

        def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
            self.n_lost += 1
            if worker in self.names:
                self.gone[self.names.pop(worker)] = worker

        def add_worker(self, scheduler: Any, worker: str) -> None:
            name = scheduler.workers[worker].name
            self.names[worker] = name
            before = self.gone.pop(name, worker)
            for task in scheduler.tasks.values():
                if task.worker_restrictions == {before}:
                    task.worker_restrictions = {worker}

    return Watch()
