"""Completeness: whatever a user can meet is documented, and nothing else is."""

from __future__ import annotations

import re
import runpy
import tomllib

import pytest
import typer
import yaml

import feinsum
from feinsum import distributed, errors, nests, programs, sparse
from feinsum.canonical import canonicalize
from feinsum.cli import app
from feinsum.cli.shared import failure
from feinsum.ir import RULES, array, einsum, sparse_array
from feinsum.ir.program import RULES as PROGRAM_RULES
from feinsum.records import CODES
from feinsum.service.settings import Settings
from feinsum.transforms import REGISTRY, primitives
from tests.docs.codes import (
    deprecated,
    invalid_einsum_rules,
    plan_rules,
    program_rules,
    refusal_rules,
    settings,
    sparse_rules,
)
from tests.docs.pages import DOCS, ROOT, page, prose, section, terms

N = "N"
SAMPLES = [
    canonicalize(example).einsum
    for example in (
        einsum("xre,rij,ej->xei", array("J", (3, 3, N)), array("D", (3, 20, 20)),
               array("u", (N, 20))),
        einsum("ij,jk->ik", array("A", (N, 64)), array("B", (64, 80))),
        einsum("ij,jk,kl->il", *[array(name, (64, 64)) for name in "ABC"]),
        einsum("ij,j->i", array("A", (N, 4)), array("x", 4)),
        einsum("ij->i", array("A", (N, 4))),
        einsum("i,i->i", array("x", N), array("y", N)),
        einsum("ij->ji", array("A", (N, 200))),
        einsum("ij->", array("A", (300, 301))),
        einsum("ij,jk->ik", sparse_array("T", (N, N)), array("B", (N, 80))),
    )
]  # fmt: skip


def kinds_of_errors():
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.FeinsumError)
    ]


def commands():
    """Every command and group: the words that call it, and itself."""
    todo = [(("feinsum",), typer.main.get_command(app))]
    while todo:
        words, command = todo.pop()
        yield " ".join(words), command
        inner = getattr(command, "commands", {})
        todo += [((*words, name), child) for name, child in inner.items()]


def options(command):
    return {word for p in command.params for word in p.opts if word.startswith("-")}


COMMANDS = sorted(commands())
CALLS = [words for words, _ in COMMANDS]
RUNNABLE = [w for w, command in COMMANDS if not hasattr(command, "commands")]
HELP = runpy.run_path(str(ROOT / "docs" / "commands.py"))["list_help"]
NEWEST = [REGISTRY[version] for version in dict(sorted(REGISTRY)).items()]
OURS = [t for t in NEWEST if t.apply.__module__.startswith("feinsum.")]


def test_every_public_name_is_documented():
    """The page lists each name; the site adds the first sentence of its docstring."""
    text = page("docs/reference/api.md")
    assert set(feinsum.__all__) <= set(re.findall(r"(?m)^   feinsum\.(\w+)$", text))
    for name in feinsum.__all__:
        first_line = (getattr(feinsum, name).__doc__ or "").partition("\n")[0]
        assert first_line.endswith("."), name


def test_the_glossary_is_short_and_every_term_has_a_source():
    """At most 60 terms, each in one row."""
    text = prose(page("docs/reference/glossary.md"))
    rows = re.findall(r"^\| (`.*?) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    words = [word for cell, _, _ in rows for word in re.findall(r"`([^`]+)`", cell)]
    assert len(words) == len(set(words)) <= 60
    assert all(meaning.strip() and source.strip() for _, meaning, source in rows)


def test_every_error_code_stands_beside_its_class_and_has_a_cure():
    """The table is the tree of errors, and says more than to read the message."""
    table = section("docs/reference/errors.md", "Codes")
    row = r"^\| `([a-z-]+)` \| `(\w+)` \|.*\| (.+) \|$"
    rows = re.findall(row, table, re.MULTILINE)
    assert terms(table) - {"code", "---"} == {code for code, _, _ in rows}
    assert {(code, name) for code, name, _ in rows} == {
        (kind.code, kind.__name__) for kind in kinds_of_errors()
    }
    assert not [code for code, _, cure in rows if cure == "read the message"]


TABLES = [
    (
        ("errors", "Rules of a well-formed einsum", "rule"),
        lambda: RULES.keys() | invalid_einsum_rules(),
    ),
    (("errors", "What is not plausible", "finding"), lambda: set(CODES)),
    (("sparse", "Rules", "rule"), sparse_rules),
    (("plans", "Rules", "rule"), plan_rules),
    (("programs", "Rules", "rule"), lambda: PROGRAM_RULES.keys() | program_rules()),
    (
        ("cli", "Exit codes", "code"),
        lambda: {
            str(code)
            for code in (
                *(failure.FAILED, failure.USAGE),
                *(failure.NO_FACT, failure.INTERRUPTED, 0),
            )
        },
    ),
    (("transforms", "Primitives", "primitive"), lambda: set(primitives.__all__)),
    (("../explanation/raising", "Rules", "code"), refusal_rules),
]
"""The page, its section, the heading of the first column, and all entries of it."""


@pytest.mark.parametrize(("table", "known"), TABLES, ids=[t[0][1] for t in TABLES])
def test_a_table_lists_all_that_exists_and_nothing_else(table, known):
    """Rules, codes, settings and primitives are those of the code."""
    name, heading, column = table
    text = section(f"docs/reference/{name}.md", heading)
    assert terms(text) - {column, "---"} == known()


def test_the_source_has_the_refusal_rules_that_are_known():
    """The search for codes finds them however they are handed over."""
    known = {"domain", "loopy", "race", "nested-reduction", "target"}
    assert known <= refusal_rules()


@pytest.mark.parametrize(
    ("room", "name"),
    [
        (distributed, "plans"),
        (programs, "programs"),
        (nests, "sparse"),
        (sparse, "sparse"),
    ],
    ids=lambda room: getattr(room, "__name__", room),
)
def test_every_name_of_a_package_is_on_its_page(room, name):
    """The page names all that one can import."""
    text = page(f"docs/reference/{name}.md")
    assert not [name for name in room.__all__ if f"`{name}`" not in text]


def test_every_setting_is_documented_and_no_other():
    """The table has every environment variable that the code names."""
    documented = terms(page("docs/reference/settings.md"))
    variables = {term for term in documented if term.startswith("FEINSUM_")}
    assert variables == settings()


def test_every_setting_of_the_file_of_the_service_is_documented_and_no_other():
    """The table of the file has all."""
    text = section("docs/reference/settings.md", "The service")
    documented = terms(text) - {"setting", "---"}
    assert documented - settings() == Settings.model_fields.keys()


def test_no_page_names_a_setting_that_does_not_exist():
    """Every variable that a page mentions is read; the changelog has removed ones."""
    known = settings() | deprecated() | {"FEINSUM_SERVE_"}
    for path in DOCS:
        if path.name != "CHANGELOG.md":
            named = set(re.findall(r"FEINSUM_[A-Z_]+", path.read_text()))
            assert named <= known, path


def test_the_site_prints_the_help_of_every_command():
    """With what each option does; but not of the groups, whose commands it has."""
    printed = dict(HELP())
    assert sorted(printed) == sorted(RUNNABLE)
    assert "```{commands}\n```" in page("docs/reference/cli.md")
    for words, command in COMMANDS:
        assert command.help, words
        for parameter in command.params:
            assert parameter.help or "--help" in parameter.opts, parameter.name
            if words in printed and parameter.param_type_name == "option":
                assert parameter.opts[0] in printed[words], words


def test_sections_about_commands_name_commands_and_options_that_exist():
    """What a section says beyond the help is about that command."""
    text = page("docs/reference/cli.md")
    known = dict(COMMANDS)
    for words in re.findall(r"^### `(.*)`$", text, re.MULTILINE):
        used = re.findall(
            r"`(--[a-z-]+)", section("docs/reference/cli.md", f"`{words}`")
        )
        assert set(used) <= options(known[words]), words


def test_the_table_of_commands_has_all_of_them_and_no_other():
    """It names every command, though not the groups."""
    text = section("docs/reference/cli.md", "Commands")
    assert sorted(re.findall(r"`(feinsum [^`]*)`", text)) == sorted(RUNNABLE)


def test_examples_call_commands_and_options_that_exist():
    """Every line of a page that begins with ``$ feinsum`` can be called."""
    known, pages = dict(COMMANDS), "\n".join(path.read_text() for path in DOCS)
    for line in re.findall(r"^\$ (feinsum .*)$", pages, re.MULTILINE):
        words = max((w for w in CALLS if line.startswith(w)), key=len)
        used = set(re.findall(r" (--[a-z-]+)", line))
        assert used <= options(known[words]), line
        assert words != "feinsum" or used, line


def test_every_transform_and_parameter_is_documented_and_no_other():
    """A family has a section with the names of its parameters, in a table or a line."""
    name = "docs/reference/transforms.md"
    headed = re.findall(r"(?m)^### (.*)$", section(name, "Families"))
    assert sorted(headed) == sorted(f"{t.name}@{t.version}" for t in OURS)
    for transform in OURS:
        text = section(name, f"{transform.name}@{transform.version}")
        fitting = [sample for sample in SAMPLES if transform.fits(sample)]
        assert fitting, f"{transform.name} fits no sample; add one here"
        line = "".join(re.findall(r"^Parameters: .*$", text, re.MULTILINE))
        named = terms(text) - {"parameter", "---"} | set(re.findall(r"`(\w+)`", line))
        for sample in fitting:
            assert named == set(transform.get_space(sample)), transform.name


def test_the_changelog_has_a_place_for_the_next_change():
    """There is an Unreleased section, and below it one for the version of today."""
    named = re.findall(r"^## \[(.*?)\]", page("CHANGELOG.md"), re.MULTILINE)
    project = tomllib.loads(page("pyproject.toml"))["project"]
    assert named[:2] == ["Unreleased", project["version"]]


def test_the_citation_is_of_the_version_of_today():
    """And it can be read as the tools that show it do."""
    project = tomllib.loads(page("pyproject.toml"))["project"]
    citation = yaml.safe_load(page("CITATION.cff"))
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert citation["authors"] == project["authors"]
