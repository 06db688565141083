"""The outcome of a trial, good or bad."""

from __future__ import annotations

from dataclasses import dataclass

from feinsum.errors import FeinsumError, error_from_code
from feinsum.records import OK, Measurement, TransformSpec
from feinsum.records.document import STRICT

__all__ = ["TrialOutcome"]


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome for one recipe.

    Attributes:
        status: ``ok``, or the code of an error of :mod:`feinsum.errors`
            (``transform-failed``, ``build-failed``, ``wrong-result``,
            ``trial-timeout``, ``trial-crashed``, ``device-lost``, ...).
        message: what went wrong, in words.
        ratio: its time over the reference's, in the same rounds.
        reference: the recipe that it was timed against; None for the untransformed
            kernel. See :mod:`feinsum.tuning.scale`.
    """

    __pydantic_config__ = STRICT

    spec: TransformSpec
    status: str
    message: str = ""
    measurement: Measurement | None = None
    ratio: float | None = None
    reference: TransformSpec | None = None

    @property
    def is_ok(self) -> bool:
        return self.status == OK

    def to_error(self) -> FeinsumError:
        """The error described by :attr:`status` and :attr:`message`."""
        spec, message = str(self.spec), self.message
        is_named = message.startswith(spec)
        return error_from_code(
            self.status, message if is_named else f"{spec}: {message}"
        )

    @property
    def median_s(self) -> float:
        return self.measurement.median_s if self.measurement else float("inf")
