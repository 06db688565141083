"""All ranks of a parallel program get one answer, whatever database each sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from feinsum import FeinsumWarning, retrieve
from feinsum.errors import TransformError
from feinsum.records import from_json, to_json
from feinsum.retrieval.decision import Decision
from tests.docs.pages import ROOT
from tests.retrieval.facts import fact_of
from tests.retrieval.kernels import reduction
from tests.retrieval.support import given, retrieved

N_RANKS = 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of four ranks found; started once."""
    folder = tmp_path_factory.mktemp("ranks")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    done = subprocess.run(
        [mpiexec, "-n", str(N_RANKS), sys.executable, "-m", "mpi4py", "-m",
         "tests.retrieval.on_ranks",
         str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_ranks_alone_would_disagree(ranks):
    """Each rank sees a database of its own: three different answers."""
    assert len({rank["alone"] for rank in ranks}) == 3


def test_ranks_together_agree(ranks):
    """All have what rank 0 finds alone, also those without any database."""
    kernels = [rank["together"]["kernel"] for rank in ranks]
    assert kernels == [ranks[0]["alone"]] * N_RANKS
    assert not any(rank["together"]["is_unchanged"] for rank in ranks)
    assert not any(rank["together"]["said"] for rank in ranks)


def test_a_communicator_may_have_upper_case_methods_only(ranks):
    """Buffers carry the same answer."""
    assert [rank["upper case"] for rank in ranks] == [ranks[0]["alone"]] * N_RANKS


def test_what_rank_0_does_not_know_is_unchanged_on_all(ranks):
    """One warning, by rank 0."""
    outcomes = [rank["unknown"] for rank in ranks]
    assert all(found["is_unchanged"] for found in outcomes)
    assert [len(found["said"]) for found in outcomes] == [1, 0, 0, 0]
    assert "no fact is recorded" in outcomes[0]["said"][0]


@pytest.mark.parametrize(
    ("case", "culprit", "words"),
    [
        ("other kernel", 2, "give all ranks one kernel"),
        ("not there", 1, "no transform rowwise@1 is registered here"),
    ],
)
def test_what_one_rank_cannot_apply_no_rank_applies(ranks, case, culprit, words):
    """All go back to the unchanged kernel; that rank says why, rank 0 that."""
    outcomes = [rank[case] for rank in ranks]
    assert all(found["is_unchanged"] for found in outcomes)
    assert [len(found["said"]) for found in outcomes] == [
        int(k in (0, culprit)) for k in range(N_RANKS)
    ]
    assert words in outcomes[culprit]["said"][0]
    assert f"on 1 of {N_RANKS} ranks" in outcomes[0]["said"][0]


def test_where_it_is_asked_for_every_rank_raises(ranks):
    """With ``on_miss="raise"`` none goes on alone."""
    raised = [rank["raised"] for rank in ranks]
    assert raised.count("by another rank") == N_RANKS - 1
    assert len(raised) == N_RANKS


class Told:
    """A communicator of two ranks, of which this is the last; it was told a text."""

    def __init__(self, text, n_failed=0):
        self.text, self.n_failed = text, n_failed

    def Get_rank(self):  # noqa: N802
        return 1

    def Get_size(self):  # noqa: N802
        return 2

    def bcast(self, text, root):
        assert (text, root) == (None, 0)
        return self.text

    def allreduce(self, number):
        self.number = number
        return number + self.n_failed


HOSTILE = [
    "no JSON",
    "{" * 10_000,
    '{"nests": [{"workload": 3}]}',
    '{"nests": [], "code": "import os"}',
    to_json(Decision()),
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_a_decision_is_data_or_nothing(text):
    """What is no decision for this kernel changes nothing, and all learn it."""
    comm = Told(text)
    kernel = reduction().kernel
    with pytest.warns(FeinsumWarning, match="returned unchanged"):
        assert retrieve(kernel, comm=comm) is kernel
    assert comm.number == 1


def test_no_communicator_breaks_no_build():
    """What has no such methods: the kernel, and a warning."""
    kernel = reduction().kernel
    with pytest.warns(FeinsumWarning, match="Get_rank"):
        assert retrieve(kernel, comm=object()) is kernel


class Alone(Told):
    """A communicator of one rank, which is told what it says."""

    def Get_rank(self):  # noqa: N802
        return 0

    def Get_size(self):  # noqa: N802
        return 1

    def bcast(self, text, root):
        self.text = text
        return text


def test_one_rank_is_no_other_case():
    """Alone or as the only rank: the same kernel; what is told names a transform."""
    comm = Alone(None)
    example = reduction()
    store = given(fact_of(example))
    assert retrieved(example.kernel, database=store, comm=comm) == retrieved(
        example.kernel, database=store
    )
    (nest,) = from_json(Decision, comm.text).nests
    assert str(nest.spec).startswith("rowwise@1(")


def test_a_recipe_outside_its_space_is_applied_on_no_rank():
    """A decision is checked on every rank like a record."""
    example = reduction()
    comm = Alone(None)
    retrieved(example.kernel, database=given(fact_of(example)), comm=comm)
    wrong = Told(comm.text.replace('"block":', '"block":1000'))
    assert wrong.text != comm.text
    with pytest.raises(TransformError, match="outside its space"):
        retrieve(example.kernel, comm=wrong, on_miss="raise")
    assert wrong.number == 1
