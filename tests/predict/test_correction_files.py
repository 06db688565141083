"""Files of models: read strictly, and no file breaks a program."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum import call_einsum
from feinsum.calling import clear_call_cache
from feinsum.errors import ModelError
from feinsum.memory import Memory, fresh_memory, use_memory
from feinsum.predict import predictions
from feinsum.predict.correction import (
    ANALYTIC,
    MODEL_VARIABLE,
    NO_MODEL,
    correction_in_use,
    model,
    read_correction,
    source_in_use,
    write_correction,
)
from feinsum.records import InMemoryStore, to_json
from feinsum.retrieval.identity import fingerprint
from tests.predict.made import CPU, ENVIRONMENT, FORMS, correction_with

MODEL = correction_with(packed_contraction=9.0)
TEXT = to_json(MODEL)


def changed(**fields):
    return json.dumps(json.loads(TEXT) | fields)


BAD = {
    "empty": "",
    "garbage": "\x80\x04 no JSON",
    "a list": "[]",
    "another version": changed(version=2),
    "no version": json.dumps({"recipe": []}),
    "another field": changed(author="me"),
    "another type": changed(n_trials="many"),
    "rows missing": changed(coefficients=[[0.0]]),
    "not finite": TEXT.replace("9.0", "NaN"),
    "infinite": TEXT.replace("9.0", "1e999"),
    "huge": TEXT.replace("9.0", "1e300"),
    "a scale of zero": TEXT.replace('"scale":1.0', '"scale":0.0'),
    "other features": TEXT.replace('"name":"cost"', '"name":"price"'),
    "too long": TEXT + " " * (1 << 20),
}


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Names a file with a text in the variable."""

    def name(text):
        path = tmp_path / "model.json"
        path.write_text(text)
        monkeypatch.setenv(MODEL_VARIABLE, str(path))
        use_memory(Memory())
        return path

    with fresh_memory():
        yield name


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_by_name_and_passed_over_in_a_prediction(
    text, named, caplog
):
    """Reading it raises what is wrong; predictions go on, after one warning."""
    path = named(text)
    with pytest.raises(ModelError, match=r"model\.json"):
        read_correction(path)
    plain = predictions(FORMS[0].einsum, {}, CPU, correction=ANALYTIC)
    with caplog.at_level(logging.WARNING, "feinsum.predict"):
        for _ in range(3):
            assert predictions(FORMS[0].einsum, {}, CPU) == plain
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "model.json" in caplog.text


@given(st.binary() | st.integers(0, len(TEXT) - 1).map(lambda n: TEXT[:n].encode()))
def test_no_text_raises_anything_else(tmp_path_factory, text):
    """Whatever a file holds, and where a good one is cut off."""
    path = tmp_path_factory.getbasetemp() / "model.json"
    path.write_bytes(text)
    with pytest.raises(ModelError):
        read_correction(path)


@pytest.mark.parametrize("source", ["/nowhere/model.json", "/", "/dev/zero", "a\0b"])
def test_what_is_no_file_is_refused(source):
    """Also a folder, and what never ends."""
    with pytest.raises(ModelError):
        read_correction(source)


def test_the_variable_names_the_model(named):
    """It is the one that predictions use."""
    path = named(TEXT)
    assert (source_in_use(), correction_in_use()) == (str(path), MODEL)
    found = predictions(FORMS[1].einsum, {}, CPU)
    assert found == predictions(FORMS[1].einsum, {}, CPU, correction=MODEL)
    assert found != predictions(FORMS[1].einsum, {}, CPU, correction=ANALYTIC)


def test_none_means_the_analytic_costs(monkeypatch):
    """Also where a model is shipped."""
    monkeypatch.setenv(MODEL_VARIABLE, NO_MODEL)
    assert correction_in_use() is ANALYTIC


def test_without_a_shipped_model_costs_are_analytic(monkeypatch, tmp_path, caplog):
    """That is no reason to warn."""
    monkeypatch.delenv(MODEL_VARIABLE, raising=False)
    monkeypatch.setattr(model, "SHIPPED", tmp_path / "model.json")
    assert correction_in_use() is ANALYTIC
    assert not caplog.records


def test_a_shipped_model_can_be_read():
    """If there is one, it is of this version."""
    if model.SHIPPED.is_file():
        assert not read_correction(model.SHIPPED).is_analytic


def test_a_bad_model_breaks_no_call(named):
    """The einsum is computed."""
    named("garbage")
    clear_call_cache()
    A = np.arange(12.0).reshape(3, 4)
    found = call_einsum("ij,kj->ik", A, A, database=InMemoryStore(), device="host")
    assert np.allclose(found, A @ A.T)
    clear_call_cache()


def test_a_kept_kernel_is_one_of_the_same_model(named):
    """What is kept of a retrieval knows by which model its recipe was chosen."""
    named(TEXT)
    with_model = fingerprint(ENVIRONMENT)
    named(to_json(correction_with()))
    assert fingerprint(ENVIRONMENT) != with_model


def test_a_model_is_written_whole_or_not_at_all(tmp_path):
    """It reads back; a folder that is not there is an error of ours."""
    path = tmp_path / "model.json"
    path.write_text("before")
    write_correction(MODEL, path)
    assert read_correction(path) == MODEL
    assert [*tmp_path.iterdir()] == [path]
    with pytest.raises(ModelError, match="cannot be written"):
        write_correction(MODEL, tmp_path / "none" / "model.json")
    with pytest.raises(ModelError, match="cannot be written"):
        write_correction(MODEL, path / "model.json")
