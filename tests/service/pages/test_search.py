"""Search: every spelling of an einsum finds its workloads."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.canonical import canonicalize
from feinsum.db.server.serving import open_serving_store
from feinsum.errors import CanonicalizationError
from feinsum.ir import from_text
from feinsum.service.pages.search import SearchCriteria, SearchView, search
from feinsum.service.pages.words import make_notation
from tests.db.factories import make_device, make_environment, make_processor
from tests.service.conftest import store_of
from tests.service.pages.documents import get, links, text_of
from tests.service.pages.facts import MATMUL, MATVEC, form_of, make_fact
from tests.strategies import counts

MATVEC_KEY, MATMUL_KEY = form_of(*MATVEC).key, form_of(*MATMUL).key
GRADIENT = ("xre,rij,ej->xei", {"x": 3, "r": 3, "e": "N", "i": 10, "j": 10})


def found(reader, **query):
    request = reader.build_request("GET", "/workloads", params=query)
    return get(reader, str(request.url.raw_path, "ascii"))


def test_every_spelling_finds_the_workload(reader):
    """Names, order, spaces, words, implicit output: the same workload is found."""
    for spelling in (
        "ij,j->i",
        "ij,j",
        "pq, q -> p",
        "q,pq->p",
        " b , a b -> a ",
        "row col, col -> row",
        "ij, j → i",
        form_of(*MATVEC).text,
        MATVEC_KEY,
        'numpy.einsum("ij,j->i", a, b)',
        "y = np.einsum('ij, j', a, x, optimize=True)",
        'feinsum.tune(\n    "pq,q->p", A, x\n)',
        'einsum(subscripts="ij,j->i")',
    ):
        page = found(reader, q=spelling)
        assert links(page, "/workloads/") == [f"/workloads/{MATVEC_KEY}"]


def test_microarchitectures_find_devices_and_their_workloads(client):
    """Several devices have one name; the workloads of each are a filter away."""
    facts = {
        design: make_fact(
            workload=workload,
            environment=make_environment(make_device(0, make_processor(design))),
        )
        for design, workload in [("zen4", MATVEC), ("zen5", MATMUL)]
    }
    store_of(client).add_all(list(facts.values()))
    for design, fact in facts.items():
        device = fact.environment.device
        for q in (design, f"{device.name} {design}".upper()):
            page = found(client, q=q)
            assert links(page, "/devices/") == [f"/devices/{device.id}"]
            assert f"{device.name}, AMD, {design}, 2 cores (" in text_of(page)
        (path,) = links(page, "/workloads?")
        assert links(get(client, path), "/workloads/") == [
            f"/workloads/{fact.workload}"
        ]
        both = found(client, q="ij,j", device=device.id)
        expected = [f"/workloads/{MATVEC_KEY}"] if design == "zen4" else []
        assert links(both, "/workloads/") == expected


def test_a_search_that_took_too_long_is_not_remembered(client, monkeypatch):
    """It says that it is incomplete; the next one compares what it left."""
    store_of(client).add_all([make_fact(workload=MATVEC)])
    module = sys.modules[search.__module__]
    compute_key = module._compute_shape_key
    calls = []

    def fail_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise CanonicalizationError("no form within the limit")
        return compute_key(*arguments)

    module._spellings.clear()
    monkeypatch.setattr(module, "_compute_shape_key", fail_second)
    page = found(client, q="ij,j")
    assert "timed out before comparing all; try again" in text_of(page)
    page = found(client, q="ij,j")
    assert links(page, "/workloads/") == [f"/workloads/{MATVEC_KEY}"]


def test_workloads_have_an_order(client):
    """With their speed-ups: by the highest one, unless another order is chosen."""
    medians = {"i": 4e-3, "j": 1e-3, "k": 2e-3}
    for day, (name, median_s) in enumerate(medians.items(), start=1):
        workload = ("ij,j->i", {"i": "N", "j": 4 + day})
        fact = make_fact(median_s, workload=workload, day=day, name=f"recipe_{name}")
        store_of(client).add(fact)

    def speedups(**query):
        items = found(client, **query).findall(".//ul[@id='listed']/li")
        return [text_of(item).split()[-4] for item in items]

    for query in ({}, {"q": "ab,b"}, {"q": "recipe_"}):
        assert speedups(**query) == ["10.0×", "5.00×", "2.50×"]
        assert speedups(**query, order="latest") == ["5.00×", "10.0×", "2.50×"]
    get(client, "/workloads?order=color", 422)


def test_sizes_find_the_workload_itself(reader):
    """With all sizes it is said whether just this workload is known; another dtype is
    another workload. What is typed stays in the field.
    """
    page = found(reader, q="ab,bc", sizes="a=M, b=8, c=8")
    assert text_of(page.find(".//p[@role='status']")) == "Found."
    assert links(page, "/workloads/") == [f"/workloads/{MATMUL_KEY}"]
    page = found(reader, q="ab,bc", sizes="a=M,b=8,c=9")
    words = text_of(page.find(".//p[@role='status']"))
    other = form_of("ij,jk->ik", {"i": "N", "j": 8, "k": 9}).key
    assert words.startswith(
        "No fact is recorded at these sizes; other sizes are listed"
    )
    assert other in words
    assert links(page, "/workloads/") == [f"/workloads/{MATMUL_KEY}"]
    page = found(reader, q="ij,j", sizes="i=N,j=4", dtype="float32")
    assert text_of(page.find(".//p[@role='status']")).startswith("No fact")
    fields = {e.get("name"): e.get("value") for e in page.iter("input")}
    assert fields == {"q": "ij,j", "sizes": "i=N,j=4"}
    chosen = [text_of(e) for e in page.iter("option") if "selected" in e.attrib]
    assert chosen == ["float32"]


def test_the_dtype_filters_a_search_by_subscripts(client):
    """Without sizes, too: any dtype finds all, one finds those that have it."""
    for dtype in ("float32", "float64", "complex64", "complex128"):
        store_of(client).add(make_fact(workload=("ij,j->i", {"i": "N", "j": 4}, dtype)))
    for dtype in ("float32", "float64", "complex64", "complex128"):
        for query in ({"q": "ij,j", "dtype": dtype}, {"dtype": dtype}):
            (item,) = found(client, **query).findall(".//ul[@id='listed']/li")
            assert text_of(item).endswith(f"{dtype} 10.0× · 1 fact")
    assert len(found(client, q="ij,j").findall(".//ul[@id='listed']/li")) == 4


def test_what_a_page_shows_finds_its_workload(client):
    """Titles, beginnings of keys, recipes and names of devices can be searched for."""
    batch = canonicalize(
        from_text("i0 j, j -> i0 | A[N,4]:<f8 x[4]:<f8 B[N,4]:<f8 | A x; B x")
    )
    fact = replace(make_fact(), workload=batch.key, workload_text=batch.text)
    store_of(client).add(fact)
    device = fact.environment.device
    title = make_notation(batch.text).title
    assert title.endswith("(2 rows)")
    digest = batch.key.rpartition("-")[2]
    for q in (title, batch.key[:30], digest[:8], fact.spec.name, f"{fact.spec.name}@1"):
        (item,) = found(client, q=q).findall(".//ul[@id='listed']/li/a")
        assert item.get("href") == f"/workloads/{batch.key}"
    page = found(client, q=device.name[2:].upper())
    links = [a.get("href") for a in page.iter("a")]
    assert f"/devices/{device.id}" in links


def test_what_cannot_be_read_is_said(reader):
    """A text that is no einsum is answered with what is wrong with it."""
    for query, words in (
        ({"q": "ij,jk->ikl"}, "output"),
        ({"q": "i{,j"}, "not an index name"),
        ({"q": "ij,j", "sizes": "i"}, "expected i=4 or i=N"),
        ({"q": "ij,j", "sizes": "z=4"}, "no index 'z'"),
        ({"q": "ij,j", "sizes": "i=4,j=4", "dtype": "text"}, "dtype"),
        ({"q": "x" * 2001}, "at most 2000"),
        ({"q": "a | b | c"}, "einsum text"),
        ({"q": "...i,i"}, "ellipsis"),
    ):
        page = found(reader, **query)
        assert words in text_of(page.find(".//p[@role='status']"))
        assert links(page, "/workloads/") == []


def test_a_batch_is_found_by_its_subscripts(client):
    """Rows do not matter for a search by subscripts, and sizes neither."""
    facts = [
        make_fact(workload=("ij,jk->ik", {"i": 3 + n, "j": 4, "k": "N"}))
        for n in range(3)
    ]
    store_of(client).add_all(facts)
    page = found(client, q="xy,yz")
    expected = [f"/workloads/{f.workload}" for f in facts]
    assert links(page, "/workloads/") == sorted(expected)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A store with three workloads."""
    location = tmp_path_factory.mktemp("search") / "facts.sqlite"
    with open_serving_store(location) as store:
        store.add_all([make_fact(workload=w) for w in (MATVEC, MATMUL, GRADIENT)])
        yield store


@counts(30, 1000)
@given(seed=st.integers(0, 2**32), workload=st.sampled_from([MATVEC, MATMUL, GRADIENT]))
def test_any_renaming_and_reordering_finds_it(shelf, seed, workload):
    """For every renaming of indices and order of terms there is the same answer."""
    chance = random.Random(seed)
    subscripts, _ = workload
    letters = sorted(set(subscripts) - set(",->"))
    names = dict(zip(letters, chance.sample("abcdefghijklmnop", 5), strict=False))
    terms, _, output = subscripts.translate(str.maketrans(names)).partition("->")
    order = terms.split(",")
    chance.shuffle(order)
    asked = SearchCriteria(f"{','.join(order)}->{output}")
    result = search(asked, shelf, limit_s=60)
    assert [one.key for one in result.others] == [form_of(*workload).key]


@counts(50, 5000)
@given(st.text(max_size=60), st.text(max_size=30), st.text(max_size=10))
def test_no_text_breaks_the_search(shelf, q, sizes, dtype):
    """Whatever is typed, there is an answer, or the reason why there is none."""
    found = search(SearchCriteria(q, sizes, dtype), shelf, limit_s=60)
    assert isinstance(found, SearchView)
    assert not (found.problem and (found.exact or found.others))
