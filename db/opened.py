"""Opening a database, given as a path, URL or store, for as long as it is needed.

The user's own database is one of several layers: facts of this process, of the user, of
the site, of the package, of a service. A setting selects the layers to query::

    FEINSUM_LAYERS     name        opens                          written
                       memory      facts of this process
                       user        FEINSUM_DATABASE, or the default   yes
                       site        FEINSUM_SITE_DATABASE
                       packaged    facts of this installation
                       remote      FEINSUM_REMOTE
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
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
    is_not_created_yet,
    is_present,
    locate,
    missing,
)
from feinsum.db.sql.store import SqlStore, open_store
from feinsum.errors import StoreError, StoreUnavailableError
from feinsum.memory import remembered
from feinsum.records import InMemoryStore, Store

Database: TypeAlias = str | PathLike[str] | Store | None
"""A path, the URL of a database or of a service, an open store, or None for the user's
own database."""

LAYERS_VARIABLE = "FEINSUM_LAYERS"
"""Environment variable with the layers to query, separated by commas."""

SITE_VARIABLE = "FEINSUM_SITE_DATABASE"
"""Environment variable with a database that is only read: a path or URL."""

USER = "user"
"""The name of the layer that stores new facts."""

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
    """Return the facts of this process, to which a program may add."""
    return remembered(_ProcessFacts)


def _site() -> str:
    return os.environ.get(SITE_VARIABLE, "").strip()


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer.

    Attributes:
        open: opens the store, or raises a StoreError.
        location: describes where it is.
        is_default: whether it is queried if no setting names layers.
    """

    open: Callable[[], Store]
    location: Callable[[], str]
    is_default: Callable[[], bool] = lambda: True


OPENERS: dict[str, LayerKind] = {
    "memory": LayerKind(process_facts, lambda: "this process"),
    USER: LayerKind(lambda: _user_facts(), lambda: _printable(default_location())),
    "site": LayerKind(
        lambda: open_store(_site(), is_read_only=True, is_immutable=True),
        lambda: _printable(_site()),
        lambda: bool(_site()),
    ),
    "packaged": LayerKind(shipped_facts, lambda: "this installation"),
    REMOTE: LayerKind(
        open_remote, lambda: _printable_url(remote_url()), lambda: bool(remote_url())
    ),
}
"""Every layer by name, in query order."""


def layer_names() -> tuple[str, ...]:
    """Return the layers to query, in order.

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
    # A layer without a setting (site, remote) is not there.
    default = [name for name, kind in OPENERS.items() if kind.is_default()]
    return tuple(dict.fromkeys(names or default))


@contextmanager
def opened_store(
    database: Database, *, has_shipped: bool = False, may_create: bool = False
) -> Iterator[Store]:
    """Open the store given by ``database``; closed at the end if opened here.

    Args:
        has_shipped: whether to query the other layers too, if ``database`` is the
            user's own. Then a layer that cannot be opened or read is skipped.
        may_create: whether to create a missing database, to write to it.

    Raises:
        StoreUnavailableError, SchemaVersionError: see :func:`open_store`.
    """
    if isinstance(database, Store):
        yield database
        return
    store: Store
    if database is None and has_shipped:
        store = NamedLayers(layer_names(), may_create)
    elif isinstance(database, str) and is_service(database):
        store = HttpStore.at(database)
    else:
        store = open_store(database, may_create=may_create)
    with closing(store):
        yield store


@contextmanager
def looked_up_store(database: Database) -> Iterator[Store]:
    """Open the store given by ``database``, for a look-up that must not be delayed.

    Like :func:`opened_store` with the other layers; but a service that is named, or
    whose store is given, is queried like a layer: within its budget, or else from
    earlier responses. A missing database has no facts, which is logged: a build may
    precede the first tuning.
    """
    if isinstance(database, str) and is_service(database):
        yield open_remote(database)
        return
    # A store of a service waits 30 s: too long for a look-up of a build.
    if isinstance(database, HttpStore):
        yield quick_layer(database)
        return
    if not isinstance(database, Store | None) and not is_present(database):
        yield _missing_store(database)
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
    """Open a database or a service as a set of documents; closed at the end.

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


def states_of(store: Store) -> tuple[LayerState, ...]:
    """Return the layers of a store, if it has any."""
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


def _problem(error: StoreError | None, layer: Store | StoreError) -> str:
    """Return why a layer was skipped, or the database that should be in it."""
    inner = layer.problems.values() if isinstance(layer, LayeredStore) else ()
    return str(next((problem for problem in (error, *inner) if problem), ""))


def opened_layers(names: Iterable[str]) -> Iterator[LayerState]:
    """Open and count every layer, one after another, for as long as that takes."""
    for name in names:
        location = OPENERS[name].location()
        try:
            with closing(OPENERS[name].open()) as store:
                # a whole service cannot be counted in the time of a look-up
                n_records = None if isinstance(store, RemoteLayer) else len(store)
        except StoreError as error:
            yield LayerState(name, location, str(error))
        else:
            yield LayerState(name, location, n_records=n_records)


class NamedLayers(LayeredStore):
    """The layers named in the settings; new facts go to the user's."""

    def __init__(self, names: tuple[str, ...], may_create: bool = False) -> None:
        stores = {name: _opened(name, may_create) for name in names}
        no_user = StoreUnavailableError(
            f"{LAYERS_VARIABLE} excludes the layer {USER!r}, which stores new facts; "
            "give the path of a database"
        )
        super().__init__([*stores.values()], stores.get(USER, no_user))
        self.names = names


NOT_CREATED = StoreUnavailableError(
    "the user's database does not exist yet and was opened read-only"
)


def _user_facts() -> Store:
    """Open the user's database to read; it has no facts before it is created."""
    if is_not_created_yet():
        return LayeredStore([InMemoryStore()], NOT_CREATED)
    return open_store(may_create=False) if is_present(None) else _missing_store(None)


def _missing_store(database: str | PathLike[str] | None) -> LayeredStore:
    """Return an empty store for a missing database; reading it logs the problem."""
    error = missing(locate(database))
    return LayeredStore([error, InMemoryStore()], error)


def _opened(name: str, may_create: bool) -> Store | StoreError:
    try:
        return open_store() if may_create and name == USER else OPENERS[name].open()
    except StoreError as error:
        return error


def _printable_url(url: str) -> str:
    """Return the URL of a service, if it is one."""
    try:
        return str(address_of(url))
    except StoreError:
        return "not usable"


def _printable(location: str) -> str:
    """Return a path or URL without a password."""
    try:
        return str(locate(location, is_read_only=True))
    except StoreError:  # the layer says what is wrong with it
        return "not usable"
