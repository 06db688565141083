"""Time one sparse einsum by tensora, which is TACO in Python.

``sparse.py --tensora PYTHON`` runs it with an interpreter that has numpy and tensora,
which requires another llvmlite than numba. It uses one thread and double precision.
"""

from __future__ import annotations

import json
import sys
from statistics import median
from time import perf_counter

import numpy as np


def main(source: str, target: str) -> None:
    """Compute the einsum of one file; the result is written to another one."""
    from tensora import Tensor, tensor_method

    arrays = np.load(source)
    terms, output = str(arrays["subscripts"]).split("->")
    inputs = terms.split(",")
    names = ["T", *(f"F{k}" for k in range(1, len(inputs)))]
    factors = [f"{n}({','.join(t)})" for n, t in zip(names, inputs, strict=True)]
    order = len(inputs[0])
    formats = {name: "d" * len(t) for name, t in zip(names, inputs, strict=True)}
    formats |= {"out": "d" * len(output), "T": "s" * order}
    product = tensor_method(f"out({','.join(output)}) = {' * '.join(factors)}", formats)
    columns = tuple(arrays[f"level{k}"].tolist() for k in range(order))
    tensors = {
        "T": Tensor.from_soa(
            columns,
            arrays["values"].tolist(),
            dimensions=tuple(map(int, arrays["shape"])),
            format="s" * order,
        )
    }
    for k, name in enumerate(names[1:]):
        tensors[name] = Tensor.from_numpy(arrays[f"factor{k}"])
    seconds = []
    for _ in range(int(arrays["rounds"]) + 1):
        start = perf_counter()
        result = product(**tensors)
        seconds.append(perf_counter() - start)
    np.save(target, result.to_numpy())
    print(json.dumps(median(seconds[1:])))


if __name__ == "__main__":
    main(*sys.argv[1:])
