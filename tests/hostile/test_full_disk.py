"""A service that cannot take facts says so, until it can again."""

from __future__ import annotations

from sqlalchemy import event

from feinsum.db.server import serving
from feinsum.records import to_json
from tests.db.factories import make_record
from tests.service.conftest import client, location, send, serve, store_of

__all__ = ["client", "location", "serve"]


def test_a_database_that_cannot_grow_is_not_ready(client):
    """After a write that failed ``/readyz`` is 503; reading goes on, and when there is
    room again so does all.
    """
    send(client, to_json(make_record(0)))
    engine = store_of(client).engine
    pages = 1

    @event.listens_for(engine, "begin")
    def limit(connection):
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    refused = [
        send(client, to_json(make_record(n, note="x" * 1000))) for n in range(1, 40)
    ]
    answer = refused[-1]
    assert (answer.status_code, answer.json()["code"]) == (503, "store-unavailable")
    assert client.get("/readyz").status_code == 503
    assert client.get("/v1/facts").status_code == 200
    pages = 2**30
    assert client.get("/readyz").status_code == 200
    assert send(client, to_json(make_record(99))).status_code == 201


def test_a_disk_without_room_is_not_ready(client, monkeypatch):
    """Nor is a service whose disk has no free space left."""
    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr(serving, "MIN_FREE_BYTES", 2**62)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "store-unavailable")
    assert str(store_of(client).path) not in answer.text


def test_a_503_does_not_say_where_the_database_is(client):
    """What cannot be read is refused in words that name no path and no URL."""
    for path in ("/v1/best/none", "/v1/workloads", "/readyz"):
        service = client.app.state.service
        service.lookup._reader.close()
        service.store.close()
        answer = client.get(path)
        assert answer.status_code == 503
        assert str(service.store.path) not in answer.text
        assert "sqlite" not in answer.text
