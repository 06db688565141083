"""A process that retrieves, runs and says what it found, as JSON."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings

import numpy as np

from feinsum import retrieve
from feinsum.measure import compile_kernel, open_device
from feinsum.targets.units import CodedUnit
from tests.retrieval.kernels import gradients


def main(database: str) -> None:
    warnings.simplefilter("ignore")
    example = gradients()
    unit = retrieve(example.kernel, database=database, on_miss="raise")
    assert isinstance(unit, CodedUnit)
    is_known = unit.shelf.code() is not None
    arguments = example.arguments(example.sizes[0])
    bound = compile_kernel(unit, open_device()).bind(arguments)
    bound.run()
    results, expected = bound.read(), example.in_numpy(arguments)
    error = max(float(np.abs(results[k] - expected[k]).max()) for k in expected)
    content = b"".join(results[name].tobytes() for name in sorted(results))
    found = {
        "is_known": is_known,
        "error": error,
        "digest": hashlib.sha256(content).hexdigest(),
        "shelf": unit.shelf.key,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
