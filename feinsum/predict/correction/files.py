"""Files with a correction: reading them, writing them, and the one that is in use."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from feinsum.errors import InvalidRecordError, ModelError
from feinsum.memory import remembered
from feinsum.predict.correction.model import ANALYTIC, Correction
from feinsum.records import from_json, to_json

__all__ = [
    "MODEL_VARIABLE",
    "NO_MODEL",
    "SHIPPED",
    "correction_in_use",
    "read_correction",
    "source_in_use",
    "write_correction",
]

logger = logging.getLogger(__name__)

MODEL_VARIABLE = "FEINSUM_MODEL"
"""Environment variable with the file of a correction, or :data:`NO_MODEL`."""

NO_MODEL = "none"
"""The value of the variable for analytic costs alone."""

SHIPPED = Path(__file__).parents[1] / "model.json"
"""The model of this installation, if any."""

MOST_BYTES = 1 << 20


def source_in_use() -> str:
    """The file that the variable names, else the one that is shipped, or ``none``."""
    named = os.environ.get(MODEL_VARIABLE, "").strip()
    return named or (str(SHIPPED) if SHIPPED.is_file() else NO_MODEL)


def correction_in_use() -> Correction:
    """The correction of :func:`source_in_use`, read once.

    One that cannot be read is logged, and costs stay as they are: no model file may
    break a program.
    """
    return remembered(_Read)[source_in_use()]


class _Read(dict[str, Correction]):
    """The corrections by what they were read from."""

    def __missing__(self, source: str) -> Correction:
        try:
            found = read_correction(source)
        except ModelError as error:
            logger.warning("predicting recipes without a model: %s", error)
            found = ANALYTIC
        return self.setdefault(source, found)


def read_correction(source: str | Path) -> Correction:
    """The correction in a file; ``none`` is none.

    Raises:
        ModelError: saying what is wrong with the file.
    """
    if str(source) == NO_MODEL:
        return ANALYTIC
    try:
        return from_json(Correction, _text(Path(source)), "model")
    except (InvalidRecordError, ModelError) as error:
        raise ModelError(f"the model file {str(source)!r}: {error}") from None


def _text(path: Path) -> bytes:
    """The contents of a file, if not too long."""
    try:
        if not path.is_file():
            raise ModelError("there is no such file")
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ModelError(f"it cannot be read: {error}") from None
    if len(text) > MOST_BYTES:
        raise ModelError(f"it is longer than {MOST_BYTES} bytes")
    return text


def write_correction(correction: Correction, path: Path) -> None:
    """Write a correction, all of it or nothing; a file that exists is replaced.

    Raises:
        ModelError: if the file cannot be written.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(to_json(correction) + "\n", "utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ModelError(
            f"the model file {str(path)!r} cannot be written: {error.strerror}"
        ) from None
