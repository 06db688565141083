"""While the database is away every route says 503, and when it is back it answers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from feinsum.records import to_json
from feinsum.service.app import ROUTERS
from tests.hostile.live import schema_in
from tests.service.conftest import key_for, store_of
from tests.service.examples import FORM, PEAKS, PLAN, RECORD, RETRACTION

NEEDS_NONE = {
    "/healthz",
    "/metrics",
    "/static/{name}",
    "/v1/canonicalize",
    "/v1/capabilities",
}
"""Routes that read nothing."""

BODIES = {
    "/v1/best:batch": '{"workloads": ["new-2"]}',
    "/v1/canonicalize": '{"text": "i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x"}',
    "/v1/facts": to_json(RECORD),
    "/v1/facts:missing": f'{{"ids": ["{RECORD.id}"]}}',
    "/v1/facts:retract": f'{{"ids": ["{RECORD.id}"], "reason": "x"}}',
    "/v1/peaks": to_json(PEAKS),
    "/v1/plans": to_json(PLAN),
    "/v1/retractions": to_json(RETRACTION),
}

ROUTES = sorted(
    {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        for method in route.methods - {"HEAD"}
    }
)

END_ALL = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


@dataclass(frozen=True)
class Away:
    """A database whose server can be out of reach for a while."""

    url: str
    socket: Path
    server: str

    @contextmanager
    def outage(self) -> Iterator[None]:
        target = self.socket.readlink()
        self.socket.unlink()
        engine = create_engine(self.server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(END_ALL)
        engine.dispose()
        yield
        self.socket.symlink_to(target)


@pytest.fixture
def away(postgresql: str) -> Iterator[Away]:
    server = make_url(postgresql).set(drivername="postgresql+psycopg")
    with (
        schema_in(postgresql) as url,
        tempfile.TemporaryDirectory(prefix="feinsum-") as folder,
    ):
        given = make_url(url)
        name = ".s.PGSQL.5432"
        socket = Path(folder) / name
        socket.symlink_to(Path(str(given.query["host"])) / name)
        behind = given.update_query_dict({"host": folder})
        yield Away(
            behind.render_as_string(hide_password=False),
            socket,
            server.render_as_string(hide_password=False),
        )


@pytest.fixture
def location(away: Away) -> str:
    return away.url


def ask(client, method: str, route: str, key: dict[str, str]):
    path = route.format(
        key=FORM.key, record_id=RECORD.id, device_id="0" * 64, name="pages.css"
    )
    if method == "DELETE":
        path += "?reason=x"
    body = BODIES.get(route) if method == "POST" else None
    if method == "POST" and body is None:
        body = "{}"
    headers = {**key, **({"Content-Type": "application/json"} if body else {})}
    return client.request(method, path, content=body, headers=headers)


@pytest.fixture
def impatient(serve):
    """A service that waits shortly for its database."""
    client = serve()
    service = client.app.state.service
    service.store.max_wait_s = 0.1
    service.lookup._reader.max_wait_s = 0.1
    return client


def test_every_route_says_503_during_an_outage(impatient, away):
    """It says when to come back, with a key and without; then it answers again."""
    client = impatient
    key = key_for(client, "admin")
    before = {one: ask(client, *one, key).status_code for one in ROUTES}
    assert not {one: status for one, status in before.items() if status >= 500}
    with away.outage():
        for one in (*ROUTES, *ROUTES):
            method, route = one
            for headers in ({}, key):
                answer = ask(client, method, route, headers)
                if answer.status_code in (401, 413) and not headers:
                    continue
                if route in NEEDS_NONE and not headers:
                    assert answer.status_code < 500, one
                elif answer.status_code < 400:  # the key is remembered for a moment
                    assert route in NEEDS_NONE, one
                else:
                    assert answer.status_code == 503, (one, answer.text)
                    assert answer.headers["retry-after"], one
    after = {one: ask(client, *one, key).status_code for one in ROUTES}
    assert not {one: status for one, status in after.items() if status >= 500}
    assert store_of(client).keys()
