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


@pytest.mark.parametrize("name", feinsum.__all__)
def test_every_public_name_is_documented(name):
    """The page lists each name; the site adds the first sentence of its docstring."""
    listed = re.findall(
        r"^   feinsum\.(\w+)$", page("docs/reference/api.md"), re.MULTILINE
    )
    assert name in listed
    first_line = (getattr(feinsum, name).__doc__ or "").partition("\n")[0]
    assert first_line.endswith("."), first_line


def test_the_glossary_is_short_and_every_term_has_a_source():
    """At most 60 terms, each in one row."""
    text = prose(page("docs/reference/glossary.md"))
    rows = re.findall(r"^\| (`.*?) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    words = [word for cell, _, _ in rows for word in re.findall(r"`([^`]+)`", cell)]
    assert len(words) == len(set(words)) <= 60
    assert all(meaning.strip() and source.strip() for _, meaning, source in rows)


def test_every_error_code_is_documented_and_no_other():
    """The table of codes is the tree of errors."""
    documented = terms(section("docs/reference/errors.md", "Codes")) - {"code", "---"}
    assert documented == {kind.code for kind in kinds_of_errors()}


@pytest.mark.parametrize("kind", kinds_of_errors(), ids=lambda kind: kind.code)
def test_an_error_code_stands_beside_its_class(kind):
    """A code and the class that has it are in one row."""
    row = rf"^\| `{kind.code}` \| `{kind.__name__}` \|"
    assert re.search(row, page("docs/reference/errors.md"), re.MULTILINE)


def test_every_error_code_has_a_cure():
    """What to do about it, beyond reading the message."""
    table = section("docs/reference/errors.md", "Codes")
    row = r"^\| `([a-z-]+)` \| `\w+` \|.*\| (.+) \|$"
    cures = dict(re.findall(row, table, re.MULTILINE))
    assert set(cures) == {kind.code for kind in kinds_of_errors()}
    assert not [code for code, cure in cures.items() if cure == "read the message"]


def test_every_rule_of_a_well_formed_einsum_is_documented_and_no_other():
    """The table has the checker's rules and those of single functions."""
    text = section("docs/reference/errors.md", "Rules of a well-formed einsum")
    known = set(RULES) | invalid_einsum_rules()
    assert terms(text) - {"rule", "---"} == known


def test_every_finding_is_documented_and_no_other():
    """The table has the codes of what is not plausible."""
    text = section("docs/reference/errors.md", "What is not plausible")
    assert terms(text) - {"finding", "---"} == set(CODES)


def test_every_refusal_rule_is_documented_and_no_other():
    """The table has every code with which a kernel is refused."""
    text = section("docs/explanation/raising.md", "Rules")
    assert terms(text) - {"code", "---"} == refusal_rules()


def test_the_source_has_the_refusal_rules_that_are_known():
    """The search for codes finds them however they are handed over."""
    known = {"domain", "loopy", "race", "nested-reduction", "target"}
    assert known <= refusal_rules()


def test_every_rule_of_a_sparse_array_is_documented_and_no_other():
    """The table has every code with which a sparse array is rejected."""
    documented = terms(section("docs/reference/sparse.md", "Rules")) - {"rule", "---"}
    assert documented == sparse_rules()


def test_every_rule_of_a_plan_is_documented_and_no_other():
    """The table has every code with which planning, reading and running refuse."""
    documented = terms(section("docs/reference/plans.md", "Rules")) - {"rule", "---"}
    assert documented == plan_rules()


def test_every_rule_of_a_program_is_documented_and_no_other():
    """The table has the checker's rules, and those of who makes and runs programs."""
    documented = terms(section("docs/reference/programs.md", "Rules")) - {"rule", "---"}
    assert documented == set(PROGRAM_RULES) | program_rules()


@pytest.mark.parametrize(
    ("package", "name"), [(distributed, "plans"), (programs, "programs")]
)
def test_every_name_about_plans_and_programs_is_documented(package, name):
    """The page names all that one can import."""
    text = page(f"docs/reference/{name}.md")
    assert not [name for name in package.__all__ if f"`{name}`" not in text]


@pytest.mark.parametrize("room", [nests, sparse], ids=lambda room: room.__name__)
def test_every_name_about_sparse_arrays_is_documented(room):
    """The page names all that one can import."""
    text = page("docs/reference/sparse.md")
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


@pytest.mark.parametrize(
    "path",
    [path for path in DOCS if path.name != "CHANGELOG.md"],
    ids=lambda path: path.name,
)
def test_no_page_names_a_setting_that_does_not_exist(path):
    """Every variable that a page mentions is read; the changelog has removed ones."""
    named = set(re.findall(r"FEINSUM_[A-Z_]+", path.read_text())) - {"FEINSUM_SERVE_"}
    assert named <= settings() | deprecated()


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=CALLS)
def test_the_help_of_a_command_says_what_each_option_does(words, command):
    """The site prints this help; nothing in it is without a sentence."""
    assert command.help
    text = dict(HELP()).get(words, "")
    for parameter in command.params:
        assert parameter.help or "--help" in parameter.opts, parameter.name
        if text and parameter.param_type_name == "option":
            assert parameter.opts[0] in text


def test_the_site_prints_the_help_of_every_command():
    """But not of the groups, whose commands it has."""
    assert sorted(words for words, _ in HELP()) == sorted(RUNNABLE)
    assert "```{commands}\n```" in page("docs/reference/cli.md")


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


def test_every_exit_code_is_documented():
    """Success, and the codes that the program ends with."""
    codes = {failure.FAILED, failure.USAGE, failure.NO_FACT, failure.INTERRUPTED, 0}
    documented = terms(section("docs/reference/cli.md", "Exit codes")) - {"code", "---"}
    assert documented == {str(code) for code in codes}


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_examples_call_commands_and_options_that_exist(path):
    """Every line of a page that begins with ``$ feinsum`` can be called."""
    known = dict(COMMANDS)
    for line in re.findall(r"^\$ (feinsum .*)$", path.read_text(), re.MULTILINE):
        words = max((w for w in CALLS if line.startswith(w)), key=len)
        used = set(re.findall(r" (--[a-z-]+)", line))
        assert used <= options(known[words]), line
        assert words != "feinsum" or used, line


@pytest.mark.parametrize("transform", OURS, ids=lambda t: f"{t.name}@{t.version}")
def test_every_transform_and_parameter_is_documented(transform):
    """A family has a section with the names of its parameters, in a table or a line."""
    heading = f"{transform.name}@{transform.version}"
    text = section("docs/reference/transforms.md", heading)
    fitting = [sample for sample in SAMPLES if transform.fits(sample)]
    assert fitting, "it fits no sample; add one here"
    line = "".join(re.findall(r"^Parameters: .*$", text, re.MULTILINE))
    named = terms(text) - {"parameter", "---"} | set(re.findall(r"`(\w+)`", line))
    for sample in fitting:
        assert named == set(transform.offered(sample))


def test_no_other_transform_is_documented():
    """Every section of a family is about one that is registered."""
    text = section("docs/reference/transforms.md", "Families")
    headed = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert sorted(headed) == sorted(f"{t.name}@{t.version}" for t in OURS)


def test_every_primitive_is_documented_and_no_other():
    """The table of primitives is their public interface."""
    text = section("docs/reference/transforms.md", "Primitives")
    assert terms(text) - {"primitive", "---"} == set(primitives.__all__)


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
