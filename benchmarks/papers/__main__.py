"""``python -m benchmarks.papers``."""

from benchmarks.papers.traffic import main

main()
