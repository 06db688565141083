"""Two programs of two people: one records what the other one retrieves.

``python -m tests.remote.two record URL`` measures a recipe and sends it to a service;
``python -m tests.remote.two retrieve`` retrieves with what is set, and runs.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np

from feinsum import record_facts
from feinsum.db import HttpStore
from feinsum.measure import compile_kernel, open_device
from feinsum.retrieval import look_up
from tests.retrieval.facts import recipe, surely_faster
from tests.retrieval.kernels import reduction


def record(url: str) -> dict[str, object]:
    example = reduction()
    spec = recipe(example)
    fact = record_facts(example.einsum, spec, sizes={"N": 2000}, database=url)
    HttpStore.at(url).add(surely_faster(fact))  # the one that was measured may be slow
    return {"id": fact.id, "spec": str(fact.spec)}


def retrieve() -> dict[str, object]:
    example = reduction()
    found = look_up(example.kernel)
    arguments = example.arguments(example.sizes[0])
    bound = compile_kernel(found.t_unit, open_device()).bind(arguments)
    bound.run()
    results, expected = bound.read(), example.in_numpy(arguments)
    error = max(float(np.abs(results[k] - expected[k]).max()) for k in expected)
    return {
        "applied": [str(spec) for spec in found.applied],
        "layers": [str(layer) for layer in found.layers],
        "error": error,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    told = record(sys.argv[2]) if sys.argv[1] == "record" else retrieve()
    print(json.dumps(told))
