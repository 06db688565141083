"""Truth: examples run, names and links resolve, nothing is of one machine."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import warnings
from importlib import import_module

import pytest

from feinsum.db import open_store
from tests.docs.pages import DOCS, ROOT, fenced, files, page, prose

NAMES = [str(path.relative_to(ROOT)) for path in DOCS]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
MACHINE_PATH = re.compile(r"/(home|root|work|Users|usr/local/home)/\w")
REGISTRY_ADDRESS = re.compile(
    r"https?://[^\s\"')]*(pypi|pythonhosted|conda|npm|registry|artifactory|nexus)"
)


@pytest.fixture
def environment(tmp_path):
    """The variables of a subprocess with a database and a folder of its own."""
    database = tmp_path / "facts.sqlite"
    return os.environ | {
        "FEINSUM_DATABASE": str(database),
        "FEINSUM_TRANSFORMS": "",
        "PYTHONPATH": str(tmp_path),
    }


def run(arguments, folder, environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def slugs(text):
    """The anchors that the headings of a page make, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}


def test_the_example_of_the_readme_runs(tmp_path, environment):
    """Pasted into a file it tunes, applies the recipe, checks and times the kernel."""
    (example,) = fenced(page("README.md"), "python")
    (tmp_path / "example.py").write_text(example)
    result = run(["example.py"], tmp_path, environment)
    assert result.returncode == 0, result.stderr
    assert "FeinsumWarning: " not in result.stderr
    said = r"^[\d.]+ ms before, [\d.]+ ms now: \d+ times as fast$"
    assert re.search(said, result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["reference/plans", "reference/programs", "explanation/bounds"]
)
def test_programs_of_a_page_run(name, tmp_path, monkeypatch, capsys):
    """Its blocks are one program, but for those that ranks of MPI run. What it asserts
    holds, and the page shows what it prints.
    """
    blocks = fenced(text := page(f"docs/{name}.md"), "python")
    program = "\n".join(block for block in blocks if "# mpiexec" not in block)
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "facts.sqlite"))
    monkeypatch.setenv("FEINSUM_TRANSFORMS", "")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Loopy
        exec(program, {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    assert printed or "assert " in program
    assert [line for line in printed if line not in text] == []


def test_the_example_of_a_transform_works(tmp_path, environment):
    """Its script tunes, records and explains a schedule; its test passes."""
    blocks = fenced(page("docs/how-to/add-a-transform.md"), "python")
    for block in blocks:
        (tmp_path / block.split()[1]).write_text(block)
    script = run(["by_hand.py"], tmp_path, environment)
    assert script.returncode == 0, script.stderr
    # which recipe is the fastest depends on the machine
    assert "match: " in script.stdout
    with open_store(tmp_path / "facts.sqlite") as store:
        specs = {str(record.spec) for record in store.records()}
    assert "by_hand@1(block=64)" in specs
    named = environment | {"FEINSUM_TRANSFORMS": "by_hand"}
    pytest_here = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    result = run([*pytest_here, "test_by_hand.py"], tmp_path, named)
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout


WITH_SESSIONS = [n for n in NAMES if ">>> " in page(n) or fenced(page(n), "pycon")]


@pytest.mark.parametrize("name", WITH_SESSIONS)
def test_doctests_of_a_page_hold(name, tmp_path, monkeypatch):
    """Every ``pycon`` block gives what it shows; the blocks of a page share names."""
    monkeypatch.delenv("FEINSUM_DATABASE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # of the default database
    monkeypatch.setenv("FEINSUM_TRANSFORMS", "")
    blocks = fenced(page(name), "pycon")
    assert page(name).count(">>> ") == "".join(blocks).count(">>> ")
    parsed = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, name, name, 0)
    report: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(parsed, out=report.append)
    assert parsed.examples
    assert outcome.failed == 0, "".join(report)


def test_names_of_the_package_exist():
    """In code type on a page, and in a role such as ``:func:`feinsum.x.y``` of a
    docstring.
    """
    code, role = (
        re.compile(rf"{before}(feinsum(?:\.\w+)+){after}")
        for before, after in (("`", "[`(]"), (r":\w+:`[~.]?", "`"))
    )
    named = {dotted for name in NAMES for dotted in code.findall(prose(page(name)))}
    for folder in ("feinsum", "db", "service", "transforms"):
        for path in (ROOT / folder).rglob("*.py"):
            named |= set(role.findall(path.read_text()))
    for dotted in sorted(named):
        assert dotted.endswith(".py") or resolve(dotted.split(".")) is not None, dotted


def resolve(parts):
    """The object of a dotted name; attributes of instances by their annotation."""
    value = import_module(parts[0])
    for k, part in enumerate(parts[1:], start=2):
        if hasattr(value, part):
            value = getattr(value, part)
        elif part in getattr(value, "__annotations__", {}):
            value = value.__annotations__[part]
        else:
            value = import_module(".".join(parts[:k]))
    return value


def links(source):
    """The files and the anchors that the relative links of a page name."""
    for inline, reference in LINK.findall(prose(source.read_text())):
        target, _, anchor = (inline or reference).partition("#")
        if not re.match(r"\w+:", target):
            yield (source.parent / target).resolve() if target else source, anchor


def test_relative_links_resolve():
    """The target of a link is a file of the project, and its anchor a heading."""
    for source in DOCS:
        for path, anchor in links(source):
            assert path.is_file(), f"{source}: {path}"
            is_heading = not anchor or anchor in slugs(path.read_text())
            assert is_heading, f"{source}: {path}#{anchor}"


def test_every_page_can_be_reached():
    """By links, from the readme."""
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path not in reached and path.suffix == ".md":
            reached.add(path)
            todo += [target for target, _ in links(path)]
    assert set(DOCS) - reached <= {ROOT / "docs" / "index.md"}


def test_the_readme_names_targets_that_exist():
    """Every ``make`` of its sessions."""
    sessions = "".join(fenced(page("README.md"), "console"))
    targets = re.findall(r"^\$ make (\S+)", sessions, re.MULTILINE)
    assert targets
    assert not [t for t in targets if not re.search(rf"^{t}:", page("Makefile"), re.M)]


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY_ADDRESS])
def test_nothing_is_of_one_machine(pattern):
    """No file names a home or work folder, or the address of a package registry."""
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files(".md", ".py", ".toml", ".txt", ".cfg", ".ini")
        for match in pattern.finditer(path.read_text())
    ]
    assert found == []
