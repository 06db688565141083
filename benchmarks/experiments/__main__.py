"""``python -m benchmarks.experiments tccg`` or ``dgfem``."""

from benchmarks.experiments.command import main

main()
