"""The request of a retrieval: a kernel with its options, the policy and the device."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypedDict, Unpack, cast, get_args

import loopy as lp

from feinsum.db import Database, looked_up_store
from feinsum.errors import DeviceUnavailableError, NotAnEinsumError
from feinsum.options import check_option, get_option
from feinsum.predict import Effort, get_effort
from feinsum.raising import RaisedKernel, called_kernels, raise_kernel
from feinsum.records import WORST_ACCEPTED, MatchLevel, Policy, Store
from feinsum.targets.devices import find_target, open_device
from feinsum.targets.host import HOST
from feinsum.targets.protocol import OpenDevice

POLICY_VARIABLE = "FEINSUM_POLICY"
"""Environment variable with the policy, if none is given."""


VERIFY_VARIABLE = "FEINSUM_VERIFY"
"""Environment variable that is ``off`` on machines that cannot run recipes."""
OFF = "off"


class RetrievalOptions(TypedDict, total=False):
    """The options of a retrieval; see :func:`feinsum.retrieve`."""

    arguments: Mapping[str, Any] | None
    device: str | None
    database: Database
    instructions: str | None
    kernel_name: str | None
    policy: Policy | None
    verify: bool | None
    effort: Effort | None


def check_option_names(names: Iterable[str]) -> None:
    """Refuse options that a retrieval does not have.

    Raises:
        InvalidOptionError: naming the options.
    """
    for name in names:
        check_option("option", name, [*RetrievalOptions.__annotations__])


@dataclass(frozen=True)
class Request:
    """A kernel and the options of its retrieval; see :func:`feinsum.retrieve`.

    Attributes:
        must_find: whether a named database has to exist, since a miss is an error.
    """

    t_unit: lp.TranslationUnit
    policy: Policy
    verify: bool
    effort: Effort
    device: str | None = None
    database: Database = None
    arguments: Mapping[str, Any] | None = None
    instructions: str | None = None
    kernel_name: str | None = None
    must_find: bool = False

    @classmethod
    def of(
        cls, t_unit: lp.TranslationUnit, **options: Unpack[RetrievalOptions]
    ) -> Self:
        """Build a request; environment variables supply omitted options.

        Raises:
            InvalidOptionError: for an unknown option, policy or effort.
        """
        check_option_names(options)
        fields: dict[str, Any] = {**options}
        fields["policy"] = choose_policy(options.get("policy"))
        fields["verify"] = is_verification_on(options.get("verify"))
        fields["effort"] = get_effort(options.get("effort"))
        return cls(t_unit, **fields)

    @property
    def may_try_forms(self) -> bool:
        """Whether unmeasured recipes may be timed and used here."""
        is_accepted = WORST_ACCEPTED[self.policy] >= MatchLevel.PREDICTED
        return self.verify and is_accepted and self.effort != "recorded"

    def raised(self) -> RaisedKernel:
        """Raise the kernel, or the one that it calls.

        PyOP2 and others wrap a one-cell kernel in a loop that gathers its inputs and
        scatters its outputs. The einsums are in the callee. The caller stays unchanged:
        it is a plain function, and the callee has no threads of its own.

        Raises:
            NotAnEinsumError: if it cannot be raised.
        """
        if callee := _find_callee(self.t_unit, self.kernel_name):
            return raise_kernel(callee, instructions=self.instructions)
        return raise_kernel(
            self.t_unit,
            arguments=self.arguments,
            instructions=self.instructions,
            kernel_name=self.kernel_name,
        )

    def look_up_store(self) -> AbstractContextManager[Store]:
        """Open the database to look recipes up; see :func:`looked_up_store`."""
        return looked_up_store(self.database, must_exist=self.must_find)

    def measure_missing(self, raised: RaisedKernel) -> None:
        """Measure the einsums about which too little is recorded."""
        # most retrievals need no tuner
        from feinsum.tuning import measure_if_possible

        for nest in raised.raised:
            measure_if_possible(
                nest.einsum,
                nest.generalized,
                self.effort,
                device=self.opened.device.id,
                database=self.database,
            )

    @cached_property
    def opened(self) -> OpenDevice:
        """The device that runs the kernel, opened when it is first needed.

        Raises:
            NotAnEinsumError: if no target on this machine runs such kernels; it has to
                support the parallel loops of recipes.
            DeviceUnavailableError: if there is no device.
        """
        try:
            find_target(self.t_unit.target)
        except DeviceUnavailableError as error:
            raise NotAnEinsumError(
                f"the kernel cannot be transformed: {error}", rule="target"
            ) from None
        return open_device(self.device, loopy_target=self.t_unit.target)


def _find_callee(
    unit: lp.TranslationUnit, kernel_name: str | None
) -> lp.TranslationUnit | None:
    """Return the unit of the one kernel that a plain function calls; None otherwise."""
    is_unit = isinstance(unit, lp.TranslationUnit)
    if not is_unit or not isinstance(unit.target, lp.CTarget):
        return None
    # a host program consists of kernels, not of one-cell functions
    if HOST.runs_programs(unit.target) or len(unit.entrypoints) != 1:
        return None
    (name,) = unit.entrypoints
    called = called_kernels(unit, name)
    if kernel_name not in (None, name) or len(called) != 1:
        return None
    # the caller stays in the table of callables; `put_in_caller` restores it at the end
    return unit.copy(entrypoints=frozenset(called))


def choose_policy(policy: Policy | None) -> Policy:
    """Return the given policy, or else the environment variable's.

    Raises:
        InvalidOptionError: if it is unknown.
    """
    name = get_option(
        "policy", policy, get_args(Policy), variable=POLICY_VARIABLE, default="default"
    )
    return cast(Policy, name)


def is_verification_on(verify: bool | None) -> bool:
    """Return the argument, or else the environment variable; on by default."""
    if verify is not None:
        return verify
    return os.environ.get(VERIFY_VARIABLE, "").strip().lower() != OFF
