"""The sizes of facts are those of what is really written."""

from __future__ import annotations

from argparse import Namespace
from itertools import islice

from benchmarks.database import N_RECIPES, make_facts
from benchmarks.storage import measure_answers, measure_databases
from feinsum.records import to_json

RECORDS = 400


def test_no_form_is_smaller_than_it_can_be():
    """Text has every byte of the documents, a database as well; Parquet is packed."""
    options = Namespace(on=["sqlite"], records=RECORDS, url=None)
    sizes = dict(measure_databases(options))
    documents = sum(len(to_json(fact)) for fact in make_facts(RECORDS))
    assert sizes["JSON Lines"] > documents
    assert sizes["SQLite"] > documents
    assert 0 < sizes["Parquet"] < documents


def test_an_answer_has_the_facts_of_one_device():
    """Each with its whole document; gzip makes it smaller."""
    (name, plain), (_, packed) = measure_answers()
    n_facts = int(name.split()[3])
    assert 1 < n_facts <= N_RECIPES
    assert plain > n_facts * min(
        len(to_json(fact)) for fact in islice(make_facts(10**6), N_RECIPES)
    )
    assert packed < plain
