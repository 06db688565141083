"""Reading the documentation: pages, sections, fenced blocks, table rows."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

__all__ = ["DOCS", "ROOT", "fenced", "files", "page", "prose", "section", "terms"]

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```([\w{}-]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BUILT = {"_build", "build", "dist"}


def files(*suffixes: str) -> list[Path]:
    """The files of the project with these suffixes: not what is hidden or built."""
    return [path for path in _files() if path.suffix in suffixes]


@cache
def _files() -> list[Path]:
    found = []
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if _is_ours(name)]
        found += [Path(folder, name) for name in names if _is_ours(name)]
    return sorted(found)


def _is_ours(name: str) -> bool:
    return not name.startswith(".") and name not in _BUILT


DOCS = [path for path in files(".md") if "docs" in path.parts or path.parent == ROOT]


def page(name: str) -> str:
    """The text of a page, by its path from the root."""
    return (ROOT / name).read_text()


def fenced(text: str, language: str) -> list[str]:
    """The contents of all fenced blocks of a language."""
    return [body for name, body in _FENCE.findall(text) if name == language]


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", text)


def section(name: str, heading: str) -> str:
    """A section of a page, from its heading to the next one of its level or above."""
    text = _FENCE.sub(lambda block: block[0].replace("#", "·"), page(name))
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found is not None, f"{name} has no section {heading!r}"
    rest = text[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def terms(text: str) -> set[str]:
    """The first cell of every row of the tables in a text, without backquotes.

    A cell such as ```a`, `b``` has several terms.
    """
    cells = re.findall(r"^\| *([^|]*[^| ]) *\|", prose(text), re.MULTILINE)
    return {term.strip("`") for cell in cells for term in cell.split("`, `")}
