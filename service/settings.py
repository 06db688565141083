"""Settings of the service, from the environment: ``FEINSUM_SERVE_`` and a name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from feinsum.errors import InvalidRequestError

PREFIX = "FEINSUM_SERVE_"

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


def read_settings(**overrides: object) -> Settings:
    """The settings of the environment, and overrides that are not None.

    Raises:
        InvalidRequestError: naming the variable that cannot be read.
    """
    chosen = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**chosen)  # type: ignore[arg-type]
    except ValidationError as error:
        # without the values: a URL of a database has a password
        problems = "; ".join(
            f"{PREFIX}{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}"
            for e in error.errors(include_url=False, include_input=False)
        )
        raise InvalidRequestError(f"settings of the service: {problems}") from None
