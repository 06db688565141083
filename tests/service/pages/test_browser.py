"""Pages in a real browser: typing, keys, copying, both themes, no JavaScript."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from feinsum.db.server.serving import open_serving_store
from feinsum.records import to_json
from feinsum.service import make_key
from feinsum.tuning import TuningStart
from feinsum.tuning.report import LivePage
from tests.db.factories import make_device, make_environment
from tests.service.pages.conftest import fill
from tests.service.pages.facts import HOSTILE, MATMUL, MATVEC, form_of, make_fact
from tests.service.running import running
from tests.tune.test_report import PROBLEM, trial

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: make test-browser"
)

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        PROGRAM is None, reason="no Chromium is found: make test-browser installs it"
    ),
]

QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
"""Chromium asks nobody but the service."""

MATVEC_KEY, MATMUL_KEY = form_of(*MATVEC).key, form_of(*MATMUL).key
MATVEC_FACT = make_fact(
    1e-3, environment=make_environment(make_device(0), "7.0"), day=3
)
N_WORKLOADS = 60


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=PROGRAM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A service with more workloads than one page shows."""
    folder = tmp_path_factory.mktemp("browser")
    location = str(folder / "facts.sqlite")
    with open_serving_store(location) as store:
        fill(store)
        store.add(HOSTILE)
        store.add_all(
            make_fact(workload=("ijk->i", {"i": "N", "j": 2 + n, "k": 3}))
            for n in range(N_WORKLOADS)
        )
    with running(location, folder, rate_per_s=0) as server:
        yield server.url


@pytest.fixture
def opened(chromium, url):
    """Opens pages with some options; at the end nothing was refused or complained."""

    @contextmanager
    def open_page(path: str = "/", **options) -> Iterator:
        context = chromium.new_context(base_url=url, **options)
        page = context.new_page()
        troubles: list[str] = []
        page.on("console", lambda m: troubles.append(m.text))
        page.on("pageerror", lambda e: troubles.append(str(e)))
        page.on("dialog", lambda d: troubles.append(d.message))
        page.on(
            "request",
            lambda r: None if r.url.startswith(url) else troubles.append(r.url),
        )
        page.goto(path)
        yield page
        assert context.cookies() == []
        context.close()
        assert troubles == []

    return open_page


def test_typing_finds_without_a_key_more(opened):
    """What is typed is searched for at once; the address is that of the search."""
    with opened("/workloads") as page:
        page.get_by_label("Subscripts").press_sequentially("pq,q->p")
        page.get_by_text("1 workload with matching subscripts").wait_for()
        assert page.locator("#listed a").count() == 1
        assert page.locator("#listed a").get_attribute("href").endswith(MATVEC_KEY)
        page.wait_for_url("**/workloads?q=pq*")
        page.get_by_label("Sizes").press_sequentially("p=N,q=4")
        page.get_by_text("Found.").wait_for()
        page.reload()
        assert page.get_by_label("Subscripts").input_value() == "pq,q->p"
        assert page.get_by_text("Found.").is_visible()


def test_the_keyboard_alone_leads_to_a_fact(opened):
    """From the first page to a recipe, with keys; the focus can be seen throughout."""
    with opened() as page:
        page.keyboard.press("Tab")
        assert page.locator(":focus").inner_text() == "Skip to content"
        assert page.locator(":focus").bounding_box()["x"] >= 0
        page.keyboard.press("/")
        assert page.locator(":focus").get_attribute("name") == "q"
        page.keyboard.type("ab,b->a")
        page.keyboard.press("Enter")
        page.wait_for_url("**/workloads?q=*")
        page.keyboard.press("/")
        tab_to(page, f"/workloads/{MATVEC_KEY}")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/workloads/{MATVEC_KEY}")
        tab_to(page, f"/facts/{MATVEC_FACT.id}")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/facts/{MATVEC_FACT.id}")


def tab_to(page, path: str) -> None:
    """Press Tab until a link has the focus, which is drawn each time."""
    for _ in range(60):
        page.keyboard.press("Tab")
        focus = page.locator(":focus")
        drawn = focus.evaluate("e => getComputedStyle(e).outlineStyle")
        assert drawn != "none", focus.evaluate("e => e.outerHTML")
        if focus.get_attribute("href") == path:
            return
    raise AssertionError(f"no Tab leads to {path}")


def test_more_is_added_in_place(opened):
    """The link for more adds the next entries below, until there are no more."""
    with opened("/workloads") as page:
        assert page.locator("#listed > li").count() == 50
        page.get_by_role("link", name="More").click()
        page.locator("#listed > li").nth(N_WORKLOADS + 2).wait_for()
        assert page.locator("#listed > li").count() == N_WORKLOADS + 3
        assert page.get_by_role("link", name="More").count() == 0
        found = page.locator("#listed a").evaluate_all("all => all.map(a => a.href)")
        assert len(set(found)) == len(found)


def test_a_recipe_is_copied(opened):
    """The button copies the whole text, and says so."""
    allowed = ["clipboard-read", "clipboard-write"]
    with opened(f"/facts/{MATVEC_FACT.id}", permissions=allowed) as page:
        page.get_by_role("button", name="Copy the recipe").click()
        page.get_by_role("button", name="Copied the recipe").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == str(MATVEC_FACT.spec)


def test_everything_can_be_read_without_javascript(opened):
    """Search, pages of lists and charts work; what does not work is not shown."""
    with opened(java_script_enabled=False) as page:
        page.get_by_label("Subscripts").fill("ij,jk->ik")
        page.get_by_role("button", name="Search").click()
        page.wait_for_url("**/workloads?q=*")
        page.locator(f"a[href='/workloads/{MATMUL_KEY}']").click()
        assert page.get_by_role("img").count() >= 2
        assert page.locator("[data-copy]").first.is_hidden()
        page.goto("/workloads")
        page.get_by_role("link", name="More").click()
        page.wait_for_url("**cursor=*")
        assert page.locator("#listed > li").count() == N_WORKLOADS + 3 - 50


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1180, 390])
def test_pages_fit_in_both_themes(opened, scheme, width):
    """No page is wider than the window; paper and ink are those of the theme."""
    size = {"width": width, "height": 800}
    with opened(color_scheme=scheme, viewport=size) as page:
        for path in (
            "/",
            "/workloads?q=ijk->i",
            f"/workloads/{MATVEC_KEY}",
            f"/facts/{MATVEC_FACT.id}",
            f"/workloads/{HOSTILE.workload}",
            f"/facts/{HOSTILE.id}",
            f"/devices/{make_device(0).id}",
            "/devices",
            "/coverage",
            "/plans",
        ):
            page.goto(path)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, path
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            red = int(paper.removeprefix("rgb(").partition(",")[0])
            assert (red > 200) == (scheme == "light")
            assert len(page.screenshot()) > 5000


def test_markup_in_facts_runs_nothing(opened, url):
    """A hostile fact opens no dialog and breaks no rule of the page's policy."""
    assert "<script>" in to_json(HOSTILE)
    with opened() as page:
        for path in (f"/workloads/{HOSTILE.workload}", f"/facts/{HOSTILE.id}", "/"):
            page.goto(path)
            assert page.locator("main img").count() == 0
            assert page.get_by_text("<script>alert(1)").count() > 0


def test_a_browser_asks_for_the_key(chromium, tmp_path):
    """Where reading needs a key, it is the password; links and searches keep it."""
    location = str(tmp_path / "facts.sqlite")
    secret, key = make_key("ann", "read")
    with open_serving_store(location) as store:
        fill(store)
        store.add_key(key)
    with running(location, tmp_path, anonymous_read=False) as server:
        context = chromium.new_context(
            base_url=server.url,
            http_credentials={"username": "ann", "password": secret},
        )
        page = context.new_page()
        assert page.goto("/workloads").status == 200
        page.get_by_label("Subscripts").press_sequentially("pq,q->p")
        page.get_by_text("1 workload with matching subscripts").wait_for()
        context.close()
        assert secret not in server.log.read_text()


def test_a_running_tuning_is_followed(chromium):
    """A page opened before the first trial gets trials, figures and style."""
    start = TuningStart(
        PROBLEM, make_environment(), 9, tuple(map(trial, range(6))), None
    )
    page = chromium.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda e: troubles.append(str(e)))
    with LivePage() as live:
        page.goto(live.url)
        page.get_by_text("The tuning has not started yet.").wait_for()
        live.begin(start)
        page.get_by_text("6 of 9 trials").wait_for()
        assert page.get_by_alt_text("parallel coordinates of trials").is_visible()
        style = "getComputedStyle(document.querySelector('dl')).display"
        assert page.evaluate(style) == "grid"
    page.close()
    assert troubles == []
