"""Help: complete, with examples, and quick."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version

import typer

import feinsum
from feinsum.cli import app


def commands():
    """Every command and group as the words that call it, and the command."""
    todo = [((), typer.main.get_command(app))]
    while todo:
        words, command = todo.pop()
        yield words, command
        inner = getattr(command, "commands", {})
        todo += [((*words, name), child) for name, child in inner.items()]


ALL = sorted(commands(), key=lambda item: item[0])
NAMES = [" ".join(words) or "feinsum" for words, _ in ALL]


def test_the_commands_are_those_documented():
    """The program has these commands and no others."""
    assert ", ".join(NAMES) == (
        "feinsum, bound, cache, cache clear, cache info, canonicalize, "
        "db, db backup, db diff, db export, db gc, db import, db init, db merge, "
        "db migrate, db retract, db stats, demand, demand clear, demand list, "
        "devices, doctor, explain, export-c, "
        "keys, keys create, keys distrust, keys list, keys revoke, keys trust, "
        "plan, query, roofline, serve, show, "
        "signing, signing create, signing show, transforms, tune"
    )


def test_an_option_of_several_commands_is_one_option():
    """The same name has the same meaning everywhere: text, metavar, default.

    Only ``--measure`` has two, since what is measured is what the command shows,
    ``--effort``: a tuning measures,
    ``--limit``: of demands it is few, ``--workload``: a demand may be of any key,
    ``--memory``: of a bound one that is fast, ``--size``: a plan has none by default,
    ``--database``: a plan is chosen by counts alone where none is named, and
    ``--suite``: several are tuned, or a file.
    """
    said = {}
    for _, command in ALL:
        for parameter in command.params:
            name = parameter.opts[0]
            told = parameter.help, parameter.metavar, parameter.default
            if name.startswith("--"):
                said.setdefault(name, set()).add(told)
    assert {name for name, texts in said.items() if len(texts) > 1} == {
        "--database",
        "--limit",
        "--measure",
        "--memory",
        "--suite",
        "--size",
        "--effort",
        "--workload",
    }


def test_the_help_of_the_program_fits_one_screen(run):
    """Every command is there, in groups, on one line that is not cut off."""
    lines = run("--help").stdout.splitlines()
    assert len(lines) <= 42
    top = typer.main.get_command(app).commands
    shown = [
        line.split()[0] for line in lines if line.startswith("  ") and line.strip()
    ]
    for name, command in top.items():
        assert shown.count(name) == (not command.hidden), name
    assert not [line for line in lines[1:] if line.endswith("...")]


def test_help_has_a_description_an_example_and_a_dozen_options(run):
    """``--help`` says what a command does, shows a line that calls it, and names the
    rare options, all of which ``--help-all`` describes. Every command, though not a
    group of commands, has ``--json``.
    """
    for words, command in ALL:
        result = run(*words, "--help")
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert lines[2].strip().endswith("."), words
        assert max(map(len, lines)) <= 80
        headings = [line.strip() in ("Example:", "Examples:") for line in lines]
        called = "    " + " ".join(("feinsum", *words))
        assert any(called in line for line in lines[headings.index(True) + 1 :]), words
        options = [p.opts[-1] for p in command.params if p.opts[0].startswith("-")]
        assert "--json" in options or hasattr(command, "commands"), words
        assert not [option for option in options if option not in result.stdout]
        usual = result.stdout.partition("Rare options:")[0]
        assert len(re.findall(r"^  -", usual, re.MULTILINE)) <= 13
        if "--help-all" in options:
            whole = run(*words, "--help-all").stdout
            assert set(options) <= set(re.findall(r"(?m)^  (--[a-z-]+)", whole))


def test_no_command_means_help(run):
    """The bare program shows its help, and that is no success."""
    result = run()
    assert result.exit_code == 2
    assert result.stdout == run("--help").stdout


def test_version(run) -> None:
    """``--version`` prints the installed one; ``python -m feinsum`` is the command."""
    command = [sys.executable, "-m", "feinsum", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").stdout == f"feinsum {version('feinsum')}\n"
    assert feinsum.__version__ == version("feinsum")


def test_shells_complete_commands() -> None:
    """Bash asks the program for what may follow, and is told how to ask."""
    command = [sys.executable, "-m", "feinsum"]
    asked = {"COMP_WORDS": "feinsum trans", "COMP_CWORD": "1"}
    variable = f"_{'feinsum'.upper()}_COMPLETE"
    env = os.environ | asked | {variable: "complete_bash"}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["transforms"]
    script = os.environ | {variable: "source_bash"}
    told = subprocess.run(
        command, env=script, capture_output=True, text=True, check=True
    )
    assert "-F _feinsum_completion feinsum" in told.stdout


def test_light_commands_import_nothing_heavy():
    """The help of the program needs neither numpy nor pydantic; that of a command and
    canonical forms need neither Loopy nor OpenCL nor SQL.
    """
    code = (
        "import sys\n"
        "from feinsum.cli import main\n"
        "heavy = {'loopy', 'pyopencl', 'sqlalchemy', 'optuna'}\n"
        "light = {'--help': heavy | {'numpy', 'pydantic'}, 'tune --help': heavy,\n"
        "         'canonicalize ij->i --sizes i=2,j=3': heavy}\n"
        "for words, spared in light.items():\n"
        "    sys.argv[1:] = words.split()\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, end.code\n"
        "    if imported := spared & set(sys.modules):\n"
        "        sys.exit(f'{words} imported {imported}')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage:") == 2
