"""The tasks of a run on Dask: what is submitted, and what workers do.

Each phase is a task of its rank, and each parcel a task of its sender, so that Dask
moves exactly what was counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from feinsum.plans.boxes import Box
from feinsum.plans.local import Buffers, Meaning
from feinsum.plans.phases import Origin, Parcel, Phase
from feinsum.plans.steps import Receive, Reduce, Step
from feinsum.plans.traffic import Traffic


class TaskSender:
    """Creates the tasks of one run.

    It owns the futures, so buffers are freed once no task needs them.
    """

    def __init__(
        self, client: Any, token: str, topic: str, places: Sequence[str]
    ) -> None:
        self.client, self.token, self.topic, self.places = client, token, topic, places
        self.states: dict[tuple[int, int], Any] = {}
        self.parcels: dict[Parcel, Any] = {}
        self.last: dict[int, int] = {}

    def begin(self, rank: int, meaning: Meaning, blocks: Any) -> None:
        """The initial buffers of a rank."""
        key = f"{self.token}-begin-{rank}"
        self.states[rank, -1] = self._submit(key, rank, _begin, meaning, blocks)

    def advance(self, rank: int, number: int, phase: Phase) -> None:
        """A phase of a rank, and the parcels that it receives."""
        parcels = [self._parcel(parcel) for parcel in phase.arriving]
        key = f"{self.token}-phase-{rank}-{number}"
        told = (self.topic, rank, number)
        before = self.states[rank, number - 1]
        self.states[rank, number] = self._submit(
            key, rank, _advance, before, phase.steps, told, *parcels
        )
        self.last[rank] = number

    def results(self, outputs: Sequence[str]) -> list[Any]:
        """Each rank's part of the outputs."""
        return [
            self._submit(
                f"{self.token}-result-{rank}",
                rank,
                _finish,
                self.states[rank, number],
                tuple(outputs),
            )
            for rank, number in sorted(self.last.items())
        ]

    def _parcel(self, parcel: Parcel) -> Any:
        if parcel not in self.parcels:
            state = self.states[parcel.rank, parcel.phase]
            key = f"{self.token}-parcel-{len(self.parcels)}"
            pieces = parcel.pieces
            self.parcels[parcel] = self._submit(key, parcel.rank, _cut, state, pieces)
        return self.parcels[parcel]

    def _submit(self, key: str, rank: int, function: Any, *arguments: Any) -> Any:
        return self.client.submit(
            function,
            *arguments,
            key=key,
            workers=[self.places[rank]],
            allow_other_workers=False,
            pure=False,
        )


def _begin(meaning: Meaning, blocks: Mapping[str, tuple[NDArray[Any], Box]]) -> Buffers:
    buffers = Buffers(meaning, Traffic())
    for name, (array, box) in blocks.items():
        buffers.put(name, box, array)
    return buffers


def _advance(
    before: Buffers,
    steps: Sequence[tuple[Step, Origin | None]],
    told: tuple[str, int, int],
    *parcels: Sequence[NDArray[Any]],
) -> Buffers:
    """The steps of a phase; the buffers of the phase before stay as they are."""
    buffers = before.fork()
    for step, origin in steps:
        if isinstance(step, Receive | Reduce):
            assert origin is not None
            value = parcels[origin[0]][origin[1]]
            buffers.receive(step.target, step.box, value, type(step) is Reduce)
        else:
            buffers.do(step)
    topic, *place = told
    if topic:
        from distributed import get_worker

        get_worker().log_event(topic, tuple(place))
    return buffers


def _cut(
    buffers: Buffers, pieces: Sequence[tuple[str, Box]]
) -> tuple[NDArray[Any], ...]:
    # a view would keep the whole buffer in memory until the parcel is there
    return tuple(buffers.view(name, box).copy() for name, box in pieces)


def _finish(
    buffers: Buffers, outputs: Sequence[str]
) -> tuple[dict[str, NDArray[Any]], Traffic]:
    parts = {
        name: buffers.arrays[name][0] for name in outputs if name in buffers.arrays
    }
    return parts, buffers.traffic
