"""The facts that are shipped, signed by who releases them.

``python benchmarks/sign_facts.py KEY`` signs every packaged fact with the private key
of a file that ``feinsum signing create`` made, writes the public key to ``release.pub``
beside the facts, and verifies what it wrote. ``--verify`` writes nothing: it says for
how many of the packaged facts the signature is that of ``release.pub``, and ends with
exit code 1 unless it is for all of them.

A signed fact has another id than the same fact without a signature.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from feinsum.db import ShippedStore, write_facts  # noqa: E402
from feinsum.records import TuningRecord  # noqa: E402
from feinsum.records.signature import (  # noqa: E402
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
    parser.add_argument("--verify", action="store_true", help="write nothing")
    parser.add_argument("--folder", type=Path, default=PACKAGED, help="of the facts")
    chosen = parser.parse_args(arguments)
    if chosen.key is None and not chosen.verify:
        parser.error("give the file of a private key, or --verify")
    if not chosen.verify:
        sign_folder(chosen.folder, chosen.key)
    return verify_folder(chosen.folder)


def sign_folder(folder: Path, path: Path) -> None:
    """Sign the facts of all files of a folder."""
    key = read_signing_key(path)
    for file in sorted(folder.glob("*.jsonl")):
        write_facts([sign(fact, key) for fact in facts_of(file)], file)
    (folder / PUBLIC).write_text(f"{format_public_key(key)}\n")


def verify_folder(folder: Path) -> int:
    """Say which facts have the signature of the public key beside them; exit code."""
    public = folder / PUBLIC
    if not public.exists():
        print(f"the facts are not signed: there is no {public}")
        return 1
    trusted = public.read_text().split()
    n_good, n_bad = 0, 0
    for file in sorted(folder.glob("*.jsonl")):
        for fact in facts_of(file):
            why = explain_untrusted(fact, trusted)
            n_bad += bool(why)
            n_good += not why
            if why:
                print(f"{file.name}: {fact.id}: {why}")
    print(f"facts signed by {', '.join(trusted)}: {n_good} of {n_good + n_bad}")
    return 1 if n_bad else 0


def facts_of(file: Path) -> list[TuningRecord]:
    return list(ShippedStore((file.read_text("utf-8"),)).records())


if __name__ == "__main__":
    sys.exit(main())
