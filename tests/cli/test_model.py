"""``feinsum model``: a fit is reported and written, a model is shown."""

from __future__ import annotations

import json

import numpy as np
import pytest

from feinsum.db import open_store
from feinsum.memory import fresh_memory
from feinsum.predict.correction import MODEL_VARIABLE, read_correction
from feinsum.predict.correction import model as correction_model
from tests.predict.made import FORMS, correction_with, made_trials


@pytest.fixture(autouse=True)
def _no_model(monkeypatch, tmp_path):
    """Whatever is shipped, and whatever was read before."""
    monkeypatch.delenv(MODEL_VARIABLE, raising=False)
    monkeypatch.setattr(correction_model, "SHIPPED", tmp_path / "shipped.json")
    with fresh_memory():
        yield


@pytest.fixture
def trials(database):
    """Trials in the default database."""
    made = made_trials(lambda spec: 1 + np.sin(len(str(spec))) / 2, FORMS[:4], 12)
    with open_store(database) as store:
        for trial in made:
            store.add(trial)
    return made


def test_a_fit_is_reported_and_written(run, trials, tmp_path):
    """How well it ranks, with and without the model; then the model is there."""
    path = tmp_path / "model.json"
    result = run("model", "fit", "--output", str(path))
    assert result.exit_code == 0, result.output
    assert f"{len(trials)} trials" in result.stdout
    assert max(map(len, result.stdout.replace(str(path), "").splitlines())) <= 80
    rows = [line.split() for line in result.stdout.splitlines()]
    assert {"analytic", "corrected"} <= {row[0] for row in rows if row}
    assert read_correction(path).n_trials == len(trials)


def test_a_fit_as_json(run, trials):
    """Every number of the table; without a file nothing is written."""
    found = json.loads(run("model", "fit", "--json").stdout)
    assert found["n_trials"] == len(trials)
    assert (found["n_ranked"], found["output"]) == (4, None)
    for ranking in found["analytic"], found["corrected"]:
        assert 1 <= ranking["first_mean"] <= ranking["first_worst"]
        assert 1 <= ranking["best_of_five_mean"] <= ranking["first_mean"]


def test_too_few_trials_are_a_failure(run, database):
    """With the reason, and no file."""
    open_store(database).close()
    result = run("model", "fit")
    assert result.exit_code == 1
    assert "[model-failed]" in result.stderr
    assert "expected at least" in result.stderr


def test_no_model_is_shown_as_such(run):
    """It is no failure: costs are analytic then."""
    result = run("model", "show")
    assert result.exit_code == 0
    assert result.stdout.startswith("no model")
    assert json.loads(run("model", "show", "--json").stdout)["source"] == "none"


def test_a_model_is_shown(run, tmp_path, monkeypatch):
    """Every feature, on a terminal of 80 columns; as JSON all of it."""
    path = tmp_path / "model.json"
    model = correction_with(cost=0.25)
    correction_model.write_correction(model, path)
    monkeypatch.setenv(MODEL_VARIABLE, str(path))
    result = run("model", "show")
    assert result.exit_code == 0
    assert "+0.250" in result.stdout
    lines = result.stdout.replace(str(path), "").splitlines()
    assert max(map(len, lines)) <= 80
    found = json.loads(run("model", "show", "--json").stdout)
    assert (found["source"], found["id"]) == (str(path), model.id)
    assert np.shape(found["coefficients"]) == np.shape(model.coefficients)


def test_a_bad_model_that_is_named_is_a_failure_here(run, monkeypatch):
    """Elsewhere it is passed over."""
    monkeypatch.setenv(MODEL_VARIABLE, "/nowhere/model.json")
    result = run("model", "show")
    assert result.exit_code == 1
    assert "[model-failed]" in result.stderr
