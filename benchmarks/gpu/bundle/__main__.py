"""``python -m benchmarks.gpu.bundle export FOLDER`` and ``import FOLDER``."""

from benchmarks.gpu.bundle.command import app

app(prog_name="python -m benchmarks.gpu.bundle")
