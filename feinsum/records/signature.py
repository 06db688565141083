"""Signatures of facts, which anyone can verify.

A signed fact has two more topics of provenance: the public key of its signer, and an
Ed25519 signature (RFC 8032) of the fact in its canonical text. So it is a fact like any
other, with its own id, and every database, file and service carries its signature. The
workload key, which follows from the text, and the origin of a rekeyed fact are not
signed, so signatures survive new versions of the canonical form::

    provenance {"host": "n17"}
      -> {"host": "n17", "signed_by": "ed25519:...", "signature": "..."}
    signed bytes: a prefix, then JSON without workload, signature, rekeyed_from

Needs the package cryptography (``pip install 'feinsum[signatures]'``), which is
imported only here, and only when a signature is made or checked.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from feinsum.canonical import WorkloadKey
from feinsum.errors import SignatureError, SigningKeyError, TrustedSignersError
from feinsum.extras import require_extra
from feinsum.records.document import to_json
from feinsum.records.kinds import PlanRecord
from feinsum.records.record import TuningRecord

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    SigningKey: TypeAlias = Ed25519PrivateKey
else:
    SigningKey = Any

Fact = TypeVar("Fact", bound=TuningRecord | PlanRecord)

SIGNED_BY, SIGNATURE = "signed_by", "signature"
"""Topics of the provenance of a signed fact."""

SIGNING_KEY_VARIABLE = "FEINSUM_SIGNING_KEY"
"""Environment variable with the path of the private key that signs facts."""

TRUSTED_SIGNERS_VARIABLE = "FEINSUM_TRUSTED_SIGNERS"
"""Environment variable with public keys, or the path of a file of them."""

UNSIGNED = (SIGNATURE, "rekeyed_from")
"""Topics that a signature does not cover."""

DOMAIN = b"feinsum fact 1\n"
"""Prefix of the signed bytes, so that no other signature is one of a fact."""

_PUBLIC = re.compile(r"ed25519:[A-Za-z0-9+/]{43}=")
_MAX_BYTES = 100_000


def sign(record: Fact, key: SigningKey) -> Fact:
    """Return the fact with a signature, which replaces an existing one."""
    # the signer is part of what is signed, the signature cannot be
    topics = {k: v for k, v in record.provenance.items() if k != SIGNATURE}
    named = replace(record, provenance=topics | {SIGNED_BY: format_public_key(key)})
    signature = base64.b64encode(key.sign(_get_signed_bytes(named))).decode()
    return replace(named, provenance={**named.provenance, SIGNATURE: signature})


def explain_untrusted(
    record: TuningRecord | PlanRecord, trusted: Collection[str]
) -> str:
    """Explain why no trusted key signed a fact; empty if one did.

    Raises:
        SignatureError: if cryptography is not installed.
    """
    signer = record.provenance.get(SIGNED_BY)
    signature = record.provenance.get(SIGNATURE)
    if signer is None or signature is None:
        return "it is not signed"
    if signer not in trusted:
        return f"it is signed by {signer[:60]}, which is not trusted"
    if not _is_right(signer, signature, _get_signed_bytes(record)):
        return f"its signature is not that of {signer}"
    return ""


def create_signing_key(path: Path) -> str:
    """Create a private key in a new file, for its owner only; returns the public key.

    Raises:
        SigningKeyError: if the file exists or cannot be written.
        SignatureError: if cryptography is not installed.
    """
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        # Created for its owner alone, and never over an existing key: what that one
        # signed could not be signed again.
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        ) as file:
            file.write(text)
    except OSError as error:
        problem = "exists already" if error.errno == errno.EEXIST else error.strerror
        raise SigningKeyError(
            f"cannot write a key to {path} ({problem}); give the path of a new file"
        ) from None
    return format_public_key(key)


def read_signing_key(path: Path) -> SigningKey:
    """Read a private key from a file.

    Raises:
        SigningKeyError: if there is none.
        SignatureError: if cryptography is not installed.
    """
    _check_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with path.expanduser().open("rb") as file:
            key = load_pem_private_key(file.read(_MAX_BYTES), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no private key"
        raise SigningKeyError(
            f"cannot read a signing key from {path}: {why}; {MAKE}"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningKeyError(f"the key in {path} is not an Ed25519 key; {MAKE}")
    return key


MAKE = "make one with 'feinsum signing create FILE'"


def format_public_key(key: SigningKey) -> str:
    """Return the public key as text."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return f"ed25519:{base64.b64encode(raw).decode()}"


def sign_if_configured(record: Fact) -> Fact:
    """Sign a fact with the key named by the variable, if it is set.

    Raises:
        SignatureError: see :func:`read_signing_key`.
    """
    path = os.environ.get(SIGNING_KEY_VARIABLE, "").strip()
    return sign(record, read_signing_key(Path(path))) if path else record


def check_signing_key() -> None:
    """Refuse early, before doing work whose facts could not be signed.

    Raises:
        SignatureError: if the variable names a key that cannot be read.
    """
    if path := os.environ.get(SIGNING_KEY_VARIABLE, "").strip():
        read_signing_key(Path(path))


def read_trusted_signers() -> frozenset[str]:
    """Return the public keys in the variable; none if signatures are not required.

    Raises:
        TrustedSignersError: if the variable holds something else.
        SignatureError: if cryptography is not installed.
    """
    setting = os.environ.get(TRUSTED_SIGNERS_VARIABLE, "").strip()
    if not setting:
        return frozenset()
    _check_installed()
    text = setting if setting.startswith("ed25519:") else _read_text(setting)
    lines = [line.partition("#")[0] for line in text.splitlines()]
    keys = [word for line in lines for word in line.replace(",", " ").split()]
    # refuse an empty setting or file: it would silently trust no key
    for key in keys or [""]:
        if not _PUBLIC.fullmatch(key):
            raise TrustedSignersError(
                f"{TRUSTED_SIGNERS_VARIABLE} has {key[:60]!r}; expected public keys as "
                "'feinsum signing show' prints them, separated by commas, or the path "
                "of a file with one per line"
            )
    return frozenset(keys)


def _read_text(path: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(_MAX_BYTES).decode("latin-1")
    except OSError as error:
        raise TrustedSignersError(
            f"{TRUSTED_SIGNERS_VARIABLE} is {path[:200]!r}, which cannot be read "
            f"({error.strerror}); expected public keys, or a file of them"
        ) from None


def _get_signed_bytes(record: TuningRecord | PlanRecord) -> bytes:
    """Return the signed bytes of a fact."""
    topics = {k: v for k, v in record.provenance.items() if k not in UNSIGNED}
    # The key changes with the canonical form, but the fact stays the same.
    signed = replace(record, workload=WorkloadKey(""), provenance=topics)
    return DOMAIN + to_json(signed).encode()


def _is_right(signer: str, signature: str, content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        raw = base64.b64decode(signer.removeprefix("ed25519:"), validate=True)
        raw_signature = base64.b64decode(signature, validate=True)
        Ed25519PublicKey.from_public_bytes(raw).verify(raw_signature, content)
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


def _check_installed() -> None:
    with require_extra("cryptography", "signatures", "a signature", SignatureError):
        import cryptography  # noqa: F401  (only whether it is there)
