"""The Dockerfile, the compose file and the unit file hold what they promise."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement

from feinsum.service import Settings
from tests.deploy.files import DEPLOY, directives, instructions, tool
from tests.docs.pages import ROOT

PATIENCE_S = 120

LEFT_OUT = {*("archspec", "islpy", "loopy", "psutil", "pymbolic", "pytools")}
"""What a server does not need: the code generator and targets."""

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVER, DATABASE = COMPOSE["services"]["server"], COMPOSE["services"]["database"]
BUILD, FINAL = instructions()


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def values(stage: list[tuple[str, str]], name: str) -> list[str]:
    return [value for instruction, value in stage if instruction == name]


def check(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_finds_nothing() -> None:
    """The Dockerfile has no known mistake, and neither has the shell in it."""
    linter = tool("hadolint")
    assert linter
    check(linter, "--failure-threshold", "style", str(DEPLOY / "Dockerfile"))


def test_compose_fits_its_schema() -> None:
    """Every key of the compose file is one of the Compose Specification."""
    linter = tool("check-jsonschema")
    assert linter
    schema = ["--builtin-schema", "vendor.compose-spec"]
    check(linter, *schema, str(DEPLOY / "compose.yaml"))


def test_a_server_needs_the_project_but_for_what_compiles_and_tunes() -> None:
    """The list is that of pyproject.toml, with its bounds, and two of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {*project["dependencies"], *extras["service"], *extras["postgresql"]}
    lines = (DEPLOY / "requirements.txt").read_text().splitlines()[1:]
    assert lines == sorted(lines)
    assert set(lines) == {w for w in wanted if Requirement(w).name not in LEFT_OUT}


def test_the_image_is_small_and_harmless() -> None:
    """A slim image, beside what it is built in; no root, no compiler, no secret."""
    (base,), (again,) = values(BUILD, "FROM"), values(FINAL, "FROM")
    assert base == f"{again.replace('-slim', '')} AS build"
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", again)
    assert values(FINAL, "USER") == ["10001:10001"]
    assert values(FINAL, "COPY") == ["--from=build /opt/feinsum /opt/feinsum"]
    assert not values(BUILD, "ARG") + values(FINAL, "ARG")
    assert not re.search("(?i)password|secret|token", str(values(FINAL, "ENV")))
    pips = " ".join(values(BUILD, "RUN"))
    assert pips.count("--constraint constraints.txt --requirement requirements") == 1
    assert pips.count("pip install") == pips.count("--no-cache-dir") == 2
    assert pips.count("--no-deps .") == 1


def test_the_image_is_watched_by_its_readiness() -> None:
    """Health is what /readyz says, on the port that is exposed."""
    (health,) = values(FINAL, "HEALTHCHECK")
    assert f"http://127.0.0.1:{Settings().port}/readyz" in health
    assert values(FINAL, "EXPOSE") == [str(Settings().port)]


def test_everything_that_is_copied_reaches_the_engine_and_nothing_else() -> None:
    """The list of what is ignored lets through what the Dockerfile copies."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    let_through = {line[1:] for line in lines if line.startswith("!")}
    copied = {name for v in values(BUILD, "COPY") for name in v.split()[:-1]}
    assert {name.partition("/")[0] for name in copied} == let_through
    assert all((ROOT / name).exists() for name in copied)
    assert "**/secrets" in lines


def test_compose_builds_that_image() -> None:
    """The paths of the build are those of the Dockerfile."""
    context = (DEPLOY / SERVER["build"]["context"]).resolve()
    assert context == ROOT
    assert (context / SERVER["build"]["dockerfile"]) == DEPLOY / "Dockerfile"


def test_compose_keeps_secrets_in_files() -> None:
    """Passwords are in files that git ignores, and in no variable."""
    texts = [*SERVER["environment"].values(), *DATABASE["environment"].values()]
    assert not [t for t in texts if re.search(r"://[^/@]*:[^/@]*@", t)]
    assert DATABASE["environment"]["POSTGRES_PASSWORD_FILE"] == "/run/secrets/password"
    assert SERVER["environment"]["PGSERVICEFILE"] == "/run/secrets/pg_service"
    named = {name for one in (SERVER, DATABASE) for name in one["secrets"]}
    assert named == set(COMPOSE["secrets"])
    for secret in COMPOSE["secrets"].values():
        assert secret["file"].startswith("./secrets/")
    assert "service/deploy/secrets/" in (ROOT / ".gitignore").read_text().split()


def test_compose_waits_for_the_database_and_keeps_it() -> None:
    """The server starts on a database that answers; its files are in a volume."""
    assert SERVER["depends_on"]["database"]["condition"] == "service_healthy"
    assert "pg_isready" in DATABASE["healthcheck"]["test"]
    (volume,) = DATABASE["volumes"]
    assert volume.partition(":")[0] in COMPOSE["volumes"]


def test_compose_opens_the_service_to_this_machine_alone() -> None:
    """The port is open on the loopback, the database has none, nobody has rights."""
    assert SERVER["ports"] == [f"127.0.0.1:{Settings().port}:{Settings().port}"]
    assert "ports" not in DATABASE
    assert SERVER["cap_drop"] == ["ALL"]
    assert SERVER["read_only"]
    assert "no-new-privileges:true" in SERVER["security_opt"]


def test_compose_believes_the_proxy_of_the_host() -> None:
    """The trusted address is that from which the host's requests come."""
    (config,) = COMPOSE["networks"]["default"]["ipam"]["config"]
    command = SERVER["command"]
    trusted = command[command.index("--trusted-proxies") + 1]
    assert trusted == config["gateway"]


def test_there_is_time_for_a_graceful_end() -> None:
    """Nobody kills the service before requests under way had their time."""
    grace_s = Settings().shutdown_s
    assert seconds(SERVER["stop_grace_period"]) > grace_s
    assert int(directives("Service")["TimeoutStopSec"][0]) > grace_s
    assert values(FINAL, "STOPSIGNAL") == ["SIGTERM"]


def test_settings_of_the_files_exist() -> None:
    """Each variable that a file sets is one that the service reads."""
    known = {f"FEINSUM_SERVE_{name.upper()}" for name in Settings.model_fields}
    for path in DEPLOY.iterdir():
        named = set(re.findall(r"FEINSUM_[A-Z_]+(?=[=:])", path.read_text()))
        assert named <= known | {"FEINSUM_DATABASE"}, path


def test_the_unit_is_restricted() -> None:
    """What the service does not need it cannot do."""
    service = directives("Service")
    assert service["User"] == ["feinsum"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["CapabilityBoundingSet"] == [""]
    assert service["Restart"] == ["on-failure"]
    assert "@system-service" in service["SystemCallFilter"]
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome"):
        assert service[name] == ["yes"]


@pytest.mark.skipif(not tool("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path) -> None:
    """It is well formed, and systemd finds its exposure low."""
    analyze = tool("systemd-analyze")
    assert analyze
    text = (DEPLOY / "feinsum.service").read_text()
    program = "/opt/feinsum/bin/feinsum"
    assert text.count(program) == 1
    unit = tmp_path / "feinsum.service"
    unit.write_text(text.replace(program, "/bin/true"))
    check(analyze, "verify", "--man=no", str(unit))
    security = ["security", "--offline=true", "--threshold=15", "--no-pager"]
    check(analyze, *security, str(unit))
