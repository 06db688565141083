"""Settings: variables before the file before the defaults, and what is refused."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from feinsum.errors import InvalidRequestError
from feinsum.service import Settings, read_settings
from feinsum.service.settings import warn_of_variables


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file of settings that the variable names."""
    path = tmp_path / "feinsum.toml"
    path.touch()
    monkeypatch.setenv("FEINSUM_SERVE_SETTINGS", str(path))
    return path


def test_a_variable_overrides_the_file_and_an_option_both(file, monkeypatch):
    """And the file overrides the defaults."""
    file.write_text(
        "workers = 3\nport = 9000\nmax_age_s = 600\nanonymous_read = false\n"
    )
    monkeypatch.setenv("FEINSUM_SERVE_WORKERS", "2")
    chosen = read_settings(port=9001, host=None)
    assert (chosen.workers, chosen.port, chosen.max_age_s) == (2, 9001, 600)
    assert not chosen.anonymous_read
    assert chosen.host == Settings().host


def test_a_file_that_cannot_be_read_is_refused(file):
    """The message names the setting, or the file."""
    for text, named in (
        ("max_ages_s = 1", "feinsum.toml: 'max_ages_s' is not a setting"),
        ("max_ages_s = 1", "did you mean 'max_age_s'?"),
        ("[service]\nport = 1", "without a section [service]"),
        ('max_batch = "many"', "service: max_batch: "),
        ("max_batch = ", "cannot read the settings in"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidRequestError, match=re.escape(named)):
            read_settings()


def test_a_missing_file_is_refused(file):
    """A service without its limits must not start."""
    file.unlink()
    with pytest.raises(InvalidRequestError, match="FEINSUM_SERVE_SETTINGS"):
        read_settings()


def test_deprecated_variables_are_read_and_logged(monkeypatch, caplog):
    """For one release, so that an upgrade changes no limit."""
    monkeypatch.setenv("FEINSUM_SERVE_BURST", "7")
    assert read_settings().burst == 7
    with caplog.at_level(logging.WARNING):
        warn_of_variables()
    assert "burst" in caplog.text


def test_variables_of_no_setting_are_logged(monkeypatch, caplog):
    """A misspelt limit would go unnoticed."""
    monkeypatch.setenv("FEINSUM_SERVE_BRUST", "7")
    with caplog.at_level(logging.WARNING):
        warn_of_variables()
    assert "FEINSUM_SERVE_BRUST" in caplog.text
