"""The golden keys: reading, checking and extending their file.

A new workload is a line without a key at the end of the file, as in ``NAME``, two tabs
and the text of the einsum. ``python -m tests.canonical.golden`` (``make golden-keys``)
writes its key.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from feinsum.canonical import CANONICALIZER, FORM_VERSION, canonicalize
from feinsum.ir import from_text

__all__ = ["PATH", "PREFIX", "ChangedKeyError", "Line", "is_same", "read", "updated"]

PATH = Path(__file__).with_name("golden_keys.txt")
PREFIX = f"{FORM_VERSION}-{CANONICALIZER}"

HEADER = """\
# Golden keys: what workloads were called by the canonical form, and still must be.
# A line is a name, the key, and the einsum as somebody spelled it, between tabs.
# Keys here never change under one version of the form (FORM_VERSION): databases
# hold them. `make golden-keys` adds workloads, and refuses to change a key.
# Lines `a`, `a~b` and `a~c` are one workload; all others are different ones.
"""


class ChangedKeyError(Exception):
    """A workload has another key than the file says, under the same version."""


@dataclass(frozen=True)
class Line:
    """One workload of the file.

    Attributes:
        stem: the name of the first workload of its class.
        name: its own name; unique.
        key: its key under the version that the key begins with.
        text: the einsum as it was spelled when the line was added.
    """

    stem: str
    name: str
    key: str
    text: str

    @property
    def prefix(self) -> str:
        return self.key.rpartition("-")[0]

    def __str__(self) -> str:
        name = self.name if self.stem == self.name else f"{self.stem}~{self.name}"
        return f"{name}\t{self.key}\t{self.text}"


def read(path: Path = PATH) -> list[Line]:
    """The lines of the file; none if there is no file."""
    if not path.exists():
        return []
    texts = path.read_text(encoding="utf-8").splitlines()
    return [_line(text) for text in texts if not text.startswith("#")]


def _line(text: str) -> Line:
    names, key, spelled = text.split("\t")
    stem, _, name = names.partition("~")
    return Line(stem, name or stem, key, spelled)


def updated(lines: Iterable[Line]) -> list[Line]:
    """The lines with their keys of now; new ones are listed with their class.

    Raises:
        ChangedKeyError: if the key of a line is of this version and another now.
    """
    result: list[Line] = []
    first: dict[str, Line] = {}
    for number, line in enumerate(lines, start=1 + HEADER.count("\n")):
        key = canonicalize(from_text(line.text)).key
        if key != line.key and line.prefix == PREFIX:
            raise ChangedKeyError(
                f"line {number}, {line.name!r}: the key is {line.key}, now it would be "
                f"{key}; keys change only with a new FORM_VERSION"
            )
        same = first.setdefault(key, line)
        assert is_same(line.text, same.text), (line.name, same.name)
        stem = line.stem if line.key else same.stem
        result.append(replace(line, key=key, stem=stem))
    return result


def is_same(text: str, other: str) -> bool:
    """Whether the forms of two einsums give an isomorphism of them."""
    e, f = from_text(text), from_text(other)
    here, there = canonicalize(e).relabeling, canonicalize(f).relabeling
    return there.inverse().apply(here.apply(e)) == f


def main() -> None:
    """Rewrite the file, or say which line stands against it."""
    before = read()
    try:
        after = updated(before)
    except ChangedKeyError as error:
        sys.exit(f"{PATH.name}: {error}")
    PATH.write_text(HEADER + "".join(f"{line}\n" for line in after), encoding="utf-8")
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    print(f"{PATH.name}: {changed} lines written")


if __name__ == "__main__":
    main()
