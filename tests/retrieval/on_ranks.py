"""A parallel program: what each rank gets, told by rank 0 as JSON.

Every rank has a database of its own. The test that starts it says what must come out.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

from feinsum import FeinsumWarning, open_store, retrieve
from feinsum.errors import FeinsumError, RecordNotFoundError
from feinsum.retrieval.identity import serialize_value
from feinsum.transforms import REGISTRY
from tests.retrieval.facts import fact, fact_of, recipe
from tests.retrieval.kernels import contraction, gradients, reduction

COMM = MPI.COMM_WORLD


class UpperCase:
    """A communicator that has nothing but the methods for buffers."""

    Get_rank = staticmethod(COMM.Get_rank)
    Get_size = staticmethod(COMM.Get_size)
    Bcast = staticmethod(COMM.Bcast)
    Allreduce = staticmethod(COMM.Allreduce)


def told(unit) -> str:
    """A kernel as a digest of its text: equal exactly if the kernels are."""
    return hashlib.sha256(serialize_value(unit).encode()).hexdigest()


def outcome(kernel, database, **options):
    """What a rank sees: is it unchanged, how many warnings, what is the kernel."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        unit = retrieve(kernel, database=database, comm=COMM, **options)
    said = [str(w.message) for w in caught if issubclass(w.category, FeinsumWarning)]
    return {"is_unchanged": unit is kernel, "said": said, "kernel": told(unit)}


def database_of(rank: int, folder: Path) -> Path:
    """Of rank 0 a slow recipe, of rank 1 a better one, of rank 2 none, of 3 garbage."""
    path = folder / f"facts-{rank}.sqlite"
    if rank == 3:
        path.write_bytes(b"garbage" * 1000)
        return path
    with open_store(path) as store:
        if rank == 0:
            store.add(fact_of(reduction(), speedup=2.0))
        if rank == 1:
            known = recipe(reduction())
            better = replace(known, parameters={**known.parameters, "block": 64})
            store.add(fact(reduction().einsum, better, speedup=99.0))
    return path


def main(folder: Path) -> None:
    rank = COMM.Get_rank()
    database = database_of(rank, folder)
    warnings.simplefilter("ignore")
    alone = retrieve(reduction().kernel, database=database, on_miss="return")
    found = {
        "alone": told(alone),
        "together": outcome(reduction().kernel, database),
        "unknown": outcome(contraction().kernel, database),
        "other kernel": outcome(
            (gradients() if rank == 2 else reduction()).kernel, database
        ),
    }
    upper = retrieve(reduction().kernel, database=database, comm=UpperCase())
    found["upper case"] = told(upper)
    if rank == 1:
        del REGISTRY["rowwise", 1]
    found["not there"] = outcome(reduction().kernel, database)
    try:
        outcome(reduction().kernel, database, on_miss="raise")
    except RecordNotFoundError:
        found["raised"] = "by another rank"
    except FeinsumError as error:
        found["raised"] = f"here: {type(error).__name__}"
    everything = COMM.gather(found)
    if rank == 0:
        print(json.dumps(everything))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
