"""A tuning on a page while it runs."""

from __future__ import annotations

from html import escape
from urllib.request import urlopen

import pytest

from feinsum import autotune
from feinsum.records import InMemoryStore
from feinsum.tune.live import LivePage
from feinsum.tune.progress import both
from tests.tune.odd_transforms import odd_einsum


def read(page):
    with urlopen(page.url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/html")
        return answer.read().decode()


def test_the_page_has_every_trial_once_it_is_made():
    """While the tuning runs; at the end, the finalists stand there as well."""
    seen = []
    with LivePage() as page:
        assert "not begun" in read(page)
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
