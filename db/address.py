"""The address of a service, and the key to send there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from feinsum.errors import StoreUnavailableError

REMOTE_VARIABLE = "FEINSUM_REMOTE"
"""Environment variable with the URL of the service that look-ups query."""

KEY_VARIABLE = "FEINSUM_REMOTE_KEY"
"""Environment variable with the key of a service."""

KEY_FILE_VARIABLE = "FEINSUM_REMOTE_KEY_FILE"
"""Environment variable with the path of a file that holds the key."""

KEY_OVER_HTTP_VARIABLE = "FEINSUM_REMOTE_KEY_OVER_HTTP"
"""Environment variable that is ``on`` where a key may be sent in plain text."""

SCHEMES = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,255}")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_KEY = re.compile(r"[!-~]{1,500}")
_MAX_KEY_BYTES = 1000


@dataclass(frozen=True)
class Address:
    """A service: its origin, and the path below which it lies.

    >>> str(address_of("https://facts.example/team/"))
    'https://facts.example/team'
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def is_private(self) -> bool:
        """Whether nobody on the network path can read what is sent."""
        return self.scheme == "https" or _is_this_machine(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == SCHEMES[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.prefix}"


def is_service(location: object) -> bool:
    """Whether a location is the URL of a service rather than a database."""
    if not isinstance(location, str):
        return False
    return location.strip().lower().startswith(("http://", "https://"))


def address_of(url: str) -> Address:
    """Return the address given by a URL.

    Raises:
        StoreUnavailableError: if it is invalid; possible passwords are not quoted.
    """
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = None, "", None
    if parts is None or parts.scheme not in SCHEMES or not _HOST.fullmatch(host):
        raise _bad_address("it is not a web URL")
    # A password in a URL would be printed in messages, and kept in shell histories.
    if "@" in parts.netloc:
        raise _bad_address(
            f"it has a user or a password; pass the key in {KEY_VARIABLE}"
        )
    prefix = parts.path.rstrip("/")
    if parts.query or parts.fragment or not _PREFIX.fullmatch(prefix):
        raise _bad_address("it has more than a host, a port and a plain path")
    if port == 0:
        raise _bad_address("its port is 0")
    return Address(parts.scheme, host, port or SCHEMES[parts.scheme], prefix)


def remote_url() -> str:
    """Return the URL in the environment variable; empty if it is not set."""
    return os.environ.get(REMOTE_VARIABLE, "").strip()


def key_for(address: Address) -> str | None:
    """Return the key to send to a service, if there is one for it.

    If a service is configured for look-ups, the key belongs to it and is sent to no
    other.

    Raises:
        StoreUnavailableError: if the key cannot be read, or would be sent in plain
            text. The message does not quote it.
    """
    # A key that is sent to the wrong service is lost: whoever runs it can use it.
    key = os.environ.get(KEY_VARIABLE, "").strip() or _key_of_file()
    if not key or not _has_key(address):
        return None
    if not _KEY.fullmatch(key):
        raise StoreUnavailableError(
            f"the key for {address} has invalid characters; set "
            f"{KEY_VARIABLE} to what 'feinsum keys create' printed"
        )
    may_be_read = os.environ.get(KEY_OVER_HTTP_VARIABLE, "").strip().lower() == "on"
    if not (address.is_private or may_be_read):
        raise StoreUnavailableError(
            f"the key is not sent to {address}, because anyone on the network path "
            "could read it; "
            f"use https, or set {KEY_OVER_HTTP_VARIABLE}=on in a network that you trust"
        )
    return key


def _has_key(address: Address) -> bool:
    url = remote_url()
    try:
        return not url or address_of(url).origin == address.origin
    except StoreUnavailableError:
        return False


def _key_of_file() -> str:
    path = os.environ.get(KEY_FILE_VARIABLE, "").strip()
    if not path:
        return ""
    try:
        with Path(path).expanduser().open("rb") as file:
            # bounded: the variable may name any file, even an endless device
            return file.read(_MAX_KEY_BYTES).decode("latin-1").strip()
    except OSError as error:
        raise StoreUnavailableError(
            f"the key of the service cannot be read from {path} ({error.strerror}); "
            f"check {KEY_FILE_VARIABLE}"
        ) from None


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _bad_address(problem: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"the URL of a service was given, but {problem}; expected one such as "
        "https://facts.example"
    )
