"""What is shipped for running the service, read."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from dockerfile_parse import DockerfileParser

from tests.docs.pages import ROOT

__all__ = ["DEPLOY", "directives", "instructions", "tool"]

DEPLOY = ROOT / "service" / "deploy"


def tool(name: str) -> str | None:
    """The path of a program, that of this environment first."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(
        name
    )


def instructions() -> list[list[tuple[str, str]]]:
    """The instructions of the Dockerfile, stage by stage, as names and values."""
    parser = DockerfileParser(str(DEPLOY / "Dockerfile"), cache_content=True)
    stages: list[list[tuple[str, str]]] = []
    for one in parser.structure:
        if one["instruction"] == "FROM":
            stages.append([])
        if one["instruction"] != "COMMENT":
            stages[-1].append((one["instruction"], one["value"]))
    return stages


def directives(section: str) -> dict[str, list[str]]:
    """The directives of a section of the unit file; each may stand more than once."""
    found: dict[str, list[str]] = {}
    inside = ""
    for line in (DEPLOY / "feinsum.service").read_text().splitlines():
        if line.startswith("["):
            inside = line.strip("[]")
        elif "=" in line and not line.startswith("#") and inside == section:
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found
