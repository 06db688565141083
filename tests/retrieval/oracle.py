"""A process in the place of the one that verifies: it says what a test has written.

Run as ``python -m tests.retrieval.oracle FILE``; the file has, as JSON, for a part of
the text of a recipe the times of that recipe and of the untransformed kernel, or the
code of an error. What it is asked goes to FILE.asked, one recipe per line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from feinsum.measure.question import Question, Verdict
from feinsum.records import OK, from_json, to_json
from feinsum.retrieval import verifiers


class Oracle:
    """What the process will say, and what it was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "oracle.json"
        self._file.write_text("{}")
        command = (sys.executable, "-m", __name__, str(self._file))
        monkeypatch.setattr(verifiers, "COMMAND", command)

    def says(self, **known: tuple[float, float] | str) -> None:
        """For a part of the text of a recipe: times, or the code of an error."""
        self._file.write_text(json.dumps(known))

    @property
    def asked(self) -> list[str]:
        path = Path(f"{self._file}.asked")
        return path.read_text().splitlines() if path.exists() else []


def answer(question: Question, known: dict[str, list[float] | str]) -> Verdict:
    for part, said in known.items():
        if part in str(question.spec):
            if isinstance(said, str):
                return Verdict(said, "as the test says")
            least_s, baseline_s = said
            return Verdict(
                OK, least_s=least_s, baseline_s=baseline_s, sizes=question.sizes
            )
    raise SystemExit(f"nothing is known of {question.spec}")


def main() -> None:
    path = sys.argv[1]
    for line in sys.stdin:
        question = from_json(Question, line)
        with Path(f"{path}.asked").open("a") as file:
            print(question.spec, file=file)
        known = json.loads(Path(path).read_text())
        print(to_json(answer(question, known)), flush=True)


if __name__ == "__main__":
    main()
