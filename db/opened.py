"""Opening a database, given as a path, URL or store, for as long as it is needed.

The user's own database is one of several layers: facts of this process, of the user, of
the site, of the package, of a service. A setting selects the layers to query.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import closing, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TypeAlias

from feinsum.db.layers import LayeredStore
from feinsum.db.remote import (
    HttpStore,
    RemoteLayer,
    address_of,
    is_service,
    open_remote,
    quick_layer,
    remote_url,
)
from feinsum.db.server.serving import open_serving_store
from feinsum.db.shipped import shipped_facts
from feinsum.db.sql.location import (
    default_location,
    is_not_made_yet,
    is_there,
    locate,
    missing,
)
from feinsum.db.sql.store import SqlStore, open_store
from feinsum.errors import StoreError, StoreUnavailableError
from feinsum.memory import remembered
from feinsum.records import FactSource, FactStore, InMemoryStore

Database: TypeAlias = str | PathLike[str] | FactSource | None
"""A path, the URL of a database or of a service, an open source of facts, or None for
the user's own database."""

LAYERS_VARIABLE = "FEINSUM_LAYERS"
"""Environment variable with the layers that are asked, separated by commas."""

SITE_VARIABLE = "FEINSUM_SITE_DATABASE"
"""Environment variable with a database that is only read: a path or URL."""

USER = "user"
"""The name of the layer that takes what is new."""

REMOTE = "remote"
"""The name of the layer that is a service."""


@dataclass(frozen=True)
class LayerState:
    """A layer that was queried.

    Attributes:
        location: path, URL or other description.
        problem: why it was skipped; empty if it was not.
        n_records: number of facts, if counted.
        note: why it answered from earlier responses; usually empty.
    """

    name: str
    location: str
    problem: str = ""
    n_records: int | None = None
    note: str = ""

    def __str__(self) -> str:
        state = "queried"
        if self.problem:
            state = f"skipped, because {self.problem}"
        elif self.note:
            state = f"answered from disk, because {self.note}"
        return f"{self.name} ({self.location}): {state}"


class _ProcessFacts(InMemoryStore):
    """The facts of a process."""


def process_facts() -> InMemoryStore:
    """The facts of this process, to which a program may add."""
    return remembered(_ProcessFacts)


def _site() -> str:
    return os.environ.get(SITE_VARIABLE, "").strip()


Opener: TypeAlias = Callable[[], FactSource]


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer.

    Attributes:
        open: opens the store, or raises a StoreError.
        location: describes where it is.
        is_there: whether it is queried by default.
    """

    open: Opener
    location: Callable[[], str]
    is_there: Callable[[], bool] = lambda: True


OPENERS: dict[str, LayerKind] = {
    "memory": LayerKind(process_facts, lambda: "this process"),
    USER: LayerKind(lambda: _own_facts(), lambda: _shown(default_location())),
    "site": LayerKind(
        lambda: open_store(_site(), is_read_only=True, is_immutable=True),
        lambda: _shown(_site()),
        lambda: bool(_site()),
    ),
    "packaged": LayerKind(shipped_facts, lambda: "this installation"),
    REMOTE: LayerKind(
        open_remote, lambda: _service(remote_url()), lambda: bool(remote_url())
    ),
}
"""Every layer by name, in the order in which they are asked."""


def layer_names() -> tuple[str, ...]:
    """The layers to query, in order.

    Raises:
        StoreUnavailableError: if the variable names an unknown layer.
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
    database: Database, *, has_shipped: bool = False, may_create: bool = False
) -> Iterator[FactStore]:
    """The store given by ``database``; closed at the end if opened here.

    Args:
        has_shipped: whether to query the other layers too, if ``database`` is the
            user's own. Then a layer that cannot be opened or read is skipped.
        may_create: whether to create a missing database, to write to it.

    Raises:
        StoreUnavailableError, SchemaVersionError: see :func:`open_store`.
    """
    if isinstance(database, FactStore):
        yield database
        return
    if isinstance(database, FactSource):
        yield LayeredStore([database], READ_ONLY)
        return
    is_own = database is None and has_shipped
    store = (
        NamedLayers(layer_names(), may_create)
        if is_own
        else _named(database, may_create)
    )
    try:
        yield store
    finally:
        store.close()


@contextmanager
def looked_up_store(database: Database) -> Iterator[FactSource]:
    """The store given by ``database``, for a look-up that must not be delayed.

    Like :func:`opened_store` with the other layers; but a service that is named, or
    whose store is given, is queried like a layer: within its budget, or else from
    earlier responses. A missing database has no facts, which is logged: a build may
    precede the first tuning.
    """
    if isinstance(database, str) and is_service(database):
        yield open_remote(database)
        return
    if isinstance(database, HttpStore):
        yield quick_layer(database)
        return
    if not isinstance(database, FactSource | None) and not is_there(database):
        yield _to_come(database)
        return
    with opened_store(database, has_shipped=True) as store:
        yield store


@contextmanager
def opened_documents(
    location: str | PathLike[str] | None,
    *,
    is_read_only: bool = False,
    may_create: bool = False,
) -> Iterator[SqlStore | HttpStore]:
    """A database or a service as a set of documents; closed at the end.

    Facts that are added to a database are trusted; see :mod:`feinsum.db.server`.

    Raises:
        StoreUnavailableError, SchemaVersionError: see :func:`open_store`.
    """
    if isinstance(location, str) and is_service(location):
        yield HttpStore.at(location)
    elif is_read_only:
        with open_store(location, is_read_only=True) as store:
            yield store
    else:
        with open_serving_store(location, may_create=may_create) as serving:
            yield serving


def states_of(store: FactSource) -> tuple[LayerState, ...]:
    """The layers of a store, if it has any."""
    if isinstance(store, RemoteLayer):
        return (LayerState(REMOTE, str(store.address), note=store.note),)
    if not isinstance(store, NamedLayers):
        return ()
    return tuple(
        LayerState(
            name,
            OPENERS[name].location(),
            _problem(store.problems.get(k), layer),
            note=layer.note if isinstance(layer, RemoteLayer) else "",
        )
        for k, (name, layer) in enumerate(zip(store.names, store.layers, strict=True))
    )


def _problem(error: StoreError | None, layer: FactSource | StoreError) -> str:
    """Why a layer was skipped, or the database that should be in it."""
    inner = layer.problems.values() if isinstance(layer, LayeredStore) else ()
    return str(next((found for found in (error, *inner) if found), ""))


def opened_layers(names: Iterable[str]) -> Iterator[LayerState]:
    """Open and count every layer, one after another, for as long as that takes."""
    for name in names:
        location = OPENERS[name].location()
        try:
            with closing(OPENERS[name].open()) as store:
                n_records = len(store) if isinstance(store, Sized) else None
        except StoreError as error:
            yield LayerState(name, location, str(error))
        else:
            yield LayerState(name, location, n_records=n_records)


class NamedLayers(LayeredStore):
    """The layers named in the settings; new facts go to the user's."""

    def __init__(self, names: tuple[str, ...], may_create: bool = False) -> None:
        stores = {name: _opened(name, may_create) for name in names}
        none = StoreUnavailableError(
            f"{LAYERS_VARIABLE} excludes the layer {USER!r}, which stores new facts; "
            "give the path of a database"
        )
        super().__init__([*stores.values()], stores.get(USER, none))
        self.names = names


READ_ONLY = StoreUnavailableError(
    "the given source of facts is read-only; give the path of a database"
)


NOT_MADE = StoreUnavailableError(
    "the user's database does not exist yet and was opened read-only"
)


def _own_facts() -> FactStore:
    """The user's database to read, which has no facts before it is made."""
    if is_not_made_yet():
        return LayeredStore([InMemoryStore()], NOT_MADE)
    return open_store(may_create=False) if is_there(None) else _to_come(None)


def _to_come(database: str | PathLike[str] | None) -> LayeredStore:
    """A database that is named and not there; the log says so when it is read."""
    error = missing(locate(database))
    return LayeredStore([error, InMemoryStore()], error)


def _named(database: str | PathLike[str] | None, may_create: bool) -> FactStore:
    if isinstance(database, str) and is_service(database):
        return HttpStore.at(database)
    return open_store(database, may_create=may_create)


def _opened(name: str, may_create: bool) -> FactSource | StoreError:
    try:
        return open_store() if may_create and name == USER else OPENERS[name].open()
    except StoreError as error:
        return error


def _service(url: str) -> str:
    """A URL of a service, if it is one."""
    try:
        return str(address_of(url))
    except StoreError:
        return "not usable"


def _shown(location: str) -> str:
    """A path or URL without a password."""
    try:
        return str(locate(location, is_read_only=True))
    except StoreError:  # the layer says what is wrong with it
        return "not usable"
