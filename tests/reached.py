"""A plugin of pytest, for ``make mutants``: which functions does each test call?

With ``--reached FILE`` the tests write there what they called of the code under test,
as far as they called it in their own process; with ``--only FILE`` those tests run that
the file names.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reached", type=Path)
    parser.addoption("--reached-in", action="append", default=[])
    parser.addoption("--only", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.reached:
        folders = tuple(map(os.path.abspath, config.option.reached_in))
        config.pluginmanager.register(Reached(config.option.reached, folders))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if config.option.only:
        wanted = frozenset(json.loads(config.option.only.read_text()))
        items[:] = [item for item in items if item.nodeid in wanted]


class Reached:
    """Notes the functions of some folders that each test calls."""

    def __init__(self, file: Path, folders: tuple[str, ...]) -> None:
        self._file, self._folders = file, folders
        self._tests: dict[str, list[tuple[str, int]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        called: dict[int, CodeType] = {}

        def note(frame: FrameType, event: str, arg: Any) -> None:
            if event == "call":
                called[id(frame.f_code)] = frame.f_code

        threading.setprofile(note)
        sys.setprofile(note)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            self._tests[item.nodeid] = [
                (os.path.relpath(code.co_filename), code.co_firstlineno)
                for code in called.values()
                if code.co_filename.startswith(self._folders)
            ]

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(self._tests))
