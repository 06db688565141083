"""Sign the packaged facts for a release.

``python benchmarks/sign_facts.py KEY`` signs every packaged fact with the private key
in a file made by ``feinsum signing create``, writes the public key to ``release.pub``
in the same folder, and verifies the signatures. ``--verify`` writes nothing: it prints
the number of packaged facts with a valid signature, and the exit code is 1 unless all
of them have one.

A signed fact has another id than the unsigned one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import ROOT
from feinsum.db import ShippedStore, write_facts
from feinsum.records import TuningRecord
from feinsum.records.signature import (
    explain_untrusted,
    format_public_key,
    read_signing_key,
    sign,
)

PACKAGED = ROOT / "db" / "packaged"
PUBLIC = "release.pub"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("key", nargs="?", type=Path, help="file of the private key")
    parser.add_argument("--verify", action="store_true", help="verify only")
    parser.add_argument(
        "--folder", type=Path, default=PACKAGED, help="folder of the facts"
    )
    options = parser.parse_args(arguments)
    if options.key is None and not options.verify:
        parser.error("give the file of a private key, or --verify")
    if not options.verify:
        sign_folder(options.folder, options.key)
    return verify_folder(options.folder)


def sign_folder(folder: Path, path: Path) -> None:
    """Sign the facts in all files of a folder."""
    key = read_signing_key(path)
    for file in sorted(folder.glob("*.jsonl")):
        write_facts([sign(fact, key) for fact in read_facts(file)], file)
    (folder / PUBLIC).write_text(f"{format_public_key(key)}\n")


def verify_folder(folder: Path) -> int:
    """Print invalid signatures, and return the exit code."""
    public = folder / PUBLIC
    if not public.exists():
        print(f"the facts are not signed: there is no {public}")
        return 1
    trusted = public.read_text().split()
    n_good, n_bad = 0, 0
    for file in sorted(folder.glob("*.jsonl")):
        for fact in read_facts(file):
            why = explain_untrusted(fact, trusted)
            n_bad += bool(why)
            n_good += not why
            if why:
                print(f"{file.name}: {fact.id}: {why}")
    print(f"facts signed by {', '.join(trusted)}: {n_good} of {n_good + n_bad}")
    return 1 if n_bad else 0


def read_facts(file: Path) -> list[TuningRecord]:
    return list(ShippedStore((file.read_text("utf-8"),)).records())


if __name__ == "__main__":
    sys.exit(main())
