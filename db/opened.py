"""Open a database, given as a path, URL or store, for as long as it is needed.

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
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TypeAlias

from feinsum.db.address import (
    Location,
    format_location,
    get_remote_url,
    is_not_created_yet,
    is_service,
    locate,
    make_missing_error,
    may_write,
    parse_address,
)
from feinsum.db.layers import LayeredStore
from feinsum.db.remote.layer import RemoteLayer, open_remote
from feinsum.db.remote.store import HttpStore
from feinsum.db.server.serving import open_serving_store
from feinsum.db.shipped import get_shipped_facts
from feinsum.db.sql.store import SqlStore, open_store
from feinsum.errors import StoreError, StoreUnavailableError
from feinsum.memory import get_remembered
from feinsum.options import get_default_location
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
    return get_remembered(_ProcessFacts)


def _get_site_location() -> str:
    return os.environ.get(SITE_VARIABLE, "").strip()


def _format_remote() -> str:
    try:
        return str(parse_address(get_remote_url()))
    except StoreError:
        return "not usable"


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
    USER: LayerKind(
        lambda: _open_user_facts(), lambda: format_location(get_default_location())
    ),
    "site": LayerKind(
        lambda: open_store(_get_site_location(), is_read_only=True, is_immutable=True),
        lambda: format_location(_get_site_location()),
        lambda: bool(_get_site_location()),
    ),
    "packaged": LayerKind(get_shipped_facts, lambda: "this installation"),
    REMOTE: LayerKind(open_remote, _format_remote, lambda: bool(get_remote_url())),
}
"""Every layer by name, in query order."""


def list_layer_names() -> tuple[str, ...]:
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
        database: an open store, or the address of one; None for the user's own.
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
        store = NamedLayers(list_layer_names(), may_create)
    elif isinstance(database, str) and is_service(database):
        store = HttpStore.at(database)
    else:
        store = open_store(database, may_create=may_create)
    with closing(store):
        yield store


@contextmanager
def looked_up_store(database: Database, *, must_exist: bool = False) -> Iterator[Store]:
    """Open the store given by ``database``, for a look-up that must not be delayed.

    Like :func:`opened_store` with the other layers; but a service that is named, or
    whose store is given, is queried like a layer: within its budget, or else from
    earlier responses. A missing database has no facts, which is logged: a build may
    precede the first tuning.

    Args:
        database: as for :func:`opened_store`.
        must_exist: whether a missing database is an error, if ``database`` names it;
            the one that the variable names may be created by the first tuning.

    Raises:
        StoreUnavailableError: see :func:`open_store`.
    """
    if isinstance(database, str) and is_service(database):
        yield open_remote(database)
    # A store of a service waits 30 s: too long for a look-up of a build.
    elif isinstance(database, HttpStore):
        yield RemoteLayer(database.client.address, database.client.key)
    elif not isinstance(database, Store | None) and _is_missing(locate(database)):
        if must_exist:
            raise make_missing_error(locate(database))
        yield MissingDatabase(database)
    else:
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


def list_layer_states(store: Store) -> tuple[LayerState, ...]:
    """Return the layers of a store, if it has any."""
    if isinstance(store, RemoteLayer):
        return (LayerState(REMOTE, str(store.address), note=store.note),)
    if isinstance(store, MissingDatabase):
        problem = next(map(str, store.problems.values()), "")
        return (LayerState("database", str(store.location), problem),)
    if not isinstance(store, NamedLayers):
        return ()
    states = []
    for k, (name, layer) in enumerate(zip(store.names, store.layers, strict=True)):
        problems = [store.problems.get(k)]
        # the user's database may be missing, and is such a store then
        problems += layer.problems.values() if isinstance(layer, LayeredStore) else ()
        problem = next((str(error) for error in problems if error), "")
        note = layer.note if isinstance(layer, RemoteLayer) else ""
        location = OPENERS[name].location()
        states.append(LayerState(name, location, problem, note=note))
    return tuple(states)


def examine_layers(names: Iterable[str]) -> Iterator[LayerState]:
    """Open each layer in turn, without a time limit, and count its facts."""
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
        stores = {name: _try_to_open(name, may_create) for name in names}
        no_user = StoreUnavailableError(
            f"{LAYERS_VARIABLE} excludes the layer {USER!r}, which stores new facts; "
            "give the path of a database"
        )
        super().__init__([*stores.values()], stores.get(USER, no_user))
        self.names = names


class MissingDatabase(LayeredStore):
    """The empty store for a missing database; reading it logs the problem."""

    def __init__(self, database: str | PathLike[str] | None) -> None:
        self.location = locate(database)
        error = make_missing_error(self.location)
        super().__init__([error, InMemoryStore()], error)


NOT_CREATED = StoreUnavailableError(
    "the user's database does not exist yet and was opened read-only"
)


def _open_user_facts() -> Store:
    """Open the user's database to read; it has no facts before it is created."""
    if is_not_created_yet():
        return LayeredStore([InMemoryStore()], NOT_CREATED)
    is_missing = _is_missing(locate(None))
    return MissingDatabase(None) if is_missing else open_store(may_create=False)


def _is_missing(location: Location) -> bool:
    """Return whether a file does not exist; for a server, only connecting can tell."""
    return location.path is not None and not location.path.exists()


def _try_to_open(name: str, may_create: bool) -> Store | StoreError:
    try:
        return open_store() if may_create and name == USER else OPENERS[name].open()
    except StoreError as error:
        return error


@dataclass(frozen=True)
class DatabaseHealth:
    """The observed state of a database, for ``feinsum doctor``.

    Attributes:
        location: path or URL, without a password.
        problem: why it cannot be used, or not fully; empty if it can.
        n_records: None if there is no database yet, or it cannot be read.
    """

    location: str
    problem: str = ""
    n_records: int | None = None
    is_writable: bool = True


def examine(
    database: str | PathLike[str] | None, *, timeout_s: float = 2.0
) -> DatabaseHealth:
    """Open an existing database, count, and briefly acquire its write lock.

    Args:
        database: path or URL; None for the user's database.
        timeout_s: how long to wait for the locks of others.
    """
    try:
        location = locate(database, is_read_only=True)
        path = location.path
        if path is not None and not path.exists():
            # a new one can be created in the first folder above it
            folder = next(above for above in path.parents if above.exists())
            is_writable = folder.is_dir() and may_write(folder)
            problem = f"cannot create a database there: {folder} is not writable"
            text = "" if is_writable else problem
            return DatabaseHealth(str(path), text, is_writable=is_writable)
        with open_store(
            path or database, is_read_only=True, busy_timeout_s=timeout_s
        ) as store:
            n_records = len(store)
    except StoreError as error:
        return DatabaseHealth(format_location(database), str(error), is_writable=False)
    problem = ""
    if path is not None and not (may_write(path.parent) and may_write(path)):
        problem = "the file or its folder is not writable, so facts can only be read"
    elif path is not None:
        try:
            connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
            with closing(connection):
                # takes the write lock and changes nothing
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            problem = f"could not acquire its write lock within {timeout_s:g} s: "
            problem += str(error)
    return DatabaseHealth(str(location), problem, n_records, is_writable=not problem)
