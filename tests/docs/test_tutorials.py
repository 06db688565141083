"""The tutorials are notebooks: every cell runs, and prints what is shown below it."""

from __future__ import annotations

import doctest
import re
import shlex
from codeop import CommandCompiler

import nbformat
import pytest
from nbclient import NotebookClient

from feinsum.targets.host.compiler import find_compiler
from feinsum.tuning.recording import NOISY
from tests.deploy.walk import shell
from tests.docs.pages import ROOT, page
from tests.service.running import free_port

TUTORIALS = sorted(
    path.name
    for path in (ROOT / "docs" / "tutorials").glob("*.md")
    if "{code-cell}" in path.read_text()
)
CELL = re.compile(
    r"^```\{code-cell\} python\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w.])\d+(\.\d+)?(?![\w.]*\d)")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, and the variables of a newcomer's shell."""
    compiler = find_compiler().command  # that of the tests, which keeps what it built
    newcomer = shell(tmp_path, FEINSUM_CC=shlex.join(compiler)) | {
        "FEINSUM_DATABASE": str(tmp_path / "facts.sqlite"),
        "FEINSUM_CACHE_DIR": str(tmp_path / "cache"),
        "FEINSUM_SERVE_PORT": str(free_port()),
        "FEINSUM_REMOTE_BUDGET_MS": "60000",  # on a busy machine
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "PYTHONWARNINGS": "ignore",
    }
    for name, value in newcomer.items():
        monkeypatch.setenv(name, value)
    for name in ("DEVICE", "EFFORT", "VERIFY", "TRANSFORMS"):
        monkeypatch.delenv(f"FEINSUM_{name}", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_prints_what_it_shows(name, folder):
    """In a fresh kernel of Jupyter; numbers are those of another machine."""
    cells = CELL.findall(page(f"docs/tutorials/{name}"))
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(code) for code, _ in cells]
    )
    there = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, resources=there).execute()
    for cell, (_, shown) in zip(notebook.cells, cells, strict=True):
        assert is_as_shown(shown, printed(cell)), f"{cell.source}\n{printed(cell)}"


def is_as_shown(shown: str, text: str) -> bool:
    """Whether a text is what a tutorial shows, but for its numbers."""
    wanted, got = (NUMBER.sub("#", part) for part in (shown, text))
    return doctest.OutputChecker().check_output(wanted, got, FLAGS)


def printed(cell: nbformat.NotebookNode) -> str:
    """What a cell gave, but for what it wrote to standard error.

    Commands write both to one terminal, where times of a busy machine are noisy.
    """
    text = "".join(
        output.text if output.output_type == "stream" else output.data["text/plain"]
        for output in cell.outputs
        if output.get("name") != "stderr"
    )
    return re.sub(rf"^{re.escape(NOISY)}\r?\n", "", text, flags=re.MULTILINE)


def test_noise_of_a_busy_machine_is_not_shown():
    text = f"{NOISY}\r\nrecords: 4\r\n"
    output = nbformat.v4.new_output("stream", name="stdout", text=text)
    assert printed(nbformat.v4.new_code_cell(outputs=[output])) == "records: 4\r\n"


def test_there_are_six_tutorials():
    """One for each kind of newcomer, and two about programs."""
    assert TUTORIALS == [
        "coupled-cluster.md",
        "dg-kernel.md",
        "numpy-and-chemistry.md",
        "own-transform.md",
        "tensor-decompositions.md",
        "transformer-block.md",
    ]


def test_a_number_is_no_word():
    """Numbers may differ, words and keys may not."""
    assert is_as_shown("1.25 ms, 3 times\n", "0.5 ms, 40 times\n")
    assert not is_as_shown("fe2-ab12\n", "fe2-ab13\n")
    assert not is_as_shown("True\n", "False\n")


PYTHON = re.compile(
    r"^```(?:\{code-cell\} )?python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
PAGES = [
    "README.md",
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")),
]


def test_code_can_be_pasted_at_a_prompt():
    """Line by line, as the plain interpreter reads it: a blank line ends every block,
    and there is none in it.
    """
    blocks = [code for name in PAGES for code in PYTHON.findall(page(name))]
    assert blocks
    for code in blocks:
        lines = [line for line in code.splitlines() if not line.startswith("!")]
        assert refused_at_a_prompt([*lines, ""]) is None, code


def refused_at_a_prompt(lines: list[str]) -> str | None:
    """The first line that the interpreter does not take."""
    compile_all, pending = CommandCompiler(), []
    for line in lines:
        pending.append(line)
        try:
            is_whole = compile_all("\n".join(pending), symbol="single") is not None
        except SyntaxError:
            return line
        if is_whole:
            pending = []
    return next((line for line in pending if line.strip()), None)


def test_a_block_without_a_blank_line_is_refused_at_a_prompt():
    """What the test above looks for."""
    assert refused_at_a_prompt(["while False:", "    pass", "print(1)", ""])
    assert not refused_at_a_prompt(["while False:", "    pass", "", "print(1)", ""])
