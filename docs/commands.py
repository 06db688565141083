"""The directive ``commands`` of docs/reference/cli.md: the help of every command.

It reads the parser of the command line, so the page has what ``--help`` prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from feinsum.cli import app
from feinsum.cli.shared.help import SHOWS_ALL

WIDTH = 80


def list_help() -> Iterator[tuple[str, str]]:
    """The words that call each command, groups left out, and what its help prints."""
    todo: list[tuple[str, Any]] = [("feinsum", typer.main.get_command(app))]
    while todo:
        words, command = todo.pop(0)
        children = getattr(command, "commands", None)
        if children is None:
            with command.make_context(
                words, [], resilient_parsing=True, terminal_width=WIDTH
            ) as context:
                context.meta[SHOWS_ALL] = True
                yield words, command.get_help(context)
            continue
        todo = [(f"{words} {name}", child) for name, child in children.items()] + todo


class Commands(SphinxDirective):
    """The help of all commands, each below its name."""

    def run(self) -> list[nodes.Node]:
        shown: list[nodes.Node] = []
        for words, text in list_help():
            shown.append(nodes.rubric("", "", nodes.literal("", words)))
            shown.append(nodes.literal_block(text, text, language="text"))
        return shown


def setup(sphinx: Sphinx) -> dict[str, bool]:
    sphinx.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
