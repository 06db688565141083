"""No request without a key takes much of a worker, whatever it asks of what route."""

from __future__ import annotations

import pytest

from benchmarks.anonymous import DESCRIPTION, fill, list_probes, send
from feinsum.db.server.serving import open_serving_store
from feinsum.service.app import ROUTERS
from tests.hostile.live import Live
from tests.service.running import running

MEMORY = 50 * 2**20
"""The most that all of them together may add to the memory of a worker."""

REFUSED = {"{} …", "[] …", "1 …", '"" …', '"k-1" …', "[ …", "rows", "extents"}


@pytest.fixture(scope="module")
def every():
    """All requests; the plan among their answers takes seconds."""
    return list(list_probes())


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A service that keeps no answers, over much that is large."""
    folder = tmp_path_factory.mktemp("anonymous")
    database = str(folder / "facts.sqlite")
    with open_serving_store(database) as store:
        fill(store, n_busy=10)
    with running(database, folder, rate_per_s=0, cache_mb=0) as server:
        yield Live(server, database)


def test_every_route_is_asked(every):
    """By every method that it has, whether it needs a key or not; the description of
    the service, too.
    """
    routes = {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        for method in route.methods
        if method != "HEAD"  # is answered as GET
    }
    found = {(probe.method, probe.route) for probe in every}
    odd = {(method, path) for method, path in found if method in ("HEAD", "PUT")}
    assert found - odd == {*routes, ("GET", DESCRIPTION)}


def test_no_request_takes_much_memory(live, every):
    """Not even all of them, one after the other."""
    small = [probe for probe in every if probe.name in ("one", "page")]
    for probe in small:  # what is imported once is not of one request
        assert send(probe, live.server.port)[0] == 200, probe
    before = live.most_memory()
    for probe in every:
        status, n_bytes = send(probe, live.server.port)
        assert status in (200, 401, 404, 405, 413, 422), probe
        assert n_bytes < 13 * 10**6
        assert live.most_memory() - before < MEMORY, probe


def test_very_many_values_need_a_key(live, every):
    """A megabyte of short values is refused before it is read as JSON."""
    for probe in [p for p in every if p.name in REFUSED]:
        assert send(probe, live.server.port)[0] == 413
