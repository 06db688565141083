"""``python -m benchmarks.compare SUBSCRIPTS``."""

from benchmarks.compare.command import main

main()
