"""The page for teams: a server, builds that read and a tuning node.

Each has a folder and an environment of its own, as containers would have them.
"""

from __future__ import annotations

import shlex
import shutil

import pytest

from feinsum.targets.host.compiler import find_compiler
from tests.deploy.walk import differences, forked_shell, sessions
from tests.service.running import running

SESSIONS = sessions("docs/how-to/team.md")


@pytest.fixture
def machine(tmp_path, monkeypatch, command_server):
    """Makes a machine: a folder that is its home, with its own cache and database."""
    for name in ("FEINSUM_DATABASE", "FEINSUM_EFFORT", "FEINSUM_VERIFY"):
        monkeypatch.delenv(name, raising=False)

    def make(name: str):
        home = tmp_path / name
        home.mkdir()
        return home, forked_shell(
            home,
            command_server,
            HOME=str(home),
            XDG_DATA_HOME=str(home / "data"),
            FEINSUM_CC=shlex.join(find_compiler().command),
            FEINSUM_CACHE_DIR=str(home / "cache"),
            FEINSUM_REMOTE_BUDGET_MS="60000",  # on a busy machine
        )

    return make


def test_a_build_gets_what_the_tuning_node_recorded(machine):
    """With the keys of the page: the first build misses, the next one has the fact."""
    server_home, server = machine("server")
    team = server_home / "team.sqlite"
    settings = {"anonymous_read": False, "demand_every_s": 0.1}
    make_keys = [
        s
        for s in SESSIONS["The keys"]
        if s.command.startswith(("feinsum db", "feinsum keys"))
    ]
    assert differences(make_keys, server_home, server) == []
    with running(str(team), server_home, **settings) as service:
        refused = [s for s in SESSIONS["The keys"] if "/v1/devices" in s.command]
        assert differences(refused, server_home, server, service.port) == []

        def walk(title: str, name: str, key: str) -> str:
            home, environment = machine(name)
            shutil.copy(server_home / key, home)
            environment |= {"FEINSUM_REMOTE_KEY": str(home / key)}
            steps = SESSIONS[title]
            assert differences(steps, home, environment, service.port) == []
            assert not [*home.rglob("facts.sqlite")]
            kernel = home / "kernel.c"
            return kernel.read_text() if kernel.exists() else ""

        walk("A build", "build-1", "ci.key")
        walk("A build cannot record", "build-2", "ci.key")
        walk("The tuning node", "node", "tuner.key")
        kernel = walk("The next build", "build-3", "ci.key")
        bearer = {
            "Authorization": f"Bearer {(server_home / 'ci.key').read_text().strip()}"
        }
        (fact, *_) = service.ask("GET", "/v1/facts", headers=bearer).json()["facts"]
        workload = fact["document"]["workload"]
        best = service.ask("GET", f"/v1/best/{workload}", headers=bearer)
        # on a busy machine the recipes that were tuned may be no faster
        assert ("Fit: exact" in kernel) == (best.status == 200)


def test_the_server_of_the_page_starts(machine):
    """With its keys, and as it is configured: only owners of keys read."""
    home, environment = machine("server")
    settings = home / "service.toml"
    settings.write_text("anonymous_read = false\n")
    environment |= {"FEINSUM_SERVE_SETTINGS": str(settings)}
    assert differences(SESSIONS["The keys"], home, environment) == []
