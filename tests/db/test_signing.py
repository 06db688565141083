"""Facts of a database are signed once, and the ones without a signature go."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feinsum.db import open_store
from feinsum.db.exchange import merge, sign_facts
from feinsum.records.signature import public_key_of, sign, why_untrusted
from tests.db.factories import make_record

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def test_signing_twice_is_signing_once(tmp_path: Path) -> None:
    """Each fact is there once, signed; a merge does not bring back the unsigned one."""
    records = [*(make_record(n) for n in range(3)), sign(make_record(3), KEY)]
    with (
        open_store(tmp_path / "a.sqlite") as store,
        open_store(tmp_path / "b.sqlite") as other,
    ):
        for one in (store, other):
            one.add_all(records)
        looked = sign_facts(store, KEY)
        assert (looked.n_records, looked.n_signed) == (4, 3)
        assert {r.id for r in store.records()} == {r.id for r in records}
        done = sign_facts(store, KEY, retracted_by="me", is_dry_run=False)
        assert done == looked
        assert sign_facts(store, KEY, is_dry_run=False).n_signed == 0
        merge(store, other)
        merge(other, store)
        wanted = {sign(record, KEY).id for record in records}
        for one in (store, other):
            found = list(one.records())
            assert {record.id for record in found} == wanted
            trusted = {public_key_of(KEY)}
            assert not any(why_untrusted(record, trusted) for record in found)
        (retraction,) = store.retractions_of([records[0].id])
        assert retraction.reason == f"signed since then, as {sign(records[0], KEY).id}"
