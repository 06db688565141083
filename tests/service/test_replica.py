"""A service over a database that it may only read, as a standby of PostgreSQL is."""

from __future__ import annotations

from feinsum.records import to_json
from tests.db.factories import WORKLOAD, make_record
from tests.service.conftest import key_for, send
from tests.service.test_problems import is_problem

READ_ONLY = " -cdefault_transaction_read_only=on"


def test_a_replica_answers_and_takes_nothing(serve, make_postgresql_store, caplog):
    """Look-ups and keys are as in the first one; what is to be kept is refused."""
    first = make_postgresql_store().location.url
    options = first.query["options"]
    replica = first.update_query_dict({"options": options + READ_ONLY})
    writer, reader = (
        serve(
            database=url.render_as_string(hide_password=False), anonymous_record=False
        )
        for url in (first, replica)
    )
    headers = key_for(writer, "record")
    assert send(writer, to_json(make_record()), **headers).status_code == 201
    answers = [client.get(f"/v1/best/{WORKLOAD}").json() for client in (writer, reader)]
    assert answers[0] == answers[1]
    assert answers[1]["facts"]
    assert reader.get("/readyz").status_code == 200
    assert reader.get("/v1/best/not-there").status_code == 404
    assert reader.get("/v1/demand").json()["demands"] == []
    assert "misses could not be counted" in caplog.text
    refused = send(reader, to_json(make_record(1)), **headers)
    assert is_problem(refused, 503, "store-unavailable")
