"""Keys that were given once stay: in every process, under every supported nauty."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

import pytest

from feinsum.canonical import CANONICALIZER, canonicalize
from feinsum.ir import array, einsum, from_text, to_text
from tests.canonical import golden
from tests.canonical.golden import HEADER, PATH, PREFIX, ChangedKeyError
from tests.canonical.respell import respelled
from tests.children import run_python
from tests.docs.pages import page

LINES = golden.read()

OLDEST = re.search(r"pynauty>=([\d.]+)", page("pyproject.toml"))[1]
"""The oldest supported release of pynauty."""

OLDEST_AT = Path(sys.prefix) / "other" / f"pynauty-{OLDEST}"
"""Where ``make install`` puts it: beside the environment's own."""

KEYS = """
import sys
import pynauty
from feinsum.canonical import canonicalize
from feinsum.ir import from_text
print(pynauty.__version__, pynauty.__file__)
for line in open(sys.argv[1], encoding="utf-8"):
    if not line.startswith("#"):
        print(canonicalize(from_text(line.rstrip("\\n").split("\\t")[2])).key)
"""


def in_a_process(**variables: str) -> tuple[str, Path, list[str]]:
    """Release and file of pynauty, and all keys, as a fresh process finds them."""
    result = run_python("-c", KEYS, PATH, **variables)
    first, *keys = result.stdout.splitlines()
    release, _, file = first.partition(" ")
    return release, Path(file), keys


def test_keys_are_those_of_the_file():
    """Every workload has the key that it has always had."""
    found = [(line.name, canonicalize(from_text(line.text)).key) for line in LINES]
    assert found == [(line.name, line.key) for line in LINES]


def test_a_respelling_has_the_key_of_the_file():
    """Names and order that nobody has used before lead to the same keys."""
    for seed, line in enumerate(LINES):
        assert canonicalize(respelled(from_text(line.text), seed)).key == line.key


def test_the_file_is_large_and_its_names_are_unique():
    """At least 200 classes; a name stands for one workload."""
    assert len({line.key for line in LINES}) >= 200
    assert len({line.name for line in LINES}) == len(LINES)


def test_equal_keys_are_those_that_are_listed_as_equal():
    """Lines have one key exactly if they have one stem; an isomorphism proves it."""
    by_stem = sorted(LINES, key=lambda line: line.stem)
    classes = [list(group) for _, group in groupby(by_stem, lambda line: line.stem)]
    assert len({line.key for line in LINES}) == len(classes)
    for first, *others in classes:
        assert {first.stem} <= {line.name for line in (first, *others)}
        for other in others:
            assert other.key == first.key
            assert golden.is_same(other.text, first.text)


def test_the_file_is_complete_and_of_this_version():
    """It holds what ``make golden-keys`` would write; the remedy is to run that."""
    assert {line.prefix for line in LINES} == {PREFIX}
    assert golden.updated(LINES) == LINES
    text = HEADER + "".join(f"{line}\n" for line in LINES)
    assert PATH.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("seed", ["0", "random"])
def test_keys_do_not_depend_on_the_process(seed):
    """Hashes of strings, which differ by process, play no part."""
    _, _, keys = in_a_process(PYTHONHASHSEED=seed)
    assert keys == [line.key for line in LINES]


def test_keys_do_not_depend_on_the_release_of_nauty():
    """The oldest supported release of pynauty gives the keys of the newest."""
    if not OLDEST_AT.is_dir():
        pytest.skip(f"no pynauty {OLDEST} beside the environment: run `make install`")
    release, file, keys = in_a_process(PYTHONPATH=str(OLDEST_AT))
    assert release == OLDEST
    assert file.is_relative_to(OLDEST_AT)
    assert keys == [line.key for line in LINES]


def test_make_installs_the_oldest_release():
    """The Makefile names the release that the requirement allows as the oldest."""
    assert re.search(rf"^OLDEST_PYNAUTY := {OLDEST}$", page("Makefile"), re.MULTILINE)


def test_the_canonicalizer_is_the_series_of_the_installed_release():
    """The name of the canonicalizer in a key agrees with what labels the graphs."""
    series = version("pynauty").split(".")[:2]
    assert "nauty" + ".".join(series) == CANONICALIZER


def test_a_key_of_this_version_is_never_rewritten():
    """An update that would change a key is refused, with the line and both keys."""
    changed = replace(LINES[1], key=f"{PREFIX}-{'0' * 40}")
    number = HEADER.count("\n") + 2
    with pytest.raises(
        ChangedKeyError, match=f"line {number}, .*{'0' * 40}"
    ) as refusal:
        golden.updated([LINES[0], changed, LINES[2]])
    assert LINES[1].name in str(refusal.value)
    assert LINES[1].key in str(refusal.value)


def test_an_update_only_adds():
    """What is there stays as it is; a workload of a known class is listed as equal."""
    known = from_text(LINES[0].text)
    new = einsum("ijk,kl->lij", array("T", (91, 92, 93)), array("S", (93, 94)))
    texts = {"again": to_text(respelled(known)), "new": to_text(new)}
    given = [golden.Line(name, name, "", text) for name, text in texts.items()]
    *before, again, added = golden.updated([*LINES[:3], *given])
    assert before == LINES[:3]
    assert (again.stem, again.name, again.key) == (
        LINES[0].stem,
        "again",
        LINES[0].key,
    )
    assert (added.stem, added.name, added.text) == ("new", "new", to_text(new))
    assert not golden.is_same(added.text, added.text.replace("91", "95"))
