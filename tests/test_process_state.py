"""Nothing of ours changes the state of the process, nor needs a certain one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import feinsum
from feinsum.records import InMemoryStore

ROOT = Path(__file__).resolve().parents[1]

CALLS = {
    "redirect_stdout", "redirect_stderr", "catch_warnings", "simplefilter",
    "filterwarnings", "resetwarnings", "chdir", "putenv", "unsetenv", "umask", "dup2",
    "signal.signal", "signal.alarm", "setitimer", "seterr", "seterrcall",
    "set_printoptions", "setlocale", "setrecursionlimit", "setswitchinterval",
    "settrace", "setprofile", "set_start_method", "basicConfig", "logging.disable",
    "set_verbosity", "setrlimit", "faulthandler.enable", "setdefaulttimeout",
    "random.seed", "gc.disable", "gc.freeze", "gc.set_threshold", "os.nice",
    "sched_setaffinity", "sys.path.insert", "sys.path.append", "sys.path.remove",
    "os.environ.update", "os.environ.setdefault", "os.environ.pop",
    "os.environ.clear", "captureWarnings", "tzset",
}  # fmt: skip
"""Functions that change what all threads of a process share, by their last names."""
STATE = (
    "os.environ", "sys.stdout", "sys.stderr", "sys.stdin", "sys.path", "sys.excepthook",
    "sys.displayhook", "warnings.filters", "warnings.showwarning",
)  # fmt: skip
"""What is not assigned to."""
ALLOWED = {
    # programs of ours, and their children
    "feinsum/calling/gpu/builder.py": "a child that builds",
    "feinsum/calling/host/builder.py": "a child that builds",
    "feinsum/canonical/search_process.py": "a child that searches",
    "feinsum/cli/shared/failure.py": "SIGTERM, in the command line",
    "feinsum/cli/shared/user_file.py": "the user's file, in the command line",
    "feinsum/processes.py": "the memory and the streams of a child, which calls it",
    "feinsum/run.py": "a rank, started as a program",
    "service/middleware.py": "the log of the service",
    "service/run.py": "the service",
    "transforms/plugins.py": "a child that imports what its parent could",
    # in the process of the user
    "feinsum/settings.py": "gc.freeze, which no result shows, and which is undone",
    "feinsum/targets/opencl/door.py": "how a driver's loader is told of another one; "
    "once, and only with the package of that driver",
}


def product_modules():
    for folder in ("feinsum", "transforms", "db", "service"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def changes_of(tree):
    """Lines with such a call or assignment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = f".{ast.unparse(node.func)}"
            if any(name.endswith(f".{one}") for one in CALLS):
                yield node.lineno
        targets = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if ast.unparse(target).partition("[")[0] in STATE:
                yield node.lineno


def test_no_module_changes_the_state_of_the_process():
    """But for programs of ours, and the exceptions, each of which is needed."""
    changes = {path: [*changes_of(tree)] for path, tree in product_modules()}
    found = {path: lines for path, lines in changes.items() if lines}
    assert found.keys() - ALLOWED.keys() == set(), found
    assert ALLOWED.keys() - found.keys() == set()


@pytest.mark.parametrize(
    "code",
    [
        "with contextlib.redirect_stdout(file): pass",
        "with warnings.catch_warnings(): pass",
        "os.environ['A'] = 'b'",
        "del os.environ['A']",
        "sys.stdout = file",
        "signal.signal(2, f)",
        "sys.path += ['x']",
    ],
)
def test_the_check_sees_changes(code):
    """So that the test above means something."""
    assert [*changes_of(ast.parse(code))]


def test_threads_that_build_leave_streams_and_filters_alone(capsys):
    """At any time, another thread sees its own; nothing that it prints is lost."""
    stdout, stderr, filters = sys.stdout, sys.stderr, [*warnings.filters]
    is_over, n_printed, seen = threading.Event(), 0, set()

    def build(k):
        A = np.ones((3 + k, 4))
        feinsum.einsum("ij,kj->ik", A, A, database=InMemoryStore())

    threads = [threading.Thread(target=build, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    while not is_over.is_set():
        if not any(thread.is_alive() for thread in threads):
            is_over.set()
        seen.add((sys.stdout is stdout, sys.stderr is stderr))
        seen.add((warnings.filters == filters,))
        print("a line")
        n_printed += 1
        threads[0].join(1e-3)
    assert seen == {(True, True), (True,)}
    assert capsys.readouterr().out.count("a line\n") == n_printed


TWICE = """
import numpy as np, feinsum, os
os.environ["FEINSUM_EFFORT"] = "estimate"  # calls wait for their kernels
A = np.random.rand(6, 7)
def call():
    for _ in range(2):
        assert np.allclose(feinsum.einsum("ij,kj->ik", A, A), A @ A.T)
"""


def run(code, home, limit="", **env):
    """Run a program with a home; by default no variable of the tests is set."""
    command = [sys.executable, "-c", code]
    if limit:
        command = ["bash", "-c", f'{limit}; exec "$@"', "bash", *command]
    kept = {k: os.environ[k] for k in ("PATH", "FEINSUM_CC") if k in os.environ}
    return subprocess.run(
        command,
        env={**kept, "PYTHONPATH": str(ROOT), "HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def no_home(tmp_path):
    """A home where nobody, not even root, can write."""
    file = tmp_path / "file"
    file.write_text("")
    return file / "home"


def test_calls_need_no_home(no_home):
    """A kernel is built all the same, and nobody is warned of it."""
    code = f"""{TWICE}
from feinsum.calling.call import prepare_call
call()
assert prepare_call("ij,kj->ik", A, A).kernel is not None
"""
    ended = run(code, no_home, FEINSUM_CACHE_DIR="off")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_calls_need_no_room(tmp_path):
    """Where no file can be written; one warning says that numpy answers."""
    ended = run(f"{TWICE}\ncall()", tmp_path / "home", limit="ulimit -f 0")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("FeinsumWarning") == 1


def test_every_package_that_imports_loopy_needs_no_home():
    """Whichever of them is imported first."""
    for path, tree in product_modules():
        imports = {
            name
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (getattr(node, "module", None), node.names[0].name)
        }
        if not any((name or "").partition(".")[0] == "loopy" for name in imports):
            continue
        packages = [ROOT / folder / "__init__.py" for folder in Path(path).parents]
        texts = [one.read_text() for one in packages if one.exists()]
        is_ready = any("\nimport feinsum.loopy_cache" in text for text in texts)
        assert is_ready or path.startswith("service/"), path


def test_an_interrupted_build_is_finished_by_the_next_call(tmp_path):
    """Modules are not left half imported: the next call has its kernel."""
    code = f"""
import logging, os, signal, sys
{TWICE}
class Interrupt:
    is_over = False
    def find_spec(self, name, path=None, target=None):
        if name == "loopy.kernel.data" and not Interrupt.is_over:
            Interrupt.is_over = True
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
logging.basicConfig(level=logging.WARNING)
try:
    feinsum.einsum("ij,kj->ik", A, A)
except KeyboardInterrupt:
    print("interrupted")
call()
from feinsum.calling.call import prepare_call
print(prepare_call("ij,kj->ik", A, A).kernel is not None)
"""
    ended = run(code, tmp_path, FEINSUM_CACHE_DIR="off")
    assert ended.stdout == "interrupted\nTrue\n", ended.stderr
    assert ended.stderr == ""


def test_calls_work_while_the_process_ends(tmp_path):
    """In a handler of ``atexit``, where nothing new can be registered."""
    ended = run(f"{TWICE}\nimport atexit\natexit.register(call)", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_child_that_was_forked_during_a_build_answers(tmp_path):
    """The locks that a lost thread holds are not waited for."""
    code = f"""{TWICE}
import os, threading
from feinsum.calling.host import building
in_build, is_forked, usual = threading.Event(), threading.Event(), building.build_call
def build_call(*arguments):
    in_build.set()
    is_forked.wait()
    return usual(*arguments)
building.build_call = build_call
thread = threading.Thread(target=call)
thread.start()
in_build.wait()
child = os.fork()
if not child:
    call()
    os._exit(7)
is_forked.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
"""
    ended = run(code, tmp_path, FEINSUM_CACHE_DIR="off")
    assert ended.stdout == "7\n", ended.stderr
