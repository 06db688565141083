"""The first retrieval of a right-hand side of 17 nests, of which nothing is recorded.

Each process begins with empty caches, so that every recipe is verified and all code
generated. Prints the processor, the seconds by the wall clock, and those of processors;
then the same for a retrieval that verifies nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.experiments.machine import processor  # noqa: E402

PROGRAM = """
import resource, time, warnings
from feinsum.records import InMemoryStore
from feinsum.retrieval import look_up
from tests.raising.right_hand_sides import wave

warnings.simplefilter("ignore")
unit = wave()
start = time.perf_counter()
found = look_up(
    unit, database=InMemoryStore(), device="host", policy="loose", verify={verify}
)
wall_s = time.perf_counter() - start
own = resource.getrusage(resource.RUSAGE_SELF)
print(
    f"{{len(found.applied)}} of {{len(found.nests)}} nests, verification {{{verify}}}: "
    f"{{wall_s:.1f}} s, own {{own.ru_utime + own.ru_stime:.1f}} s with imports"
)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{processor()}, {len(os.sched_getaffinity(0))} cores", flush=True)
    for _ in range(options.rounds):
        for verify in (True, False):
            with tempfile.TemporaryDirectory(prefix="feinsum-rhs-") as folder:
                caches = dict.fromkeys(("FEINSUM_CACHE_DIR", "XDG_CACHE_HOME"), folder)
                subprocess.run(
                    (sys.executable, "-c", PROGRAM.format(verify=verify)),
                    env={**os.environ, **caches, "PYTHONPATH": str(ROOT)},
                    check=True,
                )


if __name__ == "__main__":
    main()
