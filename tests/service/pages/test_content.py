"""What pages show: everything that is known, in order, page by page."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace

import pytest

from feinsum.canonical import canonicalize
from feinsum.ir import generalize
from feinsum.records import Retraction, rank, to_json
from feinsum.service.pages.rendering import MEDIA_TYPES
from feinsum.service.pages.words import format_device, format_number, format_ratio
from feinsum.suites import read_suite
from tests.db.factories import (
    make_device,
    make_environment,
    make_processor,
    make_record,
)
from tests.service.conftest import key_for, send, store_of
from tests.service.pages.documents import get, is_sound_page, links, text_of
from tests.service.pages.facts import MATVEC, form_of, make_fact, make_limits

KEY = form_of(*MATVEC).key
DEVICE = make_device(0)
LATEST = make_fact(1e-3, environment=make_environment(DEVICE, "7.0"), day=3)

PATHS = ["/", "/workloads", "/plans", "/devices", "/coverage"]


def test_pages_of_an_empty_database_say_so(client):
    """Without a fact every list is a page that says that there is none."""
    for path in PATHS:
        shown = text_of(get(client, path))
        assert any(
            words in shown
            for words in ("No fact", "No plan", "0 of 48 workloads have facts")
        )


def test_every_page_is_valid_and_can_be_read_aloud(reader):
    """A strict parser takes it; landmarks, captions, labels and titles are there. The
    facts of a workload and of a device can be downloaded.
    """
    of_facts = f"/workloads/{KEY}", f"/devices/{DEVICE.id}"
    searches = "/workloads?q=ij,j&sizes=i=N", "/workloads?q=%3Cb%3E"
    for path in (*PATHS, *of_facts, f"/facts/{LATEST.id}", *searches):
        page = get(reader, path)
        assert is_sound_page(page)
        if path in of_facts:
            (download,) = links(page, "/v1/facts?")
            facts = reader.get(download).json()["facts"]
            assert {fact["id"] for fact in facts} >= {LATEST.id}


def test_a_retracted_fact_says_so(reader):
    """Its page says who retracted it, when and why; no list has it any more."""
    retraction = Retraction(LATEST.id, "a <wrong> clock", "ann", "2026-02-01T09:00:00")
    store_of(reader).add(retraction)
    page = text_of(get(reader, f"/facts/{LATEST.id}"))
    assert "retracted" in page
    assert "By ann on 2026-02-01 09:00: a <wrong> clock" in page
    for path in ("/", f"/workloads/{KEY}", f"/devices/{DEVICE.id}"):
        assert f"/facts/{LATEST.id}" not in links(get(reader, path), "/facts/")


def test_everything_is_reached_by_links(reader):
    """From the first page links lead to every workload, fact and device."""
    seen, todo = set(), ["/"]
    while todo:
        path = todo.pop()
        found = [p for p in links(get(reader, path), "/") if not p.startswith("/v1/")]
        todo += {p.partition("#")[0] for p in found} - seen - set(todo) - {path}
        todo = [p for p in todo if p != "/openapi.json"]
        seen.add(path)
    store = store_of(reader)
    assert {f"/devices/{d.id}" for d in store.page_of_devices("", 9)} <= seen
    assert {f"/workloads/{w.key}" for w in store.page_of_workloads("", 9)} <= seen
    assert {f"/facts/{record.id}" for record in store.records()} <= seen
    assert {f"/plans/{plan.id}" for plan in store.documents("plan")} <= seen


def rows_of(page, number=0):
    tables = [t for t in page.iter("table") if "ranking" in t.get("class", "")]
    body = [body for table in tables for body in table.iter("tbody")][number]
    rows = [[text_of(cell) for cell in row] for row in body.iter("tr")]
    return [row for row in rows if len(row) > 1]


def test_a_workload_shows_the_ranking_of_each_device(reader):
    """Recipes stand in the order of ``rank``; slower ones have no place. All devices
    are in one table with one axis: equal speed-ups are at equal places.
    """
    page = get(reader, f"/workloads/{KEY}")
    facts = store_of(reader).query(KEY, device_id=DEVICE.id)
    assert [record.spec.name for record in rank(facts)] == ["rowwise"] * 3
    rows = next(r for r in (rows_of(page, k) for k in range(2)) if len(r) == 3)
    assert [row[0] for row in rows] == ["1", "2", "–"]
    assert [row[3] for row in rows] == ["10.0×", "2.00×", "0.50×"]
    assert [row[5] for row in rows] == ["50 %", "10 %", "2 %"]
    assert "2 facts" in rows[0][1]
    assert "as 1, but block=8" in rows[1][1]
    (row,) = next(r for r in (rows_of(page, k) for k in range(2)) if len(r) == 1)
    assert (row[3], row[5]) == ("2.50×", "unknown")
    tables = [t for t in page.iter("table") if "ranking" in t.get("class", "")]
    assert len(tables) == len([e for e in page.iter() if e.get("class") == "axis"]) == 1
    devices = [th for th in page.iter("th") if th.get("scope") == "rowgroup"]
    expected = {format_device(make_device(0)), format_device(make_device(1))}
    assert {text_of(device) for device in devices} == expected
    units = {e.get("x1") for e in page.iter() if e.get("class") == "unit"}
    assert len(units - {"5"}) == 1  # that of the legend


def test_a_workload_has_a_command_a_chart_and_a_graph(reader):
    """A shell reads the text in the command, with its bars and brackets, as one. Every
    line of the chart has its numbers in words; the graph is the induced one.
    """
    page = get(reader, f"/workloads/{KEY}")
    (command,) = (e for e in page.iter("pre") if e.get("id") == "command")
    words = shlex.split("".join(command.itertext()))
    assert words[:3] == ["feinsum", "tune", form_of(*MATVEC).text]
    assert words[3:] == ["--database", "http://testserver/"]
    labels = [e.get("aria-label", "") for e in page.iter() if e.get("role") == "img"]
    low, high = LATEST.measurement.speedup_interval
    expected = (
        f"10.0×, between {format_ratio(low)} and {format_ratio(high)}; the roofline "
        "allows 20.0×"
    )
    (said,) = [one for one in labels if one.startswith(expected)]
    assert said.removeprefix(expected).startswith("; DRAM allows ")
    assert any(e.get("class") == "level" for e in page.iter())
    (figure,) = (
        e for e in page.iter() if e.get("aria-labelledby") == "graph-title graph-words"
    )
    kinds = [e.get("class") for e in figure.iter() if "node" in e.get("class", "")]
    assert sorted(kinds) == sorted(
        ["node use"] * 2 + ["node axis"] * 3 + ["node index"] * 2 + ["node size-param"]
    )


def test_the_processor_of_a_device_is_shown(client):
    """On its own page, in the list, beside its name where there are several, and with
    each fact; a device without one has a note.
    """
    known = make_device(processor=make_processor("zen5"))
    facts = [make_fact(environment=make_environment(d)) for d in (known, DEVICE)]
    for fact in facts:
        send(client, to_json(fact))
    page = text_of(get(client, f"/devices/{known.id}"))
    assert all(word in page for word in ("zen5", "L1d 48 KiB, L2 1 MiB", "avx512f"))
    assert "was not recorded" not in page
    page = text_of(get(client, f"/devices/{DEVICE.id}"))
    assert "The processor of this device was not recorded" in page
    page = text_of(get(client, "/devices"))
    assert "zen5" in page
    assert "unknown" in page
    assert text_of(get(client, f"/workloads/{KEY}")).count("cpu-0, AMD, zen5") == 1
    assert str(known.processor) in text_of(get(client, f"/facts/{facts[0].id}"))


DOUBT = "120 % (another machine?)"
WHY = "may come from different machines"


@pytest.mark.parametrize(
    ("processor", "median_s", "is_marked"),
    [
        (None, 0.5e-3 / 1.2, True),
        (None, 1e-3, False),
        (make_processor(), 0.5e-3 / 1.2, False),
    ],
    ids=["unknown", "within the limits", "known"],
)
def test_a_share_that_may_be_of_another_machine_is_marked(
    client, processor, median_s, is_marked
):
    """Above 100 %, where facts and limits may be of two machines of one name; a note
    on the same page says why.
    """
    device = make_device(processor=processor)
    fact = make_fact(median_s, environment=make_environment(device))
    store_of(client).add_all([fact, make_limits(device)])
    for path in (f"/workloads/{KEY}", f"/facts/{fact.id}", f"/devices/{device.id}"):
        page = get(client, path)
        assert is_sound_page(page)
        text = text_of(page)
        assert (DOUBT in text, WHY in text) == (is_marked, is_marked)
        assert is_marked or ("50 %" if median_s == 1e-3 else "120 %") in text


def test_a_fact_shows_the_history_of_its_recipe(reader):
    """The facts of the recipe on each device, the latest first, with their drivers."""
    page = get(reader, f"/facts/{LATEST.id}")
    near, far = sorted((rows_of(page, k) for k in (0, 1)), key=len, reverse=True)
    samples = [e for e in page.iter() if e.get("class") == "sample"]
    assert len(samples) == 1 + len(LATEST.measurement.samples_s)  # with the legend's
    assert [row[:2] for row in near] == [
        ["2025-01-03 12:00", "7.0"],
        ["2025-01-02 12:00", "6.0"],
    ]
    assert [row[3:] for row in far] == [["4 ms", "2.50×"]]
    assert str(LATEST.spec) in text_of(page)


def test_a_fact_shows_what_every_level_of_the_memory_must_move(client):
    """Bytes for every level; the list is left out where they cannot be known."""
    made = make_fact(environment=make_environment(make_device(0, make_processor())))
    (param,) = form_of(*MATVEC).einsum.size_params
    fact, unknown = (
        replace(made, measurement=replace(made.measurement, sizes=sizes))
        for sizes in ({param.name: 10**6}, {"other": 10**6})
    )
    for one in (fact, unknown):
        store_of(client).add(one)
    page = get(client, f"/facts/{fact.id}")
    assert is_sound_page(page)
    shown = text_of(page)
    assert "Lower bounds" in shown
    n_bytes = " ".join(format_number(8 * (4 * 10**6 + 4 + 10**6)).split())
    assert f"DRAM{n_bytes} bytes" in shown
    assert "Lower bounds" not in text_of(get(client, f"/facts/{unknown.id}"))


def test_the_program_of_a_recipe_prints_its_code(reader):
    """What a fact's page offers to copy runs, and prints the code of the recipe."""
    page = get(reader, f"/facts/{LATEST.id}")
    (program,) = (e for e in page.iter("pre") if e.get("id") == "program")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "".join(program.itertext())],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "__kernel void" in done.stdout
    assert "64 * gid(0)" in done.stdout


def test_coverage_is_of_the_workloads_of_a_suite(client):
    """Each stands in the picture and in the table, with its best fact if it has one."""
    entry = read_suite("tccg")[0]
    form = canonicalize(generalize(entry.einsum())[0])
    facts = [
        replace(make_fact(median_s), workload=form.key, workload_text=form.text)
        for median_s in (1e-3, 2e-3)
    ]
    store_of(client).add_all(facts)
    page = get(client, "/coverage?suite=tccg")
    cells = [e.get("class") for e in page.find(".//ul[@class='cells']")]
    assert cells == ["faster"] + ["missing"] * 47
    (row,) = (r for r in rows_of(page) if "none" not in r)
    assert row[0].startswith(entry.name)
    assert row[2:] == ["10.0×", "2"]
    assert links(page, "/workloads/") == [f"/workloads/{form.key}"]
    page = get(client, f"/coverage?suite=tccg&device={make_device(9).id}")
    assert "0 of 48 workloads have facts on this device" in text_of(page)
    for suite in ("dgfem", "everyday"):
        assert is_sound_page(get(client, f"/coverage?suite={suite}"))
    get(client, "/coverage?suite=mine", 422)


def test_removed_pages_are_gone_and_say_where_the_list_is(client):
    """For one release; the lists themselves are under ``/v1``."""
    for path in ("/demand", "/retractions"):
        answer = client.get(path)
        assert answer.status_code == 410
        assert f"/v1{path}" in answer.json()["detail"]


def test_the_page_of_an_untrusted_fact_says_so(serve):
    """It is listed, until it is retracted."""
    client = serve()
    fact = make_fact()
    send(client, to_json(fact))
    path = f"/facts/{fact.id}"
    assert path in links(get(client, f"/workloads/{fact.workload}"), "/facts/")
    assert "No trusted key sent this fact" in text_of(get(client, path))
    store_of(client).receive(fact, "ci", is_trusted=True)
    assert "No trusted key" not in text_of(get(client, path))


def test_lists_have_all_pages(client, monkeypatch):
    """Following the link for more leads through everything once, in order."""
    for path, prefix in (
        ("/workloads", "/workloads/"),
        ("/workloads?q=ij,jk-%3Eik", "/workloads/"),
        ("/devices", "/devices/"),
    ):
        monkeypatch.setattr("feinsum.service.pages.routes.PER_PAGE", 2)
        facts = [
            make_fact(
                workload=("ij,jk->ik", {"i": "N", "j": 7, "k": 5 + n}),
                environment=make_environment(make_device(n)),
            )
            for n in range(5)
        ]
        store_of(client).add_all(facts)
        seen, following = [], path
        while following:
            page = get(client, following)
            seen += links(page, prefix)
            more = [a.get("href") for a in page.iter("a") if a.get("rel") == "next"]
            following = more[0] if more else None
        ids = [
            f.workload if prefix == "/workloads/" else f.environment.device.id
            for f in facts
        ]
        assert seen == [f"{prefix}{one}" for one in sorted(ids)]


def test_lists_show_dtypes(client):
    """Two workloads that differ only in their dtype look different on every list."""
    for dtype in ("float32", "float64"):
        subscripts = ("ij,j->i", {"i": "N", "j": 4}, dtype)
        store_of(client).add(make_fact(workload=subscripts))
    for path in ("/", "/workloads", "/workloads?q=ij,j"):
        page = text_of(get(client, path).find(".//main"))
        assert "float32" in page.replace("float32 complex128", "")
        assert page.count("float64") >= 1


def test_an_implausible_speedup_is_not_drawn(client):
    """What no kernel can do is said to be implausible, and no axis is made for it."""
    plain = make_fact()
    absurd = replace(plain.measurement, baseline_s=(plain.measurement.median_s * 1e17,))
    store_of(client).add_all([plain, replace(plain, measurement=absurd)])
    page = get(client, f"/workloads/{plain.workload}")
    assert "not plausible" in text_of(page)
    assert "not drawn" in text_of(page)
    ticks = [text_of(tick) for tick in page.iter("text")]
    assert not any("e+1" in tick for tick in ticks)


def test_many_recipes_are_cut_short_and_counted(client):
    """A page shows the best ones, and says how many there are more."""
    store_of(client).add_all([make_fact(1e-3 + n * 1e-4, block=n) for n in range(30)])
    page = get(client, f"/workloads/{KEY}")
    assert len(rows_of(page)) == 20
    assert "10 more recipes on this device are not shown." in text_of(page)


def test_a_text_that_is_no_einsum_is_shown_as_it_is(client):
    """A fact of another version is listed, without a formula and a graph."""
    record = replace(
        make_record(), workload="fe9-nauty2.8-unreadable", workload_text="a -> a | ?"
    )
    store_of(client).add(record)
    page = get(client, f"/workloads/{record.workload}")
    assert text_of(page.find(".//h1")) == record.workload_text
    assert "too large to draw" in text_of(page)


def test_files_are_kept_for_ever_and_named_by_content(client):
    """A file is immutable under its address, and no other file is there; the
    description of the REST interface has no page.
    """
    for name, media_type in MEDIA_TYPES.items():
        answer = client.get(f"/static/{name}")
        assert answer.headers["content-type"].startswith(media_type)
        assert "immutable" in answer.headers["cache-control"]
    for name in ("..%2fwords.py", "x.css", "%2e%2e"):
        assert client.get(f"/static/{name}").status_code == 404
    paths = client.get("/openapi.json").json()["paths"]
    assert not [p for p in paths if not p.startswith("/v1/") and p.count("/") > 1]
    assert "/" not in paths


def test_reading_takes_what_reading_of_v1_takes(serve):
    """Where reading needs a key, pages need it; a browser sends it as a password,
    unasked, so that it records and retracts nothing.
    """
    client = serve(anonymous_read=False, anonymous_record=False)
    html = {"Accept": "text/html"}
    answer = client.get("/", headers=html)
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert "Reading requires a key" in text_of(get(client, "/", 401))
    assert client.get("/static/pages.css").status_code == 200
    assert client.get("/", auth=("anybody", "nothing"), headers=html).status_code == 401
    for scope in ("read", "admin"):
        secret = key_for(client, scope)["Authorization"].removeprefix("Bearer ")
        with_key = client.get("/", auth=("anybody", secret), headers=html)
        assert with_key.status_code == 200
        assert with_key.headers["cache-control"].startswith("private")
        sent = client.delete(f"/v1/facts/{LATEST.id}?reason=x", auth=("ann", secret))
        assert (sent.status_code, sent.json()["code"]) == (401, "not-authenticated")
