"""The facts of a release are signed and verified by one program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from benchmarks import sign_facts
from feinsum.canonical import canonicalize
from feinsum.db import ShippedStore, write_facts
from feinsum.ir import array, einsum
from feinsum.records import InMemoryStore, TuningRecord
from feinsum.records.signature import SIGNATURE, create_signing_key
from feinsum.transforms import find_transform, list_configurations
from feinsum.tuning import record_facts
from tests.db.factories import make_record

ROOT = Path(__file__).resolve().parents[2]

SOURCES = "feinsum", "db", "service", "transforms"

CLIENT = """
import json, os, sys
from importlib.resources import files
import feinsum
from feinsum.db import get_shipped_facts
from feinsum.ir import from_text
from feinsum.records.signature import read_trusted_signers, explain_untrusted

site, *keys = sys.argv[1:]
assert feinsum.__file__.startswith(site)
facts = list(get_shipped_facts().records())
found = {"public": (files("feinsum.db") / "packaged" / "release.pub").read_text()}
for key in keys:
    os.environ["FEINSUM_TRUSTED_SIGNERS"] = key
    trusted = read_trusted_signers()
    match = feinsum.query(from_text(facts[0].workload_text), device="host")
    n_verified = sum(not explain_untrusted(fact, trusted) for fact in facts)
    found[key] = len(facts), n_verified, len(match.ranking)
print(json.dumps(found))
"""


def test_packaged_facts_are_signed(tmp_path, capsys):
    """All of them; one that was changed afterwards is named."""
    folder = tmp_path / "packaged"
    folder.mkdir()
    for n in range(2):
        write_facts([make_record(2 * n), make_record(2 * n + 1)], folder / f"{n}.jsonl")
    assert sign_facts.main(["--verify", "--folder", str(folder)]) == 1
    assert "are not signed" in capsys.readouterr().out
    public = create_signing_key(tmp_path / "key.pem")
    assert sign_facts.main([str(tmp_path / "key.pem"), "--folder", str(folder)]) == 0
    assert f"facts signed by {public}: 4 of 4" in capsys.readouterr().out
    text = (folder / "0.jsonl").read_text()
    facts = list(ShippedStore((text,)).records())
    assert len(facts) == 2
    assert all(SIGNATURE in fact.provenance for fact in facts)
    (folder / "0.jsonl").write_text(text.replace("cpu-0", "cpu-1"))
    assert sign_facts.main(["--verify", "--folder", str(folder)]) == 1
    assert "2 of 4" in capsys.readouterr().out


def test_a_key_is_needed(capsys):
    """To sign, that is."""
    with pytest.raises(SystemExit):
        sign_facts.main([])
    assert "give the file of a private key" in capsys.readouterr().err


def fact_of_this_device() -> TuningRecord:
    """A fact that is served here, whatever the vectors of the processor."""
    product = einsum("ij,jk->ik", array("A", (200, 200)), array("B", (200, 200)))
    canonical = canonicalize(product).einsum
    spec = next(iter(list_configurations(find_transform("generic", 3), canonical)))
    return record_facts(product, spec, device="host", database=InMemoryStore())


@pytest.fixture(scope="module")
def release(tmp_path_factory) -> tuple[str, Path]:
    """The public key of a release of one fact, and its wheel, unpacked."""
    folder = tmp_path_factory.mktemp("release")
    tree, wheels, site = folder / "tree", folder / "wheels", folder / "site"
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    packaged = tree / "db" / "packaged"
    for file in packaged.glob("*.jsonl"):
        file.unlink()
    write_facts([fact_of_this_device()], packaged / "here.jsonl")
    public = create_signing_key(folder / "release.pem")
    signed = ["--folder", str(packaged), str(folder / "release.pem")]
    assert sign_facts.main(signed) == 0
    build = f"from setuptools import build_meta as b; b.build_wheel({str(wheels)!r})"
    wheels.mkdir()
    command = [sys.executable, "-W", "ignore", "-c", build]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    return public, site


def test_a_client_verifies_the_facts_of_a_release(release, tmp_path):
    """The wheel has the signatures and the public key; a client that trusts this key
    is served its facts, and one that trusts another key none of them.
    """
    public, site = release
    other = create_signing_key(tmp_path / "other.pem")
    database = {"FEINSUM_DATABASE": str(tmp_path / "none.sqlite")}
    environment = {**os.environ, **database, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", CLIENT, str(site), public, other]
    said = subprocess.check_output(command, env=environment, cwd=tmp_path)
    found = json.loads(said)
    assert found["public"].strip() == public
    n_facts, n_verified, n_used = found[public]
    assert n_verified == n_facts > 0 < n_used
    assert found[other] == [n_facts, 0, 0]
