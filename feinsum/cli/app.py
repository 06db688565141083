"""The commands of the program ``feinsum``, and how every failure ends.

Neither this module nor those of the commands import what a command needs to run; each
imports that when it is called, so that ``feinsum --help`` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any, ClassVar, NoReturn

import typer
from typer.core import TyperGroup

from feinsum.cli import (
    bound,
    cache,
    canonicalize,
    db,
    demand,
    devices,
    doctor,
    explain,
    export_c,
    keys,
    plan,
    roofline,
    serve,
    show,
    signing,
    transforms,
    tune,
)
from feinsum.cli.shared.failure import (
    report_bug,
    report_failure,
    report_new_files,
)
from feinsum.cli.shared.help import GroupedCommands, make_short_help_class
from feinsum.errors import FeinsumError

Command = Callable[..., None]

COMMANDS: dict[str, tuple[Command, str]] = {
    "canonicalize": (canonicalize.canonicalize, canonicalize.EXAMPLES),
    "bound": (bound.bound, bound.EXAMPLES),
    "plan": (plan.plan, plan.EXAMPLES),
    "query": (explain.query, explain.QUERY_EXAMPLES),
    "tune": (tune.tune, tune.EXAMPLES),
    "explain": (explain.explain, explain.EXAMPLES),
    "show": (show.show, show.EXAMPLES),
    "export-c": (export_c.export_c, export_c.EXAMPLES),
    "transforms": (transforms.transforms, transforms.EXAMPLES),
    "devices": (devices.devices, devices.EXAMPLES),
    "doctor": (doctor.doctor, doctor.EXAMPLES),
    "roofline": (roofline.roofline, roofline.EXAMPLES),
    "serve": (serve.serve, serve.EXAMPLES),
}
"""Every command except the groups: its function, and examples for its help."""

ALIASES = frozenset({"query"})
"""Commands that stay for scripts; ``explain`` does the same."""


RARE_OPTIONS = {
    "tune": (
        "--operands",
        "--rows",
        "--dtype",
        "--sparse",
        "--plan",
        "--from-misses",
        "--workloads",
        "--strategy",
        "--trial-limit",
        "--scheduler",
        "--live",
    ),
    "explain": ("--operands", "--rows", "--program"),
    "plan": ("--operands", "--dtype", "--picture", "--after"),
    "roofline": ("--operands", "--rows", "--max-gflop"),
}
"""Options that the help of a command names and ``--help-all`` describes."""


class ReportingGroup(TyperGroup):
    """Ends every failure with one line and an exit code."""

    def main(
        self, args: Sequence[str] | None = None, *arguments: Any, **options: Any
    ) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        # Typer would print errors itself, and exit
        options["standalone_mode"] = False
        try:
            with report_new_files():
                code = super().main(words, *arguments, **options)
        except (FeinsumError, typer.TyperException) as error:
            # the options may not have been parsed, so check the words
            code = report_failure(error, is_json="--json" in words)
        except Exception as error:  # noqa: BLE001  # the last net, for our own bugs
            code = report_bug(
                error, is_json="--json" in words, has_traceback="--debug" in words
            )
        sys.exit(code or 0)


class ProgramGroup(ReportingGroup, GroupedCommands):
    """The command ``feinsum``, whose help groups its commands."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {
        "Make an einsum or a kernel fast": ("tune", "explain", "show", "export-c"),
        "Study an einsum": (
            "canonicalize",
            "bound",
            "roofline",
            "transforms",
            "plan",
        ),
        "Check this machine": ("doctor", "devices", "cache"),
        "Share facts": ("db", "signing", "serve", "keys", "demand"),
    }


app = typer.Typer(
    name="feinsum",
    cls=ProgramGroup,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"feinsum {version('feinsum')}")
        raise typer.Exit


@app.callback(
    epilog="""\b
Examples:
  feinsum tune "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=20,j=20
  feinsum explain "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=20,j=20
"""
)
def feinsum(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
    has_traceback: Annotated[
        bool,
        typer.Option("--debug", help="Print the traceback of an internal error."),
    ] = False,
) -> None:
    """Find, record and reuse the fastest kernels of batched einsums."""
    # help without a request for it is a usage error
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


for _name, (_command, _examples) in COMMANDS.items():
    app.command(
        _name,
        cls=make_short_help_class(*RARE_OPTIONS.get(_name, ())),
        epilog=_examples,
        hidden=_name in ALIASES,
    )(_command)
app.add_typer(db.app, name="db")
app.add_typer(cache.app, name="cache")
app.add_typer(demand.app, name="demand")
app.add_typer(keys.app, name="keys")
app.add_typer(signing.app, name="signing")


def main() -> None:
    """Run the program ``feinsum``."""
    app(prog_name="feinsum")
