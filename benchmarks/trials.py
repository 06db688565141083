"""Trials to fit the model of predictions to: recipes of all ranks, for many einsums.

``python benchmarks/trials.py`` tunes every entry of a suite on a device. The first
recipes are those that are predicted to be the fastest, then come others that were
proposed, evenly over their ranks, then random ones of the whole space. Trials are kept
as they end, and none is made twice, so what was stopped goes on when it is started
again. Run it on an idle machine; ``feinsum model fit`` learns from the database.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.experiments.entries import SUITES, Entry, scaled_to  # noqa: E402
from feinsum import autotune  # noqa: E402
from feinsum.db import open_store  # noqa: E402
from feinsum.errors import FeinsumError  # noqa: E402
from feinsum.measure import open_device  # noqa: E402
from feinsum.predict import predictions  # noqa: E402
from feinsum.predict.correction import ANALYTIC  # noqa: E402
from feinsum.records import Device, Store, TransformSpec  # noqa: E402
from feinsum.suites import EVERYDAY  # noqa: E402
from feinsum.tuning import make_problem  # noqa: E402

STDERR = Console(stderr=True)
N_BEST = 5
"""Recipes that are predicted to be the fastest, which are always tried."""


def main() -> None:
    options = _options()
    entries = [
        scaled_to(entry, options.max_gflop)
        for entry in SUITES[options.suite]()
        if re.search(options.only, entry.name)
    ]
    device = open_device(options.device).device
    options.database.parent.mkdir(parents=True, exist_ok=True)
    with open_store(options.database) as store:
        for entry in track(entries, "entries", console=STDERR):
            _try(entry, store, device, options)
    print(f"{len(entries)} entries tried into {options.database}")


def chosen(ranked: Sequence[TransformSpec], n: int) -> list[TransformSpec]:
    """The first few, and others evenly over the rest, at most ``n``.

    >>> chosen(range(100), 8)
    [0, 1, 2, 3, 4, 5, 36, 68]
    """
    first, rest = ranked[:N_BEST], ranked[N_BEST:]
    n_more = max(0, min(n - N_BEST, len(rest)))
    return [*first[:n], *(rest[k * len(rest) // n_more] for k in range(n_more))]


def _try(
    entry: Entry, store: Store, device: Device, options: argparse.Namespace
) -> None:
    einsum = entry.einsum()
    problem = make_problem(einsum, entry.parameters)
    predicted = predictions(problem.einsum, problem.sizes, device, correction=ANALYTIC)
    n_proposed = options.trials * 2 // 3
    try:
        report = autotune(
            einsum,
            sizes=entry.parameters,
            device=options.device,
            database=store,
            n_trials=options.trials,
            strategy="random",
            seed=options.seed,
            first=chosen([candidate.spec for candidate in predicted], n_proposed),
            trial_limit_s=options.limit,
        )
    except FeinsumError as error:
        STDERR.print(f"{entry.name}: {error}")
        return
    n_passed = sum(trial.is_ok for trial in report.trials)
    STDERR.print(f"{entry.name}: {n_passed} of {len(report.trials)} trials passed")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", choices=SUITES, default=EVERYDAY)
    parser.add_argument("--only", default="", help="entries whose names match")
    parser.add_argument("--device", help="part of a device's name")
    parser.add_argument("--trials", type=int, default=24, help="for each entry")
    parser.add_argument("--seed", type=int, default=0, help="of random recipes")
    parser.add_argument("--limit", type=float, default=60, help="seconds of a trial")
    parser.add_argument(
        "--max-gflop", type=float, default=4.0, help="larger entries are scaled down"
    )
    parser.add_argument(
        "--database", type=Path, default=ROOT / ".cache" / "trials" / "trials.sqlite"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
