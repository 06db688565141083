"""Opening a database for as long as it is needed, whatever names it.

The user's own database is one of several layers: facts of this process, of the user, of
the site, of the package. Which ones are asked is a setting.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from os import PathLike
from typing import TypeAlias

from feinsum.db.layers import LayeredStore, UnavailableStore
from feinsum.db.location import default_location, locate
from feinsum.db.shipped import shipped_facts
from feinsum.db.store import open_store
from feinsum.errors import StoreError, StoreUnavailableError
from feinsum.records import InMemoryStore, RecordStore

__all__ = [
    "LAYERS_VARIABLE",
    "OPENERS",
    "SITE_VARIABLE",
    "USER",
    "Database",
    "LayerState",
    "layer_names",
    "opened_layers",
    "opened_store",
    "process_facts",
    "states_of",
]

Database: TypeAlias = str | PathLike[str] | RecordStore | None
"""A path or URL, an open store, or None for the user's own database."""

LAYERS_VARIABLE = "FEINSUM_LAYERS"
"""Environment variable with the layers that are asked, separated by commas."""

SITE_VARIABLE = "FEINSUM_SITE_DATABASE"
"""Environment variable with a database that is only read: a path or URL."""

USER = "user"
"""The name of the layer that takes what is new."""


@dataclass(frozen=True)
class LayerState:
    """A layer that was asked.

    Attributes:
        location: path or URL, or what else it is.
        problem: why it was passed over; empty if it was not.
        n_records: how many facts it has, if they were counted.
    """

    name: str
    location: str
    problem: str = ""
    n_records: int | None = None

    def __str__(self) -> str:
        state = f"passed over, because {self.problem}" if self.problem else "asked"
        return f"{self.name} ({self.location}): {state}"


@cache
def process_facts() -> InMemoryStore:
    """The facts of this process, which a program may add to."""
    return InMemoryStore()


def _site() -> str:
    return os.environ.get(SITE_VARIABLE, "").strip()


Opener: TypeAlias = Callable[[], RecordStore]


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer.

    Attributes:
        open: makes the store, or raises a StoreError.
        location: where it is, in words.
        is_there: whether it is asked if nothing else is said.
    """

    open: Opener
    location: Callable[[], str]
    is_there: Callable[[], bool] = lambda: True


OPENERS: dict[str, LayerKind] = {
    "memory": LayerKind(process_facts, lambda: "this process"),
    USER: LayerKind(open_store, lambda: _shown(default_location())),
    "site": LayerKind(
        lambda: open_store(_site(), is_read_only=True, is_immutable=True),
        lambda: _shown(_site()),
        lambda: bool(_site()),
    ),
    "packaged": LayerKind(shipped_facts, lambda: "this installation"),
}
"""Every layer by name, in the order in which they are asked."""


def layer_names() -> tuple[str, ...]:
    """The layers that are asked, in their order.

    Raises:
        StoreUnavailableError: if the variable names one that there is not.
    """
    chosen = os.environ.get(LAYERS_VARIABLE, "")
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    for name in names:
        if name not in OPENERS:
            raise StoreUnavailableError(
                f"{LAYERS_VARIABLE} names the layer {name!r}; expected some of "
                f"{', '.join(OPENERS)}, separated by commas"
            )
    wanted = [name for name in OPENERS if OPENERS[name].is_there()]
    return tuple(dict.fromkeys(names or wanted))


@contextmanager
def opened_store(
    database: Database, *, has_shipped: bool = False
) -> Iterator[RecordStore]:
    """The store that ``database`` names; closed at the end if opened here.

    Args:
        has_shipped: the other layers are asked too, if ``database`` is the user's own.
            Then a layer that cannot be opened or read is passed over.

    Raises:
        StoreUnavailableError, SchemaVersionError: see :func:`open_store`.
    """
    if isinstance(database, RecordStore):
        yield database
        return
    is_own = database is None and has_shipped
    store = NamedLayers(layer_names()) if is_own else open_store(database)
    try:
        yield store
    finally:
        store.close()


def states_of(store: RecordStore) -> tuple[LayerState, ...]:
    """The layers of a store, as far as it has some."""
    if not isinstance(store, NamedLayers):
        return ()
    return tuple(
        LayerState(name, OPENERS[name].location(), str(store.problems.get(k, "")))
        for k, name in enumerate(store.names)
    )


def opened_layers(names: Iterable[str]) -> Iterator[LayerState]:
    """Open and count every layer, one after another, for as long as that takes."""
    for name in names:
        store = _opened(name)
        location = OPENERS[name].location()
        try:
            yield LayerState(name, location, n_records=len(store))
        except StoreError as error:
            yield LayerState(name, location, str(error))
        finally:
            store.close()


class NamedLayers(LayeredStore):
    """The layers that the settings name; what is new goes to the user's."""

    def __init__(self, names: tuple[str, ...]) -> None:
        stores = [_opened(name) for name in names]
        if USER in names:
            written = stores[names.index(USER)]
        else:
            written = UnavailableStore(
                StoreUnavailableError(
                    f"{LAYERS_VARIABLE} leaves out the layer {USER!r}, which is the "
                    "one that takes new facts; give the path of a database"
                )
            )
        super().__init__(stores, written)
        self.names = names


def _opened(name: str) -> RecordStore:
    try:
        return OPENERS[name].open()
    except StoreError as error:
        return UnavailableStore(error)


def _shown(location: str) -> str:
    """A path or URL without a password."""
    try:
        return str(locate(location, is_read_only=True))
    except StoreError:  # the layer says what is wrong with it
        return "not usable"
