"""What XLA makes of an einsum whose operands are placed as a plan needs them, as JSON.

A program of its own, for the number of devices is set before JAX is imported.
"""

from __future__ import annotations

import json
import re
import sys

import numpy as np

COLLECTIVE = re.compile(
    r"= \(?f64\[([\d,]*)\]\S* (all-reduce|reduce-scatter|all-gather|all-to-all|"
    r"collective-permute)(?:-start)?\(.*?replica_groups=(\{\{.*?\}\}|\S+?)[,\s]"
)


def collectives(given: dict) -> list[dict]:
    """Of each collective its name, the shape on a device, and who takes part."""
    import jax  # tests that collect this file may have none
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_enable_x64", True)
    mesh = Mesh(np.array(jax.devices()).reshape(given["grid"]), given["axes"])

    def placed(cuts: list[list[str]]) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(tuple(c) or None for c in cuts)))

    arrays = [
        jax.ShapeDtypeStruct(shape, "float64", sharding=placed(cuts))
        for shape, cuts in zip(given["shapes"], given["needs"], strict=True)
    ]
    subscripts, summed = given["subscripts"], tuple(given["summed"])

    def on_blocks(*blocks):
        found = jax.numpy.einsum(subscripts, *blocks)
        return jax.lax.psum(found, summed) if summed else found

    if len(arrays) > 2:  # of more operands XLA places the products on the way elsewhere
        specs = [array.sharding.spec for array in arrays]
        output = placed(given["output"]).spec
        mapped = jax.shard_map(
            on_blocks, mesh=mesh, in_specs=tuple(specs), out_specs=output
        )
        work = jax.jit(mapped)
    else:
        work = jax.jit(
            lambda *blocks: jax.numpy.einsum(subscripts, *blocks),
            out_shardings=placed(given["output"]),
        )
    text = work.lower(*arrays).compile().as_text()
    return [
        {"name": name, "shape": shape, "groups": groups}
        for shape, name, groups in COLLECTIVE.findall(text)
    ]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(collectives(json.loads(sys.argv[1]))) + "\n")
