"""The recipe of a call with a sparse operand: looked up by the key of its einsum."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from feinsum.calling.kernel_cache import LookupOptions
from feinsum.canonical import canonicalize
from feinsum.db import looked_up_store
from feinsum.errors import FeinsumError
from feinsum.ir import (
    BatchedEinsum,
    Operand,
    from_text,
    generalize,
    list_profile_names,
)
from feinsum.measure import open_device
from feinsum.nests import Network, parse_nest, translate_text
from feinsum.predict import MEASURING
from feinsum.records import Match, TransformSpec
from feinsum.retrieval.einsum_trials import EinsumTrials
from feinsum.retrieval.matching import (
    MatchingFacts,
    Nearest,
    find_nearest,
    list_lookup_forms,
)
from feinsum.retrieval.request import choose_policy, is_verification_on
from feinsum.sparse import CSF
from feinsum.transforms import check_spec
from feinsum.transforms.nests import NestRecipe, parse_recipe

logger = logging.getLogger(__name__)

DEVICE = "host"


def build_einsum(
    network: Network, arrays: Sequence[Any]
) -> tuple[BatchedEinsum, dict[str, int]]:
    """Build the einsum of a call, and return it with the profile of its tree.

    Args:
        network: the network to compute.
        arrays: the operands; a single operand is followed by the factor 1.

    >>> from feinsum.nests import parse_network
    >>> from feinsum.sparse import random_uniform, to_csf
    >>> tree = to_csf(random_uniform((30, 20), 50, seed=0))
    >>> found, sizes = build_einsum(parse_network("ij,j->i"), [tree, np.ones(20)])
    >>> print(found.operands[0], sizes)
    A0[30,20]:csf<f8 {'nodes.0': 24, 'nodes.1': 50}
    """
    terms, row = [], []
    for position, (term, array) in enumerate(zip(network.inputs, arrays, strict=True)):
        name = f"A{position}"
        if isinstance(array, CSF):
            shape = tuple(array.shape[axis] for axis in array.axes)
            storage = "csf=" if network.has_sparse_output else "csf"
            terms.append(network.levels)
            row.append(Operand(name, shape, array.values.dtype, storage))
        # the factor 1 of a single operand is not an operand of the einsum
        elif term or len(arrays) > 2:
            terms.append(term)
            row.append(Operand(name, np.shape(array), np.asarray(array).dtype))
    einsum = BatchedEinsum(network.output, tuple(terms), (tuple(row),))
    tree = arrays[network.sparse or 0]
    return einsum, dict(zip(list_profile_names(einsum), tree.profile, strict=True))


def find_recorded_recipe(
    network: Network, arrays: Sequence[Any], options: LookupOptions
) -> tuple[NestRecipe | None, str]:
    """Find the best recorded recipe that works here; also describe the match.

    If the effort measures, the einsum is tuned first.

    Raises:
        StoreError: if the database cannot be read.
    """
    einsum, nodes = build_einsum(network, arrays)
    general, literal = generalize(einsum)
    sizes = {**literal, **nodes}
    if options.effort in MEASURING:
        from feinsum.tuning import measure_if_possible  # most calls need no tuner

        measure_if_possible(
            general, sizes, options.effort, device=DEVICE, database=options.database
        )
    environment = open_device(DEVICE).environment({})
    policy = choose_policy(options.policy)
    is_required = options.on_miss == "raise"
    with looked_up_store(options.database, must_exist=is_required) as store:
        facts = MatchingFacts(store, environment.device, policy)
        nearest_facts, match = find_nearest(
            list_lookup_forms(general, sizes), facts, environment, policy
        )
    trials = EinsumTrials(environment, is_final=False)
    return _find_usable(network, nearest_facts, match, trials), match.reason


def _find_usable(
    network: Network, nearest_facts: Nearest, match: Match, trials: EinsumTrials
) -> NestRecipe | None:
    """Return the first recipe that may be used, in the names of the call's indices."""
    for candidate in nearest_facts.candidates(match):
        spec, frame = candidate.recipe
        try:
            if is_verification_on(None):
                trials.verify(candidate)
            return _translate_recipe(network, spec, frame, nearest_facts)
        except FeinsumError as error:
            logger.warning("recipe %.200s was skipped: %s", spec, error)
    return None


def _translate_recipe(
    network: Network, spec: TransformSpec, frame: str, nearest_facts: Nearest
) -> NestRecipe:
    """Translate a recipe from the names of its frame to those of the call.

    Raises:
        TransformError: if it does not fit.
    """
    written = from_text(frame)
    check_spec(spec, written)
    form = parse_recipe(written, spec.parameters).form
    call_names = nearest_facts.form.relabeling
    frame_names = canonicalize(written).relabeling
    # from the frame's names to canonical ones, and on to those of the call
    to_call = {canonical: name for name, canonical in call_names.indices.items()}
    indices = {
        name: to_call[canonical] for name, canonical in frame_names.indices.items()
    }
    canonical_position = {p: k for k, p in enumerate(frame_names.positions[0])}
    positions = [
        call_names.positions[0][canonical_position[p]]
        for p in range(written.n_operands)
    ]
    text = translate_text(str(spec.parameters["nest"]), indices, positions)
    lane = indices.get(str(spec.parameters["lane"]), "")
    return NestRecipe(parse_nest(network, text), replace(form, lane=lane))
