"""Whatever stands in the rows of a database, no code runs and no build breaks."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sqlite3
from contextlib import closing

import pytest

from feinsum.db import open_store
from feinsum.records import to_json
from feinsum.retrieval import look_up
from tests.portions import spread
from tests.retrieval.facts import fact_of
from tests.retrieval.kernels import reduction
from tests.retrieval.support import assert_right, why_unchanged

GOOD = fact_of(reduction(), speedup=2.0)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def with_spec(**changes):
    document = json.loads(to_json(fact_of(reduction(), speedup=1000.0)))
    document["spec"].update(changes)
    return document


def with_parameters(**changes):
    document = with_spec()
    document["spec"]["parameters"].update(changes)
    return document


def with_field(name, value):
    document = with_spec()
    document[name] = value
    return document


def with_measured(**changes):
    document = with_spec()
    document["measurement"].update(changes)
    return document


DOCUMENTS = {
    "path": with_spec(name="../../etc/passwd"),
    "module": with_spec(name="os.system"),
    "dunder": with_spec(name="__import__('os').mkdir('exploded')"),
    "long name": with_spec(name="a" * 100_000),
    "unknown": with_spec(name="alien"),
    "version": with_spec(version=10**30),
    "outside its space": with_parameters(block=7),
    "huge": with_parameters(block=10**4000),
    "negative": with_parameters(block=-8),
    "true is no number": with_parameters(block=True),
    "code": with_parameters(block="__import__('os').mkdir('exploded')"),
    "path in a parameter": with_parameters(index="/etc/passwd"),
    "a list": with_parameters(block=[8] * 1000),
    "one too many": with_parameters(path="x"),
    "a text for a number": with_spec(version="1"),
    "no number": with_measured(samples_s=["fast"]),
    "no time": with_measured(samples_s=[0.0]),
    "infinitely fast": with_measured(samples_s=[1e-320], baseline_s=[1e300]),
    "huge size": with_measured(sizes={"N0": 10**4000}, samples_s=[1.0], baseline_s=[1]),
    "long text": with_field("workload_text", "a -> a | " + "x" * 1_000_000),
    "other field": with_field("code", "import os"),
    "other text": with_field("workload_text", "a -> a | A0[3]:<f8 | A0"),
}

TEXTS = {
    "pickle": pickle.dumps(Bomb()),
    "pickle in latin": pickle.dumps(Bomb(), 0).decode("latin-1"),
    "nothing": "",
    "null": None,
    "number": 12,
    "nested": "[" * 100_000,
    "long number": '{"spec": ' + "9" * 100_000 + "}",
    "not a number": to_json(GOOD).replace('"n_warmup":1', '"n_warmup":NaN'),
}


def text_of(document) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


ROWS = {
    **{name: text_of(document) for name, document in DOCUMENTS.items()},
    **{name: text for name, text in TEXTS.items() if text is not None},
}


def plant(path, content) -> None:
    """A row with that document and its right digest, under the key of the kernel."""
    raw = content if isinstance(content, bytes) else str(content).encode()
    row = {
        "id": hashlib.sha256(raw).hexdigest(),
        "workload_key": GOOD.workload,
        "environment_id": GOOD.environment.id,
        "device_id": GOOD.environment.device.id,
        "transform_name": "rowwise",
        "transform_version": 1,
        "median_s": 1e-9,
        "speedup": 1e9,
        "recorded_at": "2026-01-01 00:00:00",
        "document": content,
    }
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f"INSERT INTO records ({', '.join(row)}) VALUES "
            f"({', '.join('?' * len(row))})",
            tuple(row.values()),
        )


@pytest.fixture
def database(tmp_path, monkeypatch):
    """A database that knows the workload; nothing else is where bombs would explode."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "facts.sqlite"
    with open_store(path) as store:
        store.add(GOOD)
    return path


@pytest.mark.parametrize("content", spread(ROWS.values(), 6), ids=ROWS)
def test_a_hostile_row_is_never_served(content, database, tmp_path):
    """The next candidate is taken, and what it computes is right."""
    plant(database, content)
    found = look_up(reduction().kernel, database=database)
    assert found.applied == (GOOD.spec,)
    assert len(found.nests[0].failures) <= 1
    assert not (tmp_path / "exploded").exists()


def test_among_all_of_them_the_good_one_is_found(database, tmp_path, caplog):
    """However many there are; and no line that is logged is long."""
    caplog.set_level("DEBUG", "feinsum")
    for content in ROWS.values():
        plant(database, content)
    found = look_up(reduction().kernel, database=database)
    assert found.applied == (GOOD.spec,)
    assert_right(reduction(), found.t_unit)
    assert max(len(why) for _, why in found.nests[0].failures) < 1100
    assert max(len(record.getMessage()) for record in caplog.records) < 2500
    assert not (tmp_path / "exploded").exists()


def test_where_there_are_no_others_the_kernel_is_unchanged(tmp_path, monkeypatch):
    """One warning, whatever the rows."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "facts.sqlite"
    with open_store(path) as store:
        store.add(GOOD)
    for content in ROWS.values():
        plant(path, content)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM records WHERE id = ?", (GOOD.id,))
    assert "no recorded recipe could be applied" in why_unchanged(
        reduction().kernel, database=path
    )
    assert not (tmp_path / "exploded").exists()
