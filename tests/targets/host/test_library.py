"""Shared objects: compiled once, kept where nobody else writes, loaded as they were."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from dataclasses import replace

import pytest

from feinsum.cache import DiskCache
from feinsum.targets import processor as processors
from feinsum.targets.host.compiler import Compiler, find_compiler, load
from feinsum.targets.host.compiler import load_content as load_bytes
from tests.children import run_python
from tests.db.conftest import NOBODY, public_folder, unprivileged

__all__ = ["public_folder"]

FLAGS = ("-shared", "-fPIC")


def source(answer):
    return f"int answer(void) {{ return {answer}; }}"


@pytest.fixture
def kept(tmp_path, monkeypatch) -> DiskCache:
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    return DiskCache(tmp_path / "cache")


@pytest.fixture
def compiled(monkeypatch):
    """The sources that are compiled from now on."""
    sources: list[str] = []
    compile_ = Compiler.compile

    def counted(self, source, flags):
        sources.append(source)
        return compile_(self, source, flags)

    monkeypatch.setattr(Compiler, "compile", counted)
    return sources


def answer(number=42, compiler=None, flags=FLAGS):
    return load(compiler or find_compiler(), source(number), flags).answer()


def test_a_source_is_compiled_once(kept, compiled):
    """What was kept answers as what was compiled."""
    assert [answer(), answer(), answer(7), answer()] == [42, 42, 7, 42]
    assert compiled == [source(42), source(7)]
    assert kept.info().n_entries == 2


def test_without_a_cache_it_is_compiled_every_time(compiled, monkeypatch, tmp_path):
    """And nothing is written."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [answer(), answer()] == [42, 42]
    assert len(compiled) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("kept")
def test_whatever_decides_the_code_makes_another_entry(compiled, monkeypatch):
    """Compiler, its version, options, the processor, and where each of them ends.
    Another model of the same features is none: machines of a cluster share it.
    """
    found, processor = find_compiler(), processors.describe_host_processor()
    answer()
    answer(compiler=replace(found, command=("env", *found.command)))
    answer(compiler=replace(found, version="another"))
    answer(flags=(*FLAGS, "-g"))
    answer(flags=(*FLAGS, "-O1"))
    others = [
        replace(processor, microarchitecture="another"),
        replace(processor, features=(*processor.features, "another")),
        replace(processor, features=()),
    ]
    for other in others:
        monkeypatch.setattr(
            processors, "describe_host_processor", lambda other=other: other
        )
        answer()
    assert len(compiled) == 8
    other = replace(processor, model=99, n_cores=99)
    monkeypatch.setattr(processors, "describe_host_processor", lambda: other)
    answer()
    assert len(compiled) == 8


def spoil_end(content):
    return content[:-1]


def spoil_middle(content):
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("spoil", [spoil_end, spoil_middle])
def test_an_entry_that_was_changed_is_compiled_anew(spoil, kept, compiled):
    """It is never loaded, whoever changed it, and the next process has a good one."""
    answer()
    (path,) = kept.folder.glob("*.entry")
    path.write_bytes(spoil(path.read_bytes()))
    assert answer() == 42
    assert answer() == 42
    assert len(compiled) == 2


def test_an_entry_of_another_source_is_not_loaded(kept, compiled):
    """Even one that this cache wrote: its name is a part of what is signed."""
    answer(1)
    (first,) = kept.folder.glob("*.entry")
    answer(2)
    (second,) = {*kept.folder.glob("*.entry")} - {first}
    second.write_bytes(first.read_bytes())
    assert answer(2) == 2
    assert compiled == [source(1), source(2), source(2)]


def test_a_folder_that_cannot_be_written_breaks_nothing(
    public_folder, monkeypatch, compiled
):
    """Kernels are compiled, and work."""
    cache = public_folder / "cache"
    cache.mkdir()
    if os.geteuid() == 0:
        os.chown(cache, NOBODY, -1)
    cache.chmod(0o500)
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(cache))
    with unprivileged():
        assert [answer(), answer()] == [42, 42]
    assert len(compiled) == 2
    assert not list(cache.iterdir())


def test_a_folder_that_is_open_to_others_is_not_used(kept, compiled):
    """For what is loaded is run; nothing is written to it either."""
    kept.folder.mkdir()
    kept.folder.chmod(0o777)
    assert [answer(), answer()] == [42, 42]
    assert len(compiled) == 2
    assert not list(kept.folder.iterdir())


def test_other_processes_load_what_was_kept(kept, tmp_path):
    """The compiler is asked for its version only."""
    log, wrapper = tmp_path / "log", tmp_path / "cc"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {shutil.which("cc")} "$@"')
    wrapper.chmod(stat.S_IRWXU)
    statements = (
        "from tests.targets.host.kernels import doubling, results\n"
        "print(results(doubling(), x=[1.0, 2.0])['y'])"
    )
    for _ in range(2):
        done = run_python("-W", "ignore", "-c", statements, FEINSUM_CC=str(wrapper))
        assert done.stdout.strip() == "[2. 4.]"
    calls = log.read_text().splitlines()
    assert calls.count("--version") == 2
    assert sum("kernel.c" in call for call in calls) == 2  # the pool, and the kernel
    assert kept.info().n_entries == 2


def test_libraries_are_not_mistaken_for_each_other():
    """However many are loaded, each answers for itself."""
    found = find_compiler()
    contents = [found.compile(source(k), FLAGS) for k in range(2)]
    loaded = [load_bytes(contents[k % 2]) for k in range(20)]
    assert [one.answer() for one in loaded] == [k % 2 for k in range(20)]


@pytest.mark.parametrize("error", [OSError("not here"), AttributeError("not there")])
def test_where_memory_cannot_be_loaded_a_folder_is(error, monkeypatch):
    """Of this user alone, which is gone afterwards."""

    def refuse(*_):
        raise error

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert answer() == 42


ON_FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from tests.targets.host.kernels import doubling, results
for limit in map(int, sys.argv[1:]):
    most = limit if limit else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        print(results(doubling(), x=[1.0, 2.0])["y"])
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""


def on_full_disk(*limits):
    """What a process prints of which no file may be longer than so many bytes."""
    words = "-W", "ignore", "-c", ON_FULL_DISK, *limits
    done = run_python(*words, OMP_NUM_THREADS="1")
    return done.stdout.splitlines()


def test_without_room_for_what_is_compiled_there_is_one_clear_error(kept):
    """Neither the source nor the shared object can be written; later they can. What is
    kept needs memory to be loaded: else there is an error, and the entry stays.
    """
    short, longer, unbounded = on_full_disk(16, 2048, 0)
    assert short.startswith("BuildError")
    assert longer.startswith("BuildError")
    assert unbounded == "[2. 4.]"
    assert kept.info().n_entries == 2  # the pool, and the kernel
    (refused,) = on_full_disk(2048)
    assert refused.startswith("BuildError a compiled kernel cannot be loaded")
    assert kept.info().n_entries == 2


def test_a_cache_on_a_full_disk_is_done_without(tmp_path, monkeypatch):
    """The kernel is compiled and works; a part of an entry is never loaded."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k,mode=700", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        monkeypatch.setenv("FEINSUM_CACHE_DIR", str(disk / "cache"))
        assert on_full_disk(0, 0) == ["[2. 4.]"] * 2
        assert not list((disk / "cache").glob("*.entry"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
