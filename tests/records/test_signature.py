"""A signature is right for one fact and one signer, and for nothing else."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given

from feinsum.canonical import WorkloadKey
from feinsum.db.exchange.rekeying import rekey_record
from feinsum.errors import SignatureError, SigningKeyError, TrustedSignersError
from feinsum.records import TuningRecord, from_json, to_json
from feinsum.records.signature import (
    SIGNATURE,
    SIGNED_BY,
    create_signing_key,
    explain_untrusted,
    format_public_key,
    read_signing_key,
    read_trusted_signers,
    sign,
    sign_if_configured,
)
from tests.db.factories import make_environment, make_record, tuning_records

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
TRUSTED = {format_public_key(KEY)}


@given(record=tuning_records())
def test_a_signed_fact_is_believed(record):
    """As it is, read back from its text, and signed again."""
    signed = sign(record, KEY)
    assert explain_untrusted(signed, TRUSTED) == ""
    assert explain_untrusted(from_json(TuningRecord, to_json(signed)), TRUSTED) == ""
    assert sign(signed, KEY) == signed
    assert explain_untrusted(record, TRUSTED) == "it is not signed"
    twice = sign(signed, OTHER)
    assert "not trusted" in explain_untrusted(twice, TRUSTED)
    assert explain_untrusted(twice, {format_public_key(OTHER)}) == ""


def test_signing_keeps_all_topics():
    """Whatever they are called; they are signed, too."""
    topics = {"by": "somebody", "note": "warm", "zone": "7"}
    signed = sign(replace(make_record(), provenance=topics), KEY)
    assert topics.items() <= signed.provenance.items()


def test_the_signature_is_that_of_the_page():
    """What is signed is what the page of signatures says; old ones stay right."""
    signed = sign(make_record(), KEY)
    document = json.loads(to_json(signed))
    signature = document["provenance"].pop(SIGNATURE)
    document["workload"] = ""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    # signatures of Ed25519 are deterministic
    expected = KEY.sign(b"feinsum fact 1\n" + text.encode())
    assert base64.b64decode(signature) == expected


def test_a_signature_outlives_rekeying():
    """The key of the workload follows from its text, and is not signed."""
    moved = rekey_record(sign(make_record(), KEY), WorkloadKey("fe9-other"))
    assert "rekeyed_from" in moved.provenance
    assert explain_untrusted(moved, TRUSTED) == ""


def test_a_fact_that_was_changed_is_not_believed():
    """Whatever of it is changed."""
    for changes in (
        {"workload_text": "another text"},
        {"environment": make_environment(driver="9.9")},
        {"spec": replace(make_record().spec, version=2)},
        {"measurement": make_record(3).measurement},
        {"recorded_at": "2030-01-01T00:00:00+00:00"},
    ):
        changed = replace(sign(make_record(), KEY), **changes)
        assert "its signature is not that of ed25519:" in explain_untrusted(
            changed, TRUSTED
        )


def test_other_topics_are_not_believed():
    """A note that was added, a name of another key, a signature of another fact."""
    for topics, message in (
        ({"note": "more"}, "is not that of"),
        ({SIGNED_BY: "ed25519:x"}, "not trusted"),
        ({SIGNATURE: "no base64!"}, "is not that of"),
        ({SIGNATURE: "é"}, "is not that of"),
        ({SIGNATURE: ""}, "is not that of"),
        ({SIGNATURE: sign(make_record(1), KEY).provenance[SIGNATURE]}, "is not that"),
    ):
        signed = sign(make_record(), KEY)
        changed = replace(signed, provenance={**signed.provenance, **topics})
        assert message in explain_untrusted(changed, TRUSTED)


def test_a_name_that_is_trusted_by_mistake_is_no_key():
    """What is no public key verifies nothing."""
    signed = sign(make_record(), KEY)
    changed = replace(signed, provenance={**signed.provenance, SIGNED_BY: "ed25519:"})
    assert "is not that of" in explain_untrusted(changed, {"ed25519:"})


def test_a_private_key_is_for_its_owner(tmp_path):
    """Its file is closed to others, is not overwritten, and reads back."""
    path = tmp_path / "signing.pem"
    public = create_signing_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert format_public_key(read_signing_key(path)) == public
    before = path.read_bytes()
    with pytest.raises(SigningKeyError, match="exists already"):
        create_signing_key(path)
    assert path.read_bytes() == before


def test_files_without_a_key_are_refused(tmp_path):
    """With the reason, and what to do."""
    bad = tmp_path / "bad.pem"
    bad.write_text("no key")
    for path in (bad, tmp_path / "missing.pem", tmp_path):
        with pytest.raises(SigningKeyError, match="feinsum signing create"):
            read_signing_key(path)
    subprocess.run([sys.executable, "-c", RSA, str(bad)], check=True, timeout=120)
    with pytest.raises(SigningKeyError, match="is not an Ed25519 key"):
        read_signing_key(bad)


RSA = """
import sys
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import *
open(sys.argv[1], "wb").write(X25519PrivateKey.generate().private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
"""


def test_what_is_recorded_is_signed_if_wanted(tmp_path, monkeypatch):
    """With the key of the variable; without it a fact stays as it is."""
    monkeypatch.delenv("FEINSUM_SIGNING_KEY", raising=False)
    assert sign_if_configured(make_record()) == make_record()
    public = create_signing_key(tmp_path / "signing.pem")
    monkeypatch.setenv("FEINSUM_SIGNING_KEY", str(tmp_path / "signing.pem"))
    assert explain_untrusted(sign_if_configured(make_record()), {public}) == ""


def test_signers_are_named_by_keys_or_by_a_file(tmp_path, monkeypatch):
    """Separated by commas, or one in each line with comments; nothing else counts."""
    keys = [format_public_key(KEY), format_public_key(OTHER)]
    monkeypatch.setenv("FEINSUM_TRUSTED_SIGNERS", " ")
    assert read_trusted_signers() == frozenset()
    monkeypatch.setenv("FEINSUM_TRUSTED_SIGNERS", ", ".join(keys))
    assert read_trusted_signers() == frozenset(keys)
    file = tmp_path / "signers"
    file.write_text(f"# the team\n{keys[0]} # ann\n\n{keys[1]}\n")
    monkeypatch.setenv("FEINSUM_TRUSTED_SIGNERS", str(file))
    assert read_trusted_signers() == frozenset(keys)
    file.write_text("# nobody\n")
    for bad in (str(file), "ed25519:abc", f"{keys[0]},x", str(tmp_path / "missing")):
        monkeypatch.setenv("FEINSUM_TRUSTED_SIGNERS", bad)
        with pytest.raises(TrustedSignersError, match="expected public keys"):
            read_trusted_signers()


def test_without_cryptography_nothing_is_trusted(monkeypatch):
    """The error says how to install it."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setenv("FEINSUM_TRUSTED_SIGNERS", format_public_key(KEY))
    with pytest.raises(SignatureError, match=r"pip install 'feinsum\[signatures\]'"):
        read_trusted_signers()


def test_nothing_is_imported_before_it_is_used():
    """A program without signatures does not load cryptography."""
    program = (
        "import sys; from feinsum.records import signature\n"
        "assert not signature.read_trusted_signers()\n"
        "assert 'cryptography' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
