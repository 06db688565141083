"""Where signers are trusted by name, facts of others are passed over, and explained."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feinsum import FeinsumWarning, explain, retrieve
from feinsum.errors import TrustedSignersError
from feinsum.records.signature import format_public_key, sign
from feinsum.retrieval import look_up
from tests.retrieval.facts import fact_of
from tests.retrieval.kernels import gradients
from tests.retrieval.support import given

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
EVE = Ed25519PrivateKey.from_private_bytes(bytes(32))


@pytest.fixture(autouse=True)
def _trusted(monkeypatch):
    monkeypatch.setenv("FEINSUM_TRUSTED_SIGNERS", format_public_key(KEY))


@pytest.mark.parametrize("sign_by", [None, EVE], ids=["unsigned", "of another"])
def test_what_nobody_trusted_signed_is_passed_over(sign_by):
    """The kernel stays as it is, and the reason is said."""
    example = gradients()
    fact = fact_of(example)
    bad = fact if sign_by is None else sign(fact, sign_by)
    text = explain(example.kernel, database=given(bad))
    why = "it is not signed" if sign_by is None else "which is not trusted"
    assert f"skipped {bad.spec}: record {bad.id[:12]}: " in text
    assert why in text
    assert "kernel: unchanged" in text
    with pytest.warns(FeinsumWarning, match=why):
        assert retrieve(example.kernel, database=given(bad)) is example.kernel


def test_what_was_signed_is_applied():
    """Beside a fact that was not."""
    example = gradients()
    good, bad = sign(fact_of(example), KEY), fact_of(example, speedup=99)
    found = look_up(example.kernel, database=given(good, bad))
    assert found.applied == (good.spec,)
    assert [why for nest in found.nests for _, why in nest.failures] == [
        f"record {bad.id[:12]}: it is not signed"
    ]


def test_a_setting_that_is_no_key_lets_nothing_through(monkeypatch):
    """Nothing is believed; the kernel comes back with the reason."""
    monkeypatch.setenv("FEINSUM_TRUSTED_SIGNERS", "ed25519:abc")
    example = gradients()
    with pytest.warns(FeinsumWarning, match="expected public keys"):
        found = retrieve(example.kernel, database=given(fact_of(example)))
    assert found is example.kernel
    with pytest.raises(TrustedSignersError, match="expected public keys"):
        look_up(example.kernel, database=given(fact_of(example)))
