"""Addresses of services, and who gets the key."""

from __future__ import annotations

import pytest

from feinsum.db.address import get_service_key, is_service, parse_address
from feinsum.db.remote.client import Client
from feinsum.errors import StoreUnavailableError

KEY = "fk_0123456789abcdef"


def test_an_address_is_written_in_one_way():
    """However it is given; written and read again it is the same."""
    for url, shown in (
        ("https://facts.example", "https://facts.example"),
        (" https://Facts.Example:443/ ", "https://facts.example"),
        ("http://localhost:8765/team/", "http://localhost:8765/team"),
        ("http://[::1]:80", "http://[::1]"),
        ("https://10.0.0.1:9/a/b-c_d.e~f", "https://10.0.0.1:9/a/b-c_d.e~f"),
    ):
        assert is_service(url)
        assert str(parse_address(url)) == shown
        assert parse_address(shown) == parse_address(url)


def test_what_is_no_address_is_refused():
    """By an error that does not quote it, for it may hold a password."""
    for url in (
        "",
        "facts.example",
        "ftp://facts.example",
        "file:///etc/passwd",
        "https://",
        "https://facts.example:0",
        "https://facts.example:65536",
        "https://a:b@c",
        "https://a@c",
        "https://c?x=1",
        "https://c#x",
        "https://c/a b",
        "https://c/..%2f",
        "https://c/a\r\nX: y",
        "https://exämple",
        "https://[::1",
        "https://" + "a" * 300,
        "https://c/é",
    ):
        with pytest.raises(
            StoreUnavailableError, match="expected one such as"
        ) as caught:
            parse_address(url)
        assert "b@c" not in str(caught.value)


def test_paths_and_databases_are_no_services():
    """What is no URL of the web is left to others."""
    for location in ("facts.sqlite", "postgresql://host/db", None, 3, b"https://x"):
        assert not is_service(location)


def test_a_key_is_read_from_the_environment_or_a_file(monkeypatch, tmp_path):
    """The variable goes before the file; blanks around it do not count."""
    address = parse_address("https://facts.example")
    assert get_service_key(address) is None
    path = tmp_path / "key"
    path.write_text(f"{KEY}-file\n")
    for variable in ("FEINSUM_REMOTE_KEY", "FEINSUM_REMOTE_KEY_FILE"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, str(path))
            assert get_service_key(address) == f"{KEY}-file"
    monkeypatch.setenv("FEINSUM_REMOTE_KEY_FILE", str(path))
    monkeypatch.setenv("FEINSUM_REMOTE_KEY", f" {KEY} ")
    assert get_service_key(address) == KEY


def test_a_file_that_cannot_be_read_is_an_error(monkeypatch, tmp_path):
    """That names the file."""
    monkeypatch.setenv("FEINSUM_REMOTE_KEY", str(tmp_path / "none"))
    with pytest.raises(StoreUnavailableError, match="none"):
        get_service_key(parse_address("https://facts.example"))


def test_what_is_no_key_is_not_sent(monkeypatch):
    """Nor quoted."""
    for key in ("two words", "a\r\nb", "é", "x" * 600):
        monkeypatch.setenv("FEINSUM_REMOTE_KEY", key)
        with pytest.raises(StoreUnavailableError, match="characters") as caught:
            get_service_key(parse_address("https://facts.example"))
        assert key not in str(caught.value)


def test_a_key_is_sent_in_plain_text_to_this_machine_alone(monkeypatch):
    """Unless a setting says that the network is trusted."""
    monkeypatch.setenv("FEINSUM_REMOTE_KEY", KEY)
    for url in ("http://localhost:1", "http://127.0.0.7", "http://[::1]", "https://x"):
        assert get_service_key(parse_address(url)) == KEY
    for url in ("http://facts.example", "http://localhost.example", "http://10.0.0.1"):
        with pytest.raises(StoreUnavailableError, match="use https") as caught:
            get_service_key(parse_address(url))
        assert KEY not in str(caught.value)
    monkeypatch.setenv("FEINSUM_REMOTE_KEY_OVER_HTTP", "on")
    assert get_service_key(parse_address("http://facts.example")) == KEY


def test_the_key_of_one_service_is_not_sent_to_another(monkeypatch):
    """Where a service is set, the key is its own; a path makes no other one."""
    monkeypatch.setenv("FEINSUM_REMOTE_KEY", KEY)
    monkeypatch.setenv("FEINSUM_REMOTE", "https://facts.example/team")
    assert get_service_key(parse_address("https://facts.example/other")) == KEY
    for url in ("https://other.example", "https://facts.example:9", "http://localhost"):
        assert get_service_key(parse_address(url)) is None
    monkeypatch.setenv("FEINSUM_REMOTE", "nonsense")
    assert get_service_key(parse_address("https://facts.example")) is None


def test_a_client_does_not_show_its_key(monkeypatch):
    """Not where it is printed."""
    monkeypatch.setenv("FEINSUM_REMOTE_KEY", KEY)
    client = Client.of("https://facts.example")
    assert client.key == KEY
    assert KEY not in repr(client)
