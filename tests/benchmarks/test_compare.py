"""``benchmarks.compare``: contenders are timed, or named with the reason."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.compare import command
from benchmarks.compare.contest import OURS
from benchmarks.compare.rivals import RIVALS, Rival
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

BATCH = ("i j, j -> i | A[4,3]:<f8 x[3]:<f8 y[3]:<f8 | A x; A y",)
MATMUL = ("ij,jk->ik", "--sizes", "i=n,j=5,k=7", "--size", "n=30")


def _raises(module, subscripts, operands):
    raise ValueError("no such\ndtype")


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Calls the command with an empty database."""
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "facts.sqlite"))

    def invoke(*arguments):
        code = 0
        try:
            command.main(arguments)
        except SystemExit as end:
            code = end.code
        return SimpleNamespace(exit_code=code, **capsys.readouterr()._asdict())

    return invoke


@pytest.fixture
def contenders(monkeypatch):
    """Libraries that the project needs itself, and three that cannot be timed."""
    odd = (
        Rival("missing", "no_such_package", "no-such-package", _raises),
        Rival("failing", "numpy", "numpy", _raises),
        Rival("wrong", "numpy", "numpy", lambda *_: lambda: np.zeros((30, 7))),
    )
    monkeypatch.setattr(command, "RIVALS", (*RIVALS[:2], *odd))


@pytest.mark.usefixtures("contenders")
def test_contenders_are_timed_or_named_with_the_reason(run, tmp_path):
    """In a table, as JSON, and in a picture."""
    picture = tmp_path / "times.svg"
    said = run(*MATMUL, "--json", "--plot", str(picture))
    assert said.exit_code == 0, said.err
    document = json.loads(said.out)
    assert document["sizes"] == {"n": 30}
    found = {one["name"]: one for one in document["contenders"]}
    timed = [one["name"] for one in document["contenders"] if one["median_s"]]
    assert sorted(timed) == sorted([OURS, "numpy", "opt_einsum"])
    medians = [found[name]["median_s"] for name in timed]
    assert medians == sorted(medians)
    assert found[OURS]["note"]
    assert found["missing"]["why_not"] == (
        "not installed; run: pip install no-such-package"
    )
    assert found["failing"]["why_not"] == "ValueError: no such"
    assert found["wrong"]["why_not"].startswith("wrong result: error 1.0e+00")
    assert all(f">{name}<" in picture.read_text() or name in picture.read_text()
               for name in timed)  # fmt: skip
    table = run(*MATMUL).out
    assert "times ours" in table
    assert "missing: not installed" in table


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("ij,j->i", "--sizes", "i=4"), "no size is given for index 'j'"),
        ((*MATMUL, "--size", "q=3"), "no size parameter 'q'; expected some of ['n']"),
        ((*MATMUL, "--plot", "times.txt"), "must end in one of .pdf, .png, .svg"),
        ((*MATMUL, "--plot", "no/folder.png"), "there is no folder 'no'"),
        (BATCH, "expected one row"),
    ],
)
def test_what_cannot_be_compared_is_bad_usage(run, options, said):
    """Before anything is timed."""
    ended = run(*options)
    assert ended.exit_code == 2
    assert said in ended.err


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
def test_every_rival_computes_the_einsum(rival):
    """Three operands, of which two share an index of the result."""
    module = pytest.importorskip(rival.package)
    operands = [np.random.default_rng(0).random(shape) for shape in [(3, 4)] * 3]
    evaluate = rival.prepare(module, "ij,kj,kj->ik", operands)
    expected = np.einsum("ij,kj,kj->ik", *operands)
    assert np.allclose(np.asarray(evaluate()), expected)
