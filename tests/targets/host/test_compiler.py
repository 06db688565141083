"""The C compiler: which one is taken, and what becomes of one that fails."""

from __future__ import annotations

import shutil
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from feinsum.errors import BuildError, DeviceUnavailableError, WrongResultError
from feinsum.measure import compile_kernel, open_device, verify
from feinsum.memory import use_fresh_memory
from feinsum.targets.devices import find_trouble
from feinsum.targets.host import HOST, compiler
from feinsum.targets.host.compiler import Compiler, find_compiler
from tests.cpus import HOST as SELECTOR
from tests.targets.host.kernels import doubling, results

VARIABLES = ("FEINSUM_CC", "CC")
SOURCE = "int answer(void) { return 42; }"


@pytest.fixture(autouse=True)
def _unnamed(monkeypatch):
    """No compiler is named, and none is known."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with use_fresh_memory():
        yield


@pytest.fixture
def script(tmp_path):
    """A command of some lines of shell, in a folder of commands."""

    def write(name, lines):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


@pytest.fixture
def named(script, monkeypatch):
    """A compiler that says its version, and does the lines where it should compile."""

    def name(lines):
        path = script("mine", f'[ "$1" = --version ] && echo mine 1 && exit\n{lines}')
        monkeypatch.setenv("FEINSUM_CC", path)
        return find_compiler()

    return name


def chosen():
    return Path(find_compiler().command[0]).name


def test_the_first_of_the_variables_and_the_usual_names_is_taken(script, monkeypatch):
    """FEINSUM_CC, CC, gcc, clang, cc; an empty variable says nothing."""
    paths = {n: script(n, f"echo {n} 1") for n in ("cc", "clang", "gcc", "own", "ours")}
    monkeypatch.setenv("PATH", str(Path(paths["cc"]).parent))
    monkeypatch.setenv("CC", paths["ours"])
    monkeypatch.setenv("FEINSUM_CC", paths["own"])
    assert chosen() == "own"
    monkeypatch.setenv("FEINSUM_CC", " ")
    assert chosen() == "ours"
    monkeypatch.delenv("CC")
    for name in ("gcc", "clang", "cc"):
        assert chosen() == name
        Path(paths[name]).unlink()


def test_a_command_can_have_words(script, monkeypatch):
    """Such as a wrapper before the compiler, or an option after it."""
    monkeypatch.setenv("FEINSUM_CC", f"{script('wrapper', 'echo $@')} 'a b' -x")
    found = find_compiler()
    assert found.command[1:] == ("a b", "-x")
    assert found.version == "a b -x --version"


@pytest.mark.parametrize(
    ("said", "is_clang"),
    [
        ("gcc (Debian 12.2.0-14) 12.2.0", False),
        ("Debian clang version 14.0.6", True),
        ("Apple clang version 15.0.0 (clang-1500.0.40.1)", True),
    ],
)
def test_a_compiler_is_known_by_what_it_says(said, is_clang, script, monkeypatch):
    """Its first line is its version; clang gets options of its own for vectors."""
    monkeypatch.setenv("FEINSUM_CC", script("any", f"echo\necho '{said}'\necho more"))
    found = find_compiler()
    assert (found.version, found.is_clang) == (said, is_clang)
    assert found.choose_flags(has_vectors=False) == found.flags
    assert ("-fno-vectorize" in found.choose_flags(has_vectors=True)) == is_clang
    for has_vectors in (False, True):
        flags = found.choose_flags(has_vectors=has_vectors, has_integers=True)
        assert "-fwrapv" in flags
    flags = found.choose_flags(has_vectors=False, has_conditional_reads=True)
    assert ("-fno-tree-loop-if-convert" in flags) != is_clang


def test_products_of_complex_numbers_are_plain():
    """As numpy has them: what C prescribes for NaN is a call, and no vectors."""
    found = find_compiler()
    product = "float _Complex f(float _Complex a, float _Complex b) { return a * b; }"
    source = f'__attribute__((visibility("default"))) {product}'
    assert (b"__mulsc3" in found.compile(source, found.flags)) == found.is_clang


def test_no_option_changes_the_order_of_sums():
    """Results are those of the kernel as it is written."""
    flags = find_compiler().flags
    assert not {"-ffast-math", "-Ofast", "-fassociative-math"} & set(flags)


def test_where_there_is_none_it_says_what_to_install(tmp_path, monkeypatch):
    """There is no device then."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceUnavailableError) as caught:
        HOST.devices()
    message = str(caught.value)
    assert "no C compiler was found; install gcc or clang" in message
    assert "FEINSUM_CC" in message


@pytest.mark.parametrize(
    ("variable", "lines", "why"),
    [
        (VARIABLES[0], None, "No such file"),
        (VARIABLES[1], None, "No such file"),
        (VARIABLES[0], "echo no licence >&2; exit 3", "with code 3: no licence"),
        (VARIABLES[0], "kill -SEGV $$", "ended with SIGSEGV"),
        (VARIABLES[0], "sleep 60", r"did not finish within 0\.1 s"),
    ],
)
def test_one_that_is_named_and_does_not_work_is_no_other(
    variable, lines, why, script, monkeypatch
):
    """The message has the variable, the reason and the remedy."""
    monkeypatch.setattr(compiler, "LIMIT_S", 0.1)
    path = script("broken", lines) if lines else "/nowhere/cc"
    monkeypatch.setenv(variable, path)
    with pytest.raises(DeviceUnavailableError, match=why) as caught:
        find_compiler()
    assert f"{variable}={path!r}" in str(caught.value)
    assert "install gcc or clang" in str(caught.value)


def test_a_command_that_cannot_be_read_is_an_error(monkeypatch):
    """A quote that is not closed."""
    monkeypatch.setenv("FEINSUM_CC", "gcc 'a")
    with pytest.raises(DeviceUnavailableError, match=r"FEINSUM_CC is .*quotation"):
        find_compiler()


FAILURES = {
    "an error": ("echo kernel.c: error: no >&2; exit 1", "code 1: kernel.c: error: no"),
    "a crash": ("kill -SEGV $$", "mine ended with SIGSEGV"),
    "no end": ("sleep 60", r"mine did not finish within 0\.5 s"),
    "no file": ("exit 0", "mine wrote no shared object"),
    "no object": ('for o; do [ "$o" = -lm ] || f=$o; done; echo no > $f', "be loaded"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_one_clear_error(name, named, monkeypatch):
    """Of a build, with the compiler's name and what it wrote."""
    lines, why = FAILURES[name]
    named(lines)
    monkeypatch.setattr(compiler, "LIMIT_S", 0.5)
    with pytest.raises(BuildError, match=why):
        compile_kernel(doubling(), open_device(SELECTOR))


def test_a_failure_is_not_kept(named, tmp_path, monkeypatch):
    """With another compiler the same kernel is built, whatever came before."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    named(FAILURES["no object"][0])
    for _ in range(2):
        with pytest.raises(BuildError, match="cannot be loaded"):
            compile_kernel(doubling(), open_device(SELECTOR))
    assert not list((tmp_path / "cache").glob("*.entry"))
    monkeypatch.delenv("FEINSUM_CC")
    assert results(doubling(), x=[1.0, 2.0])["y"].tolist() == [2, 4]


def test_long_errors_are_cut(named):
    """The first lines tell; empty ones do not count."""
    found = named("for k in $(seq 100); do echo; echo line $k; done >&2; exit 1")
    with pytest.raises(BuildError) as caught:
        found.compile(SOURCE, ())
    lines = str(caught.value).splitlines()
    assert len(lines) == compiler.N_LINES
    assert lines[-1] == f"line {compiler.N_LINES} ..."


def test_what_a_compiler_started_ends_with_it(named, tmp_path, monkeypatch):
    """After the limit nothing is left that runs."""
    alive = tmp_path / "alive"
    found = named(f"(sleep 0.6; touch {alive}) & sleep 60")
    monkeypatch.setattr(compiler, "LIMIT_S", 0.2)
    with pytest.raises(BuildError, match="did not finish"):
        found.compile(SOURCE, ())
    time.sleep(0.8)
    assert not alive.exists()


def test_a_folder_for_temporary_files_that_is_full_is_an_error(tmp_path, monkeypatch):
    """Of a build, and of no other kind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(BuildError, match=r"cannot compile: .*nowhere"):
        find_compiler().compile(SOURCE, ())


def test_a_compiler_that_makes_wrong_code_is_found_out(script, monkeypatch):
    """Its device does not work, and no result of it passes a verification."""
    wrong = script(
        "wrong",
        '[ "$1" = --version ] && echo wrong 1 && exit\n'
        # Of the two kernels alone: the pool is compiled for this process, too.
        "for o; do case $o in *.c) "
        r'sed -i "s/2\.0 \* x/2.0 + x/; s/x\[i\] \* a/x[i] + a/" $o;; esac; done'
        "\n"
        'exec cc "$@"',
    )
    monkeypatch.setenv("FEINSUM_CC", wrong)
    (device,) = HOST.devices()
    assert find_trouble(HOST, device) == "a small kernel computes wrong results"
    x = np.array([1.0, 5.0])
    bound = compile_kernel(doubling(), open_device(SELECTOR)).bind({"x": x})
    with pytest.raises(WrongResultError):
        verify(bound, {"y": 2 * x}, tolerance=1e-10)


def test_without_a_path_the_usual_folders_are_searched(monkeypatch):
    """By the compiler for its own parts, too."""
    monkeypatch.delenv("PATH")
    assert results(doubling(), x=[1.0, 2.0])["y"].tolist() == [2, 4]


@pytest.mark.parametrize("command", ["gcc", "clang"])
def test_kernels_are_right_with_each_compiler(command, monkeypatch):
    """That is installed here."""
    if not shutil.which(command):
        pytest.skip(f"{command} is not installed")
    monkeypatch.setenv("FEINSUM_CC", command)
    assert isinstance(find_compiler(), Compiler)
    assert results(doubling(), x=[1.0, 2.0])["y"].tolist() == [2, 4]
