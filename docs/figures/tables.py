"""The tables of the documentation, from the files in benchmarks/results.

``make figures`` replaces what stands between ``<!-- table: NAME -->`` and
``<!-- end -->`` on the pages. A result file is what a benchmark printed, below lines
with the command, the processor and the date::

    # command: make bench-firedrake
    # processor: two cores of an AMD EPYC (Zen 5)
    # date: 2026-11-26
    | form | cell | order | ... | ratio | how |

The table ``gpu`` is of all files ``gpu-NAME.txt``, which ``benchmarks/gpu.sh`` writes.
Files that are given as arguments are copied to benchmarks/results first.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import geometric_mean

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/explanation/performance.md", ROOT / "docs/how-to/gpu.md"
RESULTS = ROOT / "benchmarks/results"

Row = list[str]
_HEADER = re.compile(r"^# (command|processor|date): (.*)\n", re.MULTILINE)
_ENTRY = re.compile(r"^(\S+) .* ([\d.]+)≈? +([\d.]+)≈? +[\d.]+$", re.MULTILINE)
_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def summarize_operators(text: str) -> list[Row]:
    """Speed-ups of the DG operators, by kind."""
    return _summarize(text, "operators", lambda name: name.partition("_b")[0])


def summarize_contractions(text: str) -> list[Row]:
    """Speed-ups of the contractions, by the number of indices of the result."""
    return _summarize(text, "indices of the result", lambda name: str(name.index("-")))


def summarize_cells(text: str) -> list[Row]:
    """Speed-ups of kernels of one cell, by form."""
    groups: dict[str, list[float]] = defaultdict(list)
    for form, *_, ratio, _ in read_table(text)[1:]:
        groups[form].append(float(ratio))
    rows = [[form, str(len(v)), *_spread(v)] for form, v in groups.items()]
    return [["form", "kernels", "mean", "least", "most"], *rows]


def summarize_programs(text: str) -> list[Row]:
    """Times of whole programs over those of the best rival, by kind of program."""
    header, *rows = read_table(text)
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[re.split(r"-(?=\d|float|complex)", row[0])[0]].append(row)
    groups["all"] = rows
    first, second = header.index("first"), header.index("second")
    return [
        ["program", "sizes", "first", "least", "most", "second"],
        *(
            [
                name,
                str(len(group)),
                *_spread(float(row[first]) for row in group),
                f"{geometric_mean(float(row[second]) for row in group):.2f}",
            ]
            for name, group in groups.items()
        ),
    ]


def summarize_sparse(text: str) -> list[Row]:
    """Times of the best rival over those of feinsum, by kernel and threads."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    # each run prints its processor and threads, and then its table
    for n_threads, run in re.findall(r", (\d+) threads, [^|]*((?:\|.*\n)+)", text):
        for entry, *_, ratio, _ in read_table(run)[1:]:
            groups[entry.split()[0], n_threads].append(float(ratio))
    rows = [[*place, str(len(v)), *_spread(v)] for place, v in sorted(groups.items())]
    return [["kernel", "threads", "entries", "mean", "least", "most"], *rows]


def summarize_gpu(text: str) -> list[Row]:
    """Times of each rival over ours, by suite, and our own rates."""
    (_, _, _, *rivals, _, _), *rows = read_table(text)
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[0]].append(row[2:])
    table = [
        ["suite", "entries", "best rival", "least", "most", *rivals, "TB/s", "TFLOP/s"]
    ]
    for suite, group in groups.items():
        ran = [row for row in group if row[0] != "-" and {*row[1:-2]} != {"-"}]
        if not ran:
            continue
        ratios = [
            [None if s == "-" else float(s) / float(ours) for s in seconds]
            for ours, *seconds, _, _ in ran
        ]
        table.append(
            [
                suite,
                f"{len(ran)} of {len(group)}",
                *_spread(min(filter(None, one)) for one in ratios),
                *(_mean(filter(None, column)) for column in zip(*ratios, strict=True)),
                # megabytes and millions of operations per microsecond
                *(
                    _mean(float(row[k]) / float(row[0]) for row in ran)
                    for k in (-2, -1)
                ),
            ]
        )
    return table


def _mean(values: Iterable[float]) -> str:
    listed = list(values)
    return f"{geometric_mean(listed):.2f}" if listed else "-"


def read_table(text: str) -> list[Row]:
    """The rows of a Markdown table, without the line below its header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if not set("".join(row)) <= set("-")]


TABLES: dict[str, Callable[[str], list[Row]]] = {
    "totals-zen5": summarize_programs,
    "users-emerald-rapids": read_table,
    "dgfem-sapphire-rapids": summarize_operators,
    "tccg-zen5": summarize_contractions,
    "firedrake-emerald-rapids": summarize_cells,
    "sparse-emerald-rapids": summarize_sparse,
}


def render(name: str) -> str:
    """The tables of a name: of one result file, or of all GPUs."""
    if name != "gpu":
        return render_file(RESULTS / f"{name}.txt", TABLES[name])
    return "".join(
        render_file(path, summarize_gpu) for path in sorted(RESULTS.glob("gpu-*.txt"))
    )


def render_file(path: Path, summarize: Callable[[str], list[Row]]) -> str:
    """The commands, the processor with the date, and the table of a result file."""
    text = path.read_text()
    header = defaultdict(list)
    for key, value in _HEADER.findall(text):
        header[key].append(value)
    commands = "".join(f"$ {command}\n" for command in header["command"])
    (processor,), (date,) = header["processor"], header["date"]
    first, *rows = summarize(_HEADER.sub("", text))
    head, *body = (f"| {' | '.join(row)} |\n" for row in (first, *rows))
    table = "".join([head, "|---" * len(first) + "|\n", *body])
    where = f"{processor[:1].upper()}{processor[1:]}, {date}:"
    return f"\n```console\n{commands}```\n\n{where}\n\n{table}\n"


def render_page(text: str) -> str:
    """The page with its tables as the result files have them now."""
    return _BLOCK.sub(lambda block: block[1] + render(block[2]) + block[3], text)


def _summarize(text: str, heading: str, group_of: Callable[[str], str]) -> list[Row]:
    """Rows of the first table of an experiment: the best rival, then JAX."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, best, jax in _ENTRY.findall(text):
        groups[group_of(name)].append((float(best), float(jax)))
    groups["all"] = [pair for pairs in groups.values() for pair in pairs]
    rows = [
        [
            group.replace("_", " "),
            str(len(pairs)),
            *_spread(best for best, _ in pairs),
            f"{geometric_mean(jax for _, jax in pairs):.2f}",
        ]
        for group, pairs in sorted(groups.items())
    ]
    return [[heading, "entries", "best rival", "least", "most", "JAX"], *rows]


def _spread(values: Iterable[float]) -> Row:
    """Geometric mean, least and most."""
    listed = list(values)
    return [
        f"{value:.2f}" for value in (geometric_mean(listed), min(listed), max(listed))
    ]


if __name__ == "__main__":
    for file in sys.argv[1:]:
        shutil.copy(file, RESULTS)
    for page in PAGES:
        page.write_text(render_page(page.read_text()))
