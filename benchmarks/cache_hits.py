"""Simulate which caches answer the look-ups of many builds: disks, proxies, or the
service.

Builds start at random times on random machines, and look up workloads whose popularity
follows Zipf's law. A machine stores answers on disk, and reuses them up to their
max-age; then it revalidates them by ETag at its proxy. A proxy does the same at the
service. Now and then a new fact changes the answer of a workload. Caches are unlimited.

Prints and draws the share of look-ups that each of them answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from benchmarks.tables import make_table

Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "cache-hits.png"
MAX_AGES_S = (0, 60, 300, 900, 3600)
DAY_S = 86_400
STDERR = Console(stderr=True)


@dataclass(frozen=True)
class Scenario:
    """A simulated day, of which the second half counts.

    Attributes:
        kernels: look-ups of one build; repeated ones count once.
        skew: exponent s of the popularity k**-s of the k-th workload.
        machines: number of machines with persistent disks; 0: every build has an empty
            disk.
        proxies: number of proxies that serve the machines; 0: none.
        new_facts: number per day.
    """

    builds: int = 1_000_000
    kernels: int = 20
    workloads: int = 10_000
    skew: float = 1.0
    machines: int = 5_000
    proxies: int = 2
    new_facts: int = 10_000
    max_age_s: int = 60
    seed: int = 1


@dataclass(frozen=True)
class Shares:
    """The shares of all look-ups by answerer, which add up to 1.

    Attributes:
        disk, proxy: answered there.
        unchanged, full: answered by the service, with 304 and with a body.
        per_s: look-ups per second that the service answers.
    """

    disk: float
    proxy: float
    unchanged: float
    full: float
    per_s: float


@dataclass(frozen=True)
class Requests:
    """Look-ups, with times in milliseconds."""

    time: Integers
    machine: Integers
    workload: Integers

    def __getitem__(self, chosen: Truths) -> Requests:
        return Requests(self.time[chosen], self.machine[chosen], self.workload[chosen])


def forward_requests(group: Integers, time: Integers, max_age: int) -> Truths:
    """Return the requests that a cache forwards, because it has no fresh answer.

    Args:
        group: cache and subject of each request.
        max_age: age at which an answer is stale.

    >>> group, time = np.array([7, 7, 7, 7, 8]), np.array([0, 9, 10, 15, 15])
    >>> forward_requests(group, time, max_age=10).tolist()
    [True, False, True, False, True]
    """
    if not max_age:
        return np.ones(len(group), bool)
    position, order = sort_positions(group, time, max_age)
    ordered = group[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = np.diff(ordered) != 0
    sent = np.zeros(len(order), bool)
    first_requests = np.flatnonzero(is_first)
    while len(first_requests):
        sent[first_requests] = True
        later = np.maximum(
            np.searchsorted(position, position[first_requests] + max_age),
            first_requests + 1,
        )
        is_there = later < len(position)
        first_requests, later = first_requests[is_there], later[is_there]
        first_requests = later[ordered[later] == ordered[first_requests]]
    return restore_order(sent, order)


def sort_positions(
    group: Integers, time: Integers, gap: int = 0
) -> tuple[Integers, Integers]:
    """Sort requests on one line, group after group with gaps; return the order, too."""
    span = int(time.max(initial=0)) + gap + 1
    assert int(group.max(initial=0)) < 2**63 // span - 1
    position = group * span + time
    order = np.argsort(position, kind="stable")
    return position[order], order


def restore_order(truths: Truths, order: Integers) -> Truths:
    result = np.empty_like(truths)
    result[order] = truths
    return result


def is_same_as_before(group: Integers, time: Integers, version: Integers) -> Truths:
    """Return whether each request of a group finds the previous version."""
    _, order = sort_positions(group, time)
    same = np.zeros(len(order), bool)
    same[1:] = (np.diff(group[order]) == 0) & (np.diff(version[order]) == 0)
    return restore_order(same, order)


def count_versions(changes: Requests, workload: Integers, time: Integers) -> Integers:
    """Count the changes of a workload's answer until a time."""
    span = DAY_S * 1000 + 1
    position = np.sort(changes.workload * span + changes.time)
    until = np.searchsorted(position, workload * span + time, side="right")
    return until - np.searchsorted(position, workload * span)


def draw_requests(scenario: Scenario, rng: np.random.Generator) -> Requests:
    """Draw the look-ups of a day, without repetitions within a build."""
    build = np.repeat(np.arange(scenario.builds), scenario.kernels)
    workload = draw_workloads(scenario, rng, len(build))
    pairs = np.unique(build * scenario.workloads + workload)
    build, workload = np.divmod(pairs, scenario.workloads)
    time = rng.integers(DAY_S * 1000, size=scenario.builds)
    machine = np.arange(scenario.builds)
    if scenario.machines:
        machine = rng.integers(scenario.machines, size=scenario.builds)
    return Requests(time[build], machine[build], workload)


def draw_workloads(scenario: Scenario, rng: np.random.Generator, n: int) -> Integers:
    shares = np.arange(1, scenario.workloads + 1) ** -scenario.skew
    return np.searchsorted(np.cumsum(shares / shares.sum())[:-1], rng.random(n))


def simulate(scenario: Scenario) -> Shares:
    """Simulate who answers the look-ups of the second half of a day."""
    rng = np.random.default_rng(scenario.seed)
    requests = draw_requests(scenario, rng)
    n_new = scenario.new_facts
    changes = Requests(
        rng.integers(DAY_S * 1000, size=n_new),
        np.zeros(n_new, np.int64),
        draw_workloads(scenario, rng, n_new),
    )
    max_age = scenario.max_age_s * 1000
    counted = requests.time >= DAY_S * 500
    n = int(counted.sum())
    of_disk = requests.machine * scenario.workloads + requests.workload
    left = requests[forward_requests(of_disk, requests.time, max_age)]
    n_left = int((left.time >= DAY_S * 500).sum())
    cache = left.machine % scenario.proxies if scenario.proxies else left.machine
    of_proxy = cache * scenario.workloads + left.workload
    is_sent = forward_requests(of_proxy, left.time, max_age if scenario.proxies else 0)
    last = left[is_sent]
    version = count_versions(changes, last.workload, last.time)
    is_unchanged = is_same_as_before(of_proxy[is_sent], last.time, version)
    late = last.time >= DAY_S * 500
    n_last, n_unchanged = int(late.sum()), int((is_unchanged & late).sum())
    return Shares(
        disk=(n - n_left) / n,
        proxy=(n_left - n_last) / n,
        unchanged=n_unchanged / n,
        full=(n_last - n_unchanged) / n,
        per_s=n_last / (DAY_S / 2),
    )


def report(console: Console, shares_of: dict[Scenario, Shares]) -> None:
    heads = ("disks", "proxies", "max-age s", "disk", "proxy", "304", "200")
    table = make_table((), (*heads, "service, per second"))
    for scenario, shares in shares_of.items():
        answered = (shares.disk, shares.proxy, shares.unchanged, shares.full)
        table.add_row(
            str(scenario.machines or "empty"),
            str(scenario.proxies or "none"),
            str(scenario.max_age_s),
            *(f"{100 * share:.1f} %" for share in answered),
            f"{shares.per_s:.1f}",
        )
    console.print(table)


def draw(shares_of: dict[Scenario, Shares], path: Path) -> None:
    """Draw stacked bars over the max-age, one panel for each kind of machines and
    proxies.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = list(
        dict.fromkeys((scenario.machines, scenario.proxies) for scenario in shares_of)
    )
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4 * len(panels), 4), sharey=True, squeeze=False
    )
    names = {"disk": "own disk", "proxy": "proxy", "unchanged": "service: 304",
             "full": "service: 200"}  # fmt: skip
    colors = ("#4477aa", "#66ccee", "#ccbb44", "#ee6677")
    for axis, (machines, proxies) in zip(axes[0], panels, strict=True):
        shown = {
            scenario.max_age_s: shares
            for scenario, shares in shares_of.items()
            if (scenario.machines, scenario.proxies) == (machines, proxies)
        }
        positions, bottom = np.arange(len(shown)), np.zeros(len(shown))
        for (name, label), color in zip(names.items(), colors, strict=True):
            height = np.array([100 * getattr(s, name) for s in shown.values()])
            axis.bar(positions, height, 0.7, bottom, label=label, color=color)
            bottom += height
        for position, shares in zip(positions, shown.values(), strict=True):
            axis.text(position, 101, f"{shares.per_s:.0f}/s", ha="center", fontsize=8)
        axis.set_xticks(positions, [str(age) for age in shown])
        axis.set_xlabel("max-age in seconds")
        disks = f"{machines} machines" if machines else "empty disks"
        axis.set_title(f"{disks}, {proxies or 'no'} proxies", fontsize=10, pad=16)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("look-ups answered, %")
    figure.suptitle(
        "Share of answers; above the bars: answers of the service per second"
    )
    figure.legend(*axes[0][0].get_legend_handles_labels(), ncols=4, frameon=False,
                  loc="lower center")  # fmt: skip
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def list_scenarios(base: Scenario, max_ages_s: Sequence[int]) -> list[Scenario]:
    """List scenarios: persistent disks with and without proxies, empty disks with
    proxies.
    """
    kinds = [(base.machines, base.proxies), (base.machines, 0), (0, base.proxies)]
    return [
        replace(base, machines=machines, proxies=proxies, max_age_s=age)
        for machines, proxies in kinds
        for age in max_ages_s
    ]


def main() -> None:
    default = Scenario()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--builds", type=int, default=default.builds, help="per day")
    parser.add_argument(
        "--kernels", type=int, default=default.kernels, help="per build"
    )
    parser.add_argument("--workloads", type=int, default=default.workloads)
    parser.add_argument(
        "--skew", type=float, default=default.skew, help="exponent of Zipf's law"
    )
    parser.add_argument("--machines", type=int, default=default.machines)
    parser.add_argument("--proxies", type=int, default=default.proxies)
    parser.add_argument(
        "--new-facts", type=int, default=default.new_facts, help="per day"
    )
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--max-age", type=int, nargs="+", default=MAX_AGES_S,
                        help="in seconds")  # fmt: skip
    parser.add_argument("--figure", type=Path, default=FIGURE)
    options = vars(parser.parse_args())
    ages, figure = options.pop("max_age"), options.pop("figure")
    scenarios = list_scenarios(Scenario(**options), ages)
    shares_of = {
        scenario: simulate(scenario)
        for scenario in track(scenarios, "scenarios", console=STDERR, transient=True)
    }
    console = Console()
    console.print(
        f"{options['builds']} builds a day of {options['kernels']} kernels, "
        f"{options['workloads']} workloads, {options['new_facts']} new facts a day"
    )
    report(console, shares_of)
    draw(shares_of, figure)
    STDERR.print(f"{figure} is drawn")


if __name__ == "__main__":
    main()
