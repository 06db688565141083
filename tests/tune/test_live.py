"""A tuning on a page while it runs."""

from __future__ import annotations

from html import escape
from threading import Timer
from urllib.request import urlopen

import pytest

from feinsum import autotune
from feinsum.records import InMemoryStore
from feinsum.tuning import TuningStart, make_problem
from feinsum.tuning.progress import both
from feinsum.tuning.report import LivePage
from tests.db.factories import make_environment
from tests.tune.odd_transforms import odd_einsum


def read(page):
    with urlopen(page.url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/html")
        return answer.read().decode()


def test_the_page_has_every_trial_once_it_is_made():
    """While the tuning runs; at the end, the finalists stand there as well."""
    seen = []
    with LivePage() as page:
        assert "not started" in read(page)
        report = autotune(
            odd_einsum(),
            sizes={"N": 64},
            database=InMemoryStore(),
            n_trials=2,
            strategy="random",
            on_start=page.begin,
            on_progress=both(page.show, lambda _: seen.append(read(page))),
            on_final=page.final,
        )
        last = read(page)
    recipes = [escape(str(trial.spec)) for trial in report.trials]
    for k, text in enumerate(seen, start=1):
        assert f"{k} of 2 trials" in text
        assert [recipe in text for recipe in recipes] == [True] * k + [False] * (2 - k)
    assert "<dd>done</dd>" in last
    finalist = escape(str(report.finalists[0].spec))
    assert finalist in last.partition("<h2>Finalists</h2>")[2].partition("<h2>")[0]
    with pytest.raises(OSError, match="refused"):
        read(page)


def test_a_browser_gets_the_last_page():
    """The end waits for who read an earlier page, and fetches it again for a while."""
    problem = make_problem(odd_einsum(), {"N": 64})
    last = []
    with LivePage() as page:
        page.begin(TuningStart(problem, make_environment(), 2, (), None))
        assert "0 of 2 trials" in read(page)
        page.final([])
        browser = Timer(0.2, lambda: last.append(read(page)))
        browser.start()
    browser.join()
    assert "<dd>done</dd>" in last[0]
