"""The pictures in docs/reference/pages.md; see ``make screenshots``.

They show the facts that are shipped, and beside them some that are made up here: of
other drivers and recipes, and limits of the device, so that all of a page can be seen.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from feinsum.db import SqlStore, get_shipped_facts, open_store
from feinsum.records import DevicePeaks, Measurement, TransformSpec, TuningRecord
from tests.service.running import running

SHOWN = "b d, e c d, a e b -> a b c | A0[N0,10]:<f8 A1[3,10,10]:<f8"
"""How the text of the workload in the pictures begins: a gradient of order 2."""

DRIVERS = (("6.0", 1.35), ("6.1", 1.1), ("7.0", 0.9))
"""Made-up drivers, and how long recipes take with them."""

FIGURES = (
    ("pages-workload", "light", "/workloads/{workload}"),
    ("pages-device", "dark", "/devices/{device}"),
)

SIZE = {"width": 1120, "height": 960}
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def fill(store: SqlStore) -> TuningRecord:
    """Shipped facts and made-up ones; gives a fact of the workload to be shown."""
    known = list(get_shipped_facts().records())
    shown = (r for r in known if r.workload_text.startswith(SHOWN))
    # the limits below are those of a CPU
    on_cpus = (r for r in shown if r.environment.device.kind == "cpu")
    best = min(on_cpus, key=lambda record: record.measurement.median_s)
    device = best.environment.device
    store.add_all([*known, *made_up(known, best)])
    peaks = {"<f8": 2.6e11, "<f4": 5.2e11}
    store.add(DevicePeaks(device, 6.0e10, peaks, "2026-01-01T00:00:00+00:00"))
    return best


def made_up(known: list[TuningRecord], best: TuningRecord) -> Iterator[TuningRecord]:
    chance = random.Random(0)
    for record in (r for r in known if r.workload == best.workload):
        for month, (version, factor) in enumerate(DRIVERS, start=1):
            there = replace(record.environment, driver_version=version)
            timing = slower(record.measurement, factor, chance)
            day = f"2026-{month:02}-05T09:30:00+00:00"
            yield replace(
                record, environment=there, measurement=timing, recorded_at=day
            )
    for k, (name, factor) in enumerate(
        [("rowwise", 6.0), ("transposed", 3.2), ("element_blocked", 1.8)], start=1
    ):
        recipe = TransformSpec(name, 1, {"index": "b", "block": 32 * k})
        timing = slower(best.measurement, factor, chance)
        yield replace(best, spec=recipe, measurement=timing)


def slower(timing: Measurement, factor: float, chance: random.Random) -> Measurement:
    samples = (s * factor * chance.uniform(0.96, 1.06) for s in timing.samples_s)
    return replace(timing, samples_s=tuple(samples))


def take(browser: Browser, url: str, best: TuningRecord) -> None:
    for name, scheme, path in FIGURES:
        page = browser.new_page(color_scheme=scheme, viewport=SIZE)
        place = path.format(workload=best.workload, device=best.environment.device.id)
        page.goto(url + place)
        page.screenshot(path=Path(__file__).with_name(f"{name}.png"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        database = Path(folder) / "facts.sqlite"
        with open_store(database) as store:
            best = fill(store)
        chromium = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=QUIET
        )
        with running(str(database), Path(folder)) as server:
            take(chromium, server.url, best)
        chromium.close()
