"""Layers: all are asked, one is written, and one that fails hides no other."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing

import pytest

from feinsum.db import (
    LAYERS_VARIABLE,
    SITE_VARIABLE,
    LayeredStore,
    get_shipped_facts,
    list_layer_states,
    looked_up_store,
    open_store,
    opened_store,
    process_facts,
)
from feinsum.errors import RecordNotFoundError, StoreUnavailableError
from feinsum.memory import use_fresh_memory
from feinsum.records import InMemoryStore
from tests.db.conftest import unprivileged
from tests.db.factories import WORKLOAD, make_peaks, make_record, make_trial

SHIPPED = next(get_shipped_facts().records())


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """Where the user's database is."""
    path = tmp_path / "own" / "facts.sqlite"
    path.parent.mkdir()
    monkeypatch.setenv("FEINSUM_DATABASE", str(path))
    monkeypatch.delenv(LAYERS_VARIABLE, raising=False)
    monkeypatch.delenv(SITE_VARIABLE, raising=False)
    with use_fresh_memory():
        yield path


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A database of the site, with a fact and a write-ahead log."""
    path = tmp_path / "site" / "facts.sqlite"
    path.parent.mkdir()
    with open_store(path) as store:
        store.add(make_record(7))
    monkeypatch.setenv(SITE_VARIABLE, str(path))
    return path


def test_the_layers_are_asked_in_their_order(own, site, monkeypatch):
    """All by default; those that the setting names, as it orders them."""
    with opened_store(None, has_shipped=True) as store:
        assert [s.name for s in list_layer_states(store)] == [
            "memory",
            "user",
            "site",
            "packaged",
        ]
        assert store.query(WORKLOAD) == (make_record(7),)
        assert SHIPPED in store.query(SHIPPED.workload)
    monkeypatch.setenv(LAYERS_VARIABLE, " site, user ,site")
    with opened_store(None, has_shipped=True) as store:
        assert [s.name for s in list_layer_states(store)] == ["site", "user"]
        assert store.query(SHIPPED.workload) == ()
    monkeypatch.setenv(LAYERS_VARIABLE, "sight")
    with (
        pytest.raises(StoreUnavailableError, match=r"'sight'; expected some of memory"),
        opened_store(None, has_shipped=True),
    ):
        pass


def test_a_database_that_is_named_has_no_layers(own, site):
    """Who names a database asks that one."""
    with opened_store(own, has_shipped=True, may_create=True) as store:
        assert store.query(WORKLOAD) == ()
        assert list_layer_states(store) == ()


def test_what_is_new_goes_to_the_user(own, site, monkeypatch):
    """Whatever the order; where the user's layer is left out, nothing is written."""
    monkeypatch.setenv(LAYERS_VARIABLE, "packaged,site,user")
    with opened_store(None, has_shipped=True, may_create=True) as store:
        assert store.add(make_record(1))
        assert store.add(make_peaks())
        assert store.add(make_trial())
    with open_store(own) as store:
        assert (len(store), len(store.trials(make_trial().workload))) == (1, 1)
    monkeypatch.setenv(LAYERS_VARIABLE, "packaged")
    with opened_store(None, has_shipped=True) as store:
        with pytest.raises(StoreUnavailableError, match="excludes the layer 'user'"):
            store.add(make_record(2))
        assert store.query(WORKLOAD) == ()


def test_whoever_reads_makes_no_database(own, site, caplog):
    """One that was named and is not there is passed over, and the log says so."""
    with opened_store(None, has_shipped=True) as store:
        assert store.query(WORKLOAD) == (make_record(7),)
        (missing,) = [s for s in list_layer_states(store) if s.problem]
    assert (missing.name, f"no database {own}" in missing.problem) == ("user", True)
    assert f"there is no database {own}" in caplog.text
    with (
        pytest.raises(StoreUnavailableError, match="there is no database"),
        opened_store(own),
    ):
        pass
    assert not any(own.parent.iterdir())


def test_a_build_goes_on_without_the_database_that_it_names(tmp_path, caplog):
    """It may come before the first tuning; the log says so, and nothing is made."""
    path = tmp_path / "to come.sqlite"
    with looked_up_store(path) as store:
        assert store.query(WORKLOAD) == ()
        (state,) = list_layer_states(store)
    assert f"there is no database {path}" in caplog.text
    assert str(state).startswith(f"database ({path}): skipped, because there is no")
    assert not path.exists()


def test_a_database_that_has_to_exist_is_required_where_it_is_named(own, site):
    """By an argument; the one that the variable names may not be there yet."""
    with (
        pytest.raises(StoreUnavailableError, match=f"there is no database {own}"),
        looked_up_store(own, must_exist=True),
    ):
        pass
    with looked_up_store(None, must_exist=True) as store:
        assert store.query(WORKLOAD) == (make_record(7),)


def test_the_usual_database_has_no_facts_before_it_is_made(
    tmp_path, monkeypatch, caplog
):
    """That is no problem to who reads; who writes makes it, with feinsum's folder."""
    monkeypatch.delenv("FEINSUM_DATABASE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home" / "data"))
    with opened_store(None, has_shipped=True) as store:
        assert store.query(WORKLOAD) == ()
        assert not any(state.problem for state in list_layer_states(store))
        with pytest.raises(StoreUnavailableError, match="does not exist yet"):
            store.add(make_record(1))
    assert caplog.text == ""
    assert not (tmp_path / "home").exists()
    with opened_store(None, has_shipped=True, may_create=True) as store:
        store.add(make_record(1))
    with opened_store(None) as store:
        assert store.query(WORKLOAD) == (make_record(1),)


def test_facts_of_the_process_are_known_to_it(monkeypatch):
    """A program may add some, without any file."""
    with opened_store(None, has_shipped=True) as store:
        assert store.query(WORKLOAD) == ()
        process_facts().add(make_record(3))
        assert store.query(WORKLOAD) == (make_record(3),)


def test_the_site_is_read_without_a_trace(site):
    """No log, no shared memory, no journal appears beside it, and no lock is taken."""
    before = {path: path.stat().st_mtime_ns for path in site.parent.iterdir()}
    with closing(sqlite3.connect(site, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=DELETE")
        writer.execute("BEGIN EXCLUSIVE")
        with opened_store(None, has_shipped=True) as store:
            assert store.query(WORKLOAD) == (make_record(7),)
        writer.execute("ROLLBACK")
        writer.execute("PRAGMA journal_mode=WAL")
    with opened_store(None, has_shipped=True) as store:
        assert store.query(WORKLOAD) == (make_record(7),)
        assert set(site.parent.iterdir()) == set(before)


def test_a_site_that_is_replaced_is_read_anew(site, tmp_path):
    """It is published by renaming a whole file into its place."""
    with open_store(tmp_path / "new.sqlite") as store:
        store.add(make_record(8))
    with opened_store(None, has_shipped=True) as store:
        assert store.query(WORKLOAD) == (make_record(7),)
        (tmp_path / "new.sqlite").replace(site)
        assert store.query(WORKLOAD) == (make_record(8),)


def garbage(path):
    path.write_bytes(b"garbage" * 1000)


def folder(path):
    path.mkdir()


def file_above(path):
    path.parent.rmdir()
    path.parent.write_text("")


@pytest.mark.parametrize("spoil", [garbage, folder, file_above])
def test_a_database_that_cannot_be_used_hides_no_layer(spoil, own, site, caplog):
    """The others are asked; the log, the state and an attempt to write say why."""
    spoil(own)
    with (
        caplog.at_level(logging.WARNING, "feinsum.db"),
        opened_store(None, has_shipped=True) as store,
    ):
        assert store.query(WORKLOAD) == (make_record(7),)
        assert SHIPPED in store.query(SHIPPED.workload)
        assert store.get(SHIPPED.id) == SHIPPED
        problems = {state.name: state.problem for state in list_layer_states(store)}
        with pytest.raises(StoreUnavailableError) as caught:
            store.add(make_record())
    assert problems.pop("user") == str(caught.value)
    assert set(problems.values()) == {""}
    assert len([m for m in caplog.messages if str(caught.value) in m]) <= 1


def test_an_unwritable_folder_hides_no_layer(public_folder, monkeypatch):
    """The packaged facts serve whoever has no place for a database."""
    monkeypatch.setenv("FEINSUM_DATABASE", str(public_folder / "facts.sqlite"))
    public_folder.chmod(0o555)
    with unprivileged(), opened_store(None, has_shipped=True) as store:
        assert SHIPPED in store.query(SHIPPED.workload)


def test_damage_within_a_layer_hides_no_other(own, site):
    """A layer that fails when it is read is passed over then."""
    content = bytearray(site.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    site.write_bytes(content)
    with open_store(own) as store:
        store.add(make_record(1))
    with opened_store(None, has_shipped=True) as store:
        assert store.query(WORKLOAD) == (make_record(1),)
        (damaged,) = [s for s in list_layer_states(store) if s.problem]
    assert damaged.name == "site"
    assert "skipped, because" in str(damaged)


def test_if_all_fail_that_is_an_error():
    """Nothing known and nothing asked are two things."""
    error = StoreUnavailableError("no luck")
    store = LayeredStore([error] * 2)
    for ask in (
        lambda: store.query(WORKLOAD),
        lambda: list(store.records()),
        lambda: store.get("x"),
        lambda: store.peaks("x"),
        lambda: store.trials(WORKLOAD),
        store.tried,
    ):
        with pytest.raises(StoreUnavailableError, match="no luck"):
            ask()
    with pytest.raises(RecordNotFoundError):
        LayeredStore([InMemoryStore(), error]).get("x")


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([StoreUnavailableError("no luck"), InMemoryStore()], "no luck"),
        ([get_shipped_facts(), InMemoryStore()], "the source of facts is read-only"),
    ],
)
def test_what_cannot_be_written_says_why(layers, why):
    """Whatever is added; reading goes on, and so does closing."""
    store = LayeredStore(layers)
    for add in (
        lambda: store.add(make_record()),
        lambda: store.add(make_peaks()),
        lambda: store.add(make_trial()),
        store.check_writable,
    ):
        with pytest.raises(StoreUnavailableError, match=why):
            add()
    assert store.query(WORKLOAD) == ()
    store.close()


def test_a_source_that_is_only_read_can_be_the_database():
    """What is asked of it is answered; what is to be written is refused."""
    with opened_store(get_shipped_facts()) as store:
        assert SHIPPED in store.query(SHIPPED.workload)
        with pytest.raises(StoreUnavailableError, match="read-only"):
            store.add(make_record())
    store.close()
