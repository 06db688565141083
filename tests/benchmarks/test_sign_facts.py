"""The facts of a release are signed and verified by one program."""

from __future__ import annotations

import pytest

from benchmarks import sign_facts
from feinsum.db import ShippedStore, write_facts
from feinsum.records.signature import SIGNATURE, new_signing_key
from tests.db.factories import make_record


def test_packaged_facts_are_signed(tmp_path, capsys):
    """All of them; one that was changed afterwards is named."""
    folder = tmp_path / "packaged"
    folder.mkdir()
    for n in range(2):
        write_facts([make_record(2 * n), make_record(2 * n + 1)], folder / f"{n}.jsonl")
    assert sign_facts.main(["--verify", "--folder", str(folder)]) == 1
    assert "are not signed" in capsys.readouterr().out
    public = new_signing_key(tmp_path / "key.pem")
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
