"""Truth: examples run, names and links resolve, nothing is of one machine."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from importlib import import_module

import pytest

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
def test_programs_of_a_page_run(name, tmp_path, environment):
    """Its blocks are one program, but for those that ranks of MPI run."""
    blocks = fenced(page(f"docs/{name}.md"), "python")
    program = "\n".join(block for block in blocks if "# mpiexec" not in block)
    (tmp_path / "program.py").write_text(program)
    result = run(["-W", "ignore", "program.py"], tmp_path, environment)
    assert result.returncode == 0, result.stderr


def test_the_example_of_a_transform_works(tmp_path, environment):
    """Its script tunes, records and serves a schedule; its test passes."""
    blocks = fenced(page("docs/how-to/add-a-transform.md"), "python")
    for block in blocks:
        (tmp_path / block.split()[1]).write_text(block)
    script = run(["by_hand.py"], tmp_path, environment)
    assert script.returncode == 0, script.stderr
    assert "by_hand@1(block=64)" in script.stdout
    named = environment | {"FEINSUM_TRANSFORMS": "by_hand"}
    pytest_here = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    result = run([*pytest_here, "test_by_hand.py"], tmp_path, named)
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout


@pytest.mark.parametrize("name", NAMES)
def test_doctests_of_a_page_hold(name, tmp_path, monkeypatch):
    """Every ``pycon`` block gives what it shows; the blocks of a page share names."""
    monkeypatch.delenv("FEINSUM_DATABASE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # of the default database
    monkeypatch.setenv("FEINSUM_TRANSFORMS", "")
    blocks = fenced(page(name), "pycon")
    parsed = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, name, name, 0)
    report: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(parsed, out=report.append)
    assert bool(parsed.examples) == bool(blocks)
    assert outcome.failed == 0, "".join(report)


@pytest.mark.parametrize("name", NAMES)
def test_every_example_session_is_marked_as_one(name):
    """A prompt stands in a ``pycon`` block, so that it is executed."""
    executed = "".join(fenced(page(name), "pycon"))
    assert page(name).count(">>> ") == executed.count(">>> ")


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_package_exist(name):
    """Whatever is written as ``feinsum.something`` in code type can be imported."""
    for dotted in set(re.findall(r"`(feinsum(?:\.\w+)+)[`(]", prose(page(name)))):
        parts = dotted.split(".")
        if parts[-1] == "py":
            continue
        assert resolve(parts) is not None, dotted


def test_references_of_docstrings_resolve():
    """A role such as ``:func:`feinsum.x.y``` names something that can be imported."""
    role = re.compile(r":\w+:`[~.]?(feinsum(?:\.\w+)+)`")
    for folder in ("feinsum", "db", "service", "transforms"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for dotted in set(role.findall(path.read_text())):
                assert resolve(dotted.split(".")) is not None, (path, dotted)


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


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_resolve(name):
    """The target of a link is a file of the project, and its anchor a heading."""
    text = page(name)
    for inline, reference in LINK.findall(prose(text)):
        target, _, anchor = (inline or reference).partition("#")
        if re.match(r"\w+:", target):
            continue
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.is_file(), f"{name}: {target}"
        assert not anchor or anchor in slugs(path.read_text()), f"{name}: #{anchor}"


def test_every_page_can_be_reached():
    """By links, from the readme."""
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        for inline, reference in LINK.findall(prose(path.read_text())):
            target = (inline or reference).partition("#")[0]
            if not re.match(r"\w+:", target):
                todo.append((path.parent / target).resolve())
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
