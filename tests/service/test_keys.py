"""Keys open what their scope says, until they end; none is ever written down."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from feinsum.db.address import parse_key_id
from feinsum.records import to_json
from feinsum.service import keys as keys_module
from feinsum.service import make_key
from feinsum.service.texts import without_secrets
from tests.db.factories import WORKLOAD, make_record
from tests.service.conftest import key_for, send, store_of
from tests.service.test_problems import is_problem

BEST = f"/v1/best/{WORKLOAD}"
FACT = to_json(make_record())
ID = make_record().id


@pytest.fixture
def closed(serve):
    """A client of a service that opens nothing without a key."""
    return serve(anonymous_read=False, anonymous_record=False)


@pytest.mark.parametrize(
    ("scope", "reads", "records", "retracts"),
    [
        (None, 401, 401, 401),
        ("read", 404, 403, 403),
        ("record", 404, 201, 403),
        ("admin", 404, 201, 200),
    ],
)
def test_a_scope_opens_what_it_says(closed, scope, reads, records, retracts):
    """Reading, recording and administration need a scope each, or a wider one."""
    headers = key_for(closed, scope) if scope else {}
    assert closed.get(BEST, headers=headers).status_code == reads
    assert send(closed, FACT, **headers).status_code == records
    store_of(closed).add(make_record())
    answer = closed.delete(f"/v1/facts/{ID}?reason=x", headers=headers)
    assert answer.status_code == retracts
    for path in ("/v1/workloads", "/v1/devices", "/v1/demand", "/v1/facts"):
        expected = 200 if reads == 404 else reads
        assert closed.get(path, headers=headers).status_code == expected


def test_anonymous_reading_is_a_switch(serve):
    """Open for reading is not open for recording."""
    client = serve(anonymous_read=True, anonymous_record=False)
    assert client.get(BEST).status_code == 404
    answer = send(client, FACT)
    assert is_problem(answer, 401, "not-authenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_what_is_no_key_is_401(closed):
    """An unknown key opens nothing, not even what is open without one."""
    for header in (
        "Bearer",
        "Bearer feinsum_00000000_" + "x" * 43,
        "Bearer x",
        "Basic dXNlcjpwYXNz",
        "bearer " + "é" * 20,
        "Bearer " + "x" * 4000,
    ):
        given = {"Authorization": header.encode("latin-1")}
        answer = closed.get(BEST, headers=given)
        assert is_problem(answer, 401, "not-authenticated")
        assert ("00000000" in header) == ("the key 00000000" in answer.json()["detail"])


def test_keys_are_compared_in_constant_time(closed, monkeypatch):
    """The digests of secrets go through ``hmac.compare_digest``."""
    seen = []

    def compare(one, other):
        seen.append((one, other))
        return one == other

    monkeypatch.setattr(keys_module.hmac, "compare_digest", compare)
    assert closed.get(BEST, headers=key_for(closed, "read")).status_code == 404
    assert len(seen) == 1


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_key_that_ended_opens_nothing(closed, end, monkeypatch):
    """Revoked and expired keys are 401; a service that runs notices."""
    monkeypatch.setattr(keys_module, "CACHE_S", 0)
    secret, key = make_key("ci", "read", datetime.now(UTC) + timedelta(days=1))
    store = store_of(closed)
    store.add_key(key)
    headers = {"Authorization": f"Bearer {secret}"}
    assert closed.get(BEST, headers=headers).status_code == 404
    if end == "revoked":
        store.revoke_key(key.id)
    else:
        tomorrow = datetime.now(UTC) + timedelta(days=2)

        class Later(datetime):
            @classmethod
            def now(cls, tz=None):
                return tomorrow

        monkeypatch.setattr(keys_module, "datetime", Later)
    answer = closed.get(BEST, headers=headers)
    assert is_problem(answer, 401, "not-authenticated")
    assert end in answer.json()["detail"]


def test_only_a_digest_is_stored(closed):
    """Nothing that is stored of a key opens anything, nor does a wrong secret under
    its id.
    """
    secret, key = make_key("ci", "admin")
    store_of(closed).add_key(key)
    assert secret not in repr(store_of(closed).keys())
    assert secret.split("_", 2)[2] not in repr(key)
    wrong = secret[:-5] + ("AAAAA" if secret[-5:] != "AAAAA" else "BBBBB")
    for part in (key.digest, key.id, wrong):
        given = {"Authorization": f"Bearer {part}"}
        assert closed.get(BEST, headers=given).status_code == 401


def test_secrets_differ_and_are_named():
    """Every key has its own secret, which carries its id and can be blotted out."""
    made = [make_key("ci", "read") for _ in range(50)]
    assert len({secret for secret, _ in made}) == 50
    for secret, key in made:
        assert parse_key_id(secret) == key.id
        assert without_secrets(f"/x/{secret}/y") == "/x/feinsum_.../y"
