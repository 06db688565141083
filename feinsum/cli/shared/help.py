"""Help that fits one screen: the usual options of a command, commands in groups.

$ feinsum tune --help       # a dozen options, and the names of the others
$ feinsum tune --help-all   # every option
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

SHOWS_ALL = "feinsum.help_all"
"""Set in a context whose help has every option."""


def _print_whole_help(context: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        context.meta[SHOWS_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--help-all",
        is_eager=True,
        expose_value=False,
        callback=_print_whole_help,
        help="Show every option.",
    ),
]
"""Declared by a command that has rare options."""


class _ShortHelpCommand(TyperCommand):
    """A command whose help names its rare options without describing them."""

    rare_options: ClassVar[frozenset[str]] = frozenset()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        hidden = frozenset() if ctx.meta.get(SHOWS_ALL) else self.rare_options
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            records = [
                parameter.get_help_record(ctx)
                for parameter in self.get_params(ctx)
                if parameter.param_type_name == kind
                and hidden.isdisjoint(parameter.opts)
            ]
            if shown := [record for record in records if record is not None]:
                with formatter.section(title):
                    formatter.write_dl(shown)
        if hidden:
            with formatter.section("Rare options"):
                formatter.write_text(", ".join(sorted(hidden)))


def make_short_help_class(*rare_options: str) -> type[TyperCommand]:
    """Return the class of a command whose help leaves out these options."""
    attributes = {"rare_options": frozenset(rare_options)}
    return type("ShortHelpCommand", (_ShortHelpCommand,), attributes)


class GroupedCommands(TyperGroup):
    """A program whose help groups its commands by task."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(len(name) for names in self.sections.values() for name in names)
        for title, names in self.sections.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width))
                for name, command in commands.items()
                if command is not None
            ]
            with formatter.section(title):
                formatter.write_dl(rows)
