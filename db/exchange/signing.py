"""Signing the facts of a database: adding signed copies, retracting the originals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from feinsum.db.exchange.merging import batches
from feinsum.db.sql.store import SqlStore
from feinsum.records import Document, PlanRecord, Retraction, TuningRecord
from feinsum.records.signature import (
    SigningKey,
    public_key_of,
    sign,
    why_untrusted,
)


@dataclass(frozen=True)
class Signed:
    """Facts signed, or to be.

    Attributes:
        n_records: number of trusted facts visible to look-ups, of plans too.
    """

    n_records: int
    n_signed: int


def sign_facts(
    store: SqlStore,
    key: SigningKey,
    *,
    retracted_by: str = "",
    is_dry_run: bool = True,
) -> Signed:
    """Sign the trusted facts that this key has not signed yet; idempotent.

    A signed fact is added together with the retraction of the unsigned one: both or
    none.

    Raises:
        StoreUnavailableError: if the database cannot be read or written.
    """
    trusted = (public_key_of(key),)
    n_records, n_signed = 0, 0
    for part in batches(_facts(store)):
        unsigned = [record for record in part if why_untrusted(record, trusted)]
        n_records += len(part)
        n_signed += len(unsigned)
        if is_dry_run:
            continue
        # The unsigned one is retracted, or every look-up would have both.
        documents: list[Document] = []
        for record in unsigned:
            signed = sign(record, key)
            reason = f"signed since then, as {signed.id}"
            documents += [signed, Retraction(record.id, reason, retracted_by)]
        store.add_all(documents)
    return Signed(n_records, n_signed)


def _facts(store: SqlStore) -> Iterator[TuningRecord | PlanRecord]:
    """Yield the facts that can be signed: trusted records and plans."""
    for fact in chain(store.records(), store.documents("plan")):
        assert isinstance(fact, TuningRecord | PlanRecord)
        if fact.is_trusted:
            yield fact
