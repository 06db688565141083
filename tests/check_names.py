"""Names that say nothing: ``python tests/check_names.py [--count]``.

A variable named ``found`` or ``one`` makes its reader look up what was found, or one of
what. The exit status is 1 if a module binds such a name, as a variable, a parameter, a
field or a function; ``--count`` counts them by package.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("feinsum", "transforms", "db", "service", "benchmarks")
"""Three of them are also links in ``feinsum``, which a search does not follow."""

VAGUE = {
    *(
        "beside",
        "done",
        "found",
        "given",
        "held",
        "here",
        "how",
        "kept",
        "known",
        "made",
    ),
    *(
        "many",
        "one",
        "ones",
        "own",
        "place",
        "places",
        "said",
        "some",
        "taken",
        "asked",
    ),
    *("asked", "made", "there", "thing", "things", "told", "what", "where", "who"),
}

ALLOWED = {
    ("feinsum/records/plausibility.py", "given"),  # a field of documents
    ("db/exchange/garbage.py", "place"),  # likewise
}


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each name that a module binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


def is_vague(name: str) -> bool:
    return name.strip("_").lower() in VAGUE


def main(arguments: list[str]) -> int:
    vague: Counter[str] = Counter()
    total: Counter[str] = Counter()
    failures = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = path.relative_to(ROOT)
            package = str(module.parent)
            for name, line in bound_names(ast.parse(path.read_text())):
                total[package] += 1
                if is_vague(name):
                    vague[package] += 1
                    is_allowed = (str(module), name) in ALLOWED
                    if not is_allowed:
                        failures.append(f"{module}:{line}: {name!r} says nothing")
    if "--count" in arguments:
        for package in sorted(total):
            print(f"{vague[package]:5} of {total[package]:5}  {package}")
    print(*failures, sep="\n", end="\n" if failures else "")
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
