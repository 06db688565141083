"""Settings of the service, from a TOML file and from the environment.

FEINSUM_SERVE_SETTINGS=/etc/feinsum.toml

# /etc/feinsum.toml
workers = 2
rate_per_s = 50
max_age_s = 600
"""

from __future__ import annotations

import logging
import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from feinsum.db.server.api_keys import Scope
from feinsum.errors import InvalidRequestError

logger = logging.getLogger(__name__)

PREFIX = "FEINSUM_SERVE_"

FILE_VARIABLE = "FEINSUM_SERVE_SETTINGS"
"""Environment variable with the path of a TOML file of settings, by their names."""

Count = Annotated[int, Field(ge=1)]
Number = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=86400)]


class Settings(BaseSettings):
    """Settings of the operator; each has a row in ``docs/reference/settings.md``."""

    # frozen: each worker reads its own copy from the environment
    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    database: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8765
    workers: Count = 1
    trusted_proxies: str = ""
    shutdown_s: Count = 10
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    anonymous_read: bool = True
    anonymous_record: bool = False
    untrusted_mb_a_day: Number = 64

    rate_per_s: Rate = 200
    burst: Count = 1000
    max_body_bytes: Count = 1_000_000
    body_s: Seconds = 30
    max_batch: Count = 1000
    canonicalization_s: Seconds = 2

    max_age_s: Number = 60
    # a tenth of a second is shorter than a build takes to notice
    freshness_s: Rate = 0.1
    cache_mb: Number = 256

    demand_every_s: Seconds = 5
    max_demands: Number = 100_000
    max_demands_of_caller: Number = 1_000
    demand_days: Annotated[float, Field(gt=0, le=36500)] = 90

    @property
    def anonymous_scopes(self) -> frozenset[Scope]:
        """What a caller without a key may do."""
        scopes: set[Scope] = {"read"} if self.anonymous_read else set()
        return frozenset(scopes | ({"record"} if self.anonymous_record else set()))


def read_settings(**overrides: object) -> Settings:
    """Read the settings: overrides, else variables, else the file, else defaults.

    Args:
        overrides: settings by their names; None for those that are not overridden.

    Raises:
        InvalidRequestError: naming the wrong setting, or the file that cannot be read.
    """
    chosen = {name: value for name, value in overrides.items() if value is not None}
    for name, value in _read_file().items():
        if name not in Settings.model_fields:
            raise InvalidRequestError(_explain_unknown(name, value))
        # a variable of one installation overrides the file that several share
        if f"{PREFIX}{name.upper()}" not in os.environ:
            chosen.setdefault(name, value)
    try:
        return Settings(**chosen)  # type: ignore[arg-type]
    except ValidationError as error:
        # without the values: a URL of a database has a password
        problems = "; ".join(
            f"{_get_source('_'.join(map(str, e['loc'])))}: {e['msg']}"
            for e in error.errors(include_url=False, include_input=False)
        )
        raise InvalidRequestError(f"settings of the service: {problems}") from None


def _get_source(name: str) -> str:
    """Return the variable that sets a setting, or else its own name."""
    variable = f"{PREFIX}{name.upper()}"
    return variable if variable in os.environ else name


def list_service_variables() -> list[str]:
    """Return the names of all variables of the service."""
    return [
        FILE_VARIABLE,
        *(f"{PREFIX}{name.upper()}" for name in Settings.model_fields),
    ]


def _explain_unknown(name: str, value: object) -> str:
    """Explain that a name in the file is not a setting, and suggest the nearest."""
    file = f"{os.environ[FILE_VARIABLE].strip()}: "
    if isinstance(value, dict):
        return f"{file}settings stand at the top level, without a section [{name}]"
    similar = get_close_matches(name, Settings.model_fields, n=1)
    hint = f"did you mean {similar[0]!r}? " if similar else ""
    return (
        f"{file}{name!r} is not a setting of the service; {hint}"
        f"settings are {', '.join(sorted(Settings.model_fields))}"
    )


def _read_file() -> dict[str, Any]:
    """Read the settings in the file that the variable names; {} if there is none."""
    path = os.environ.get(FILE_VARIABLE, "").strip()
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            f"cannot read the settings in {path}, which {FILE_VARIABLE} names: {error}"
        ) from None


def warn_of_variables() -> None:
    """Log variables of no setting, and those that belong in the file of settings."""
    unknown = {n for n in os.environ if n.startswith(PREFIX)} - set(
        list_service_variables()
    )
    if unknown:
        logger.warning(
            "no setting of the service has these variables: %s; 'feinsum doctor' "
            "suggests names",
            ", ".join(sorted(unknown)),
        )
    names = Settings.model_fields
    used = sorted(name for name in names if f"{PREFIX}{name.upper()}" in os.environ)
    if used:
        logger.warning(
            "the next release will not read the variables of these settings; write "
            "them to a file that %s names, or use the options of 'feinsum serve': %s",
            FILE_VARIABLE,
            ", ".join(used),
        )
