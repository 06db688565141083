"""A process in the place of the one that verifies: it says what a test has written.

Run as ``python -m tests.retrieval.oracle FILE``; the file has, as JSON, for a part of
the text of a recipe the times of that recipe and of the untransformed kernel, or the
code of an error. What it is asked goes to FILE.asked, one recipe per line; whole
kernels that are compared go to FILE.compared, as JSON. Of these the given one takes the
time of the untransformed kernel, and another one that of the recipe, unless the file
has times for ``kernels``.

It imports only what an answer needs: with Loopy it takes a second to start.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from feinsum.measure.verdicts import KernelComparison, Verdict, VerificationRequest
from feinsum.processes import Channel
from feinsum.records import OK, from_json, to_json

if TYPE_CHECKING:
    import pytest


class Oracle:
    """What the process will say, and what it was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "oracle.json"
        self._file.write_text("{}")
        command = (sys.executable, "-m", __name__, str(self._file))
        monkeypatch.setattr("feinsum.retrieval.verifiers.COMMAND", command)

    def says(self, **known: tuple[float, float] | str) -> None:
        """For a part of the text of a recipe: times, or the code of an error."""
        self._file.write_text(json.dumps(known))

    @property
    def asked(self) -> list[str]:
        return self._lines("asked")

    @property
    def compared(self) -> list[KernelComparison]:
        lines = self._lines("compared")
        return [from_json(KernelComparison, line) for line in lines]

    def _lines(self, suffix: str) -> list[str]:
        path = Path(f"{self._file}.{suffix}")
        return path.read_text().splitlines() if path.exists() else []


def answer(
    question: VerificationRequest, known: dict[str, list[float] | str]
) -> Verdict:
    text = str(question.spec)
    if question.kernels is not None and "kernels" in known:
        known, text = {"kernels": known["kernels"]}, "kernels"
    for part, said in known.items():
        if part in text:
            if isinstance(said, str):
                return Verdict(said, "as the test says")
            least_s, baseline_s = said
            if question.kernels is not None:
                return compared(question.kernels, least_s, baseline_s)
            return Verdict(
                OK, least_s=least_s, baseline_s=baseline_s, sizes=question.sizes
            )
    raise SystemExit(f"nothing is known of {question.spec}")


def compared(kernels: KernelComparison, least_s: float, baseline_s: float) -> Verdict:
    given = {number for number, _ in kernels.pairs}
    samples = [
        (baseline_s if k in given else least_s,) * 20
        for k, _ in enumerate(kernels.programs)
    ]
    return Verdict(OK, samples=tuple(samples))


def main() -> None:
    path = sys.argv[1]
    channel = Channel()
    for line in channel.requests():
        question = from_json(VerificationRequest, line)
        kernels = question.kernels
        suffix = "asked" if kernels is None else "compared"
        with Path(f"{path}.{suffix}").open("a") as file:
            print(question.spec if kernels is None else to_json(kernels), file=file)
        known = json.loads(Path(path).read_text())
        channel.answer(to_json(answer(question, known)))


if __name__ == "__main__":
    main()
