"""The request of a retrieval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast, get_args

import loopy as lp

from feinsum.db import Database
from feinsum.errors import DeviceUnavailableError, FeinsumError, NotAnEinsumError
from feinsum.options import option_of
from feinsum.predict import Effort, effort_of
from feinsum.raising import RaisedKernel, called_kernels, raise_kernel
from feinsum.records import Policy
from feinsum.retrieval.trust import is_verification_on
from feinsum.targets.devices import open_device, target_of
from feinsum.targets.protocol import OpenDevice

__all__ = ["POLICY_VARIABLE", "Request", "policy_of"]

POLICY_VARIABLE = "FEINSUM_POLICY"
"""Environment variable with the policy, where none is given."""


@dataclass(frozen=True)
class Request:
    """A kernel and the options of its retrieval; see :func:`feinsum.retrieve`."""

    t_unit: lp.TranslationUnit
    device: str | None
    database: Database
    arguments: Mapping[str, Any] | None
    instructions: str | None
    kernel_name: str | None
    policy: Policy
    verify: bool
    effort: Effort

    @classmethod
    def of(
        cls,
        t_unit: lp.TranslationUnit,
        *,
        arguments: Mapping[str, Any] | None = None,
        device: str | None = None,
        database: Database = None,
        instructions: str | None = None,
        kernel_name: str | None = None,
        policy: Policy | None = None,
        verify: bool | None = None,
        effort: Effort | None = None,
    ) -> Self:
        """A request; environment variables supply omitted options.

        Raises:
            InvalidOptionError: for a policy or an effort that does not exist.
        """
        return cls(
            t_unit,
            device,
            database,
            arguments,
            instructions,
            kernel_name,
            policy_of(policy),
            is_verification_on(verify),
            effort_of(effort),
        )

    def raised(self) -> RaisedKernel:
        """The kernel with its einsums.

        Raises:
            NotAnEinsumError: if it cannot be raised, or if no target here runs it:
                recipes parallelize loops, which a target must support.
        """
        raised = raise_kernel(
            self.t_unit,
            arguments=self.arguments,
            instructions=self.instructions,
            kernel_name=self.kernel_name,
        )
        try:
            target_of(raised.t_unit.target)
        except DeviceUnavailableError as error:
            raise NotAnEinsumError(
                f"kernel {raised.kernel_name!r} cannot be transformed: {error}",
                rule="target",
                instructions=tuple(i for n in raised.raised for i in n.instructions),
            ) from None
        return raised

    def of_callee(self) -> Self | None:
        """The request for the one kernel that the kernel calls; None if it calls none.

        PyOP2 and others wrap a one-cell kernel in a loop that gathers its inputs and
        scatters its outputs. The einsums are in the callee, and its caller, a plain
        function, is unchanged: a called kernel has no threads of its own.
        """
        unit = self.t_unit
        if not isinstance(unit, lp.TranslationUnit) or not _is_plain_function(unit):
            return None
        if len(unit.entrypoints) != 1:
            return None
        (name,) = unit.entrypoints
        called = called_kernels(unit, name)
        if self.kernel_name not in (None, name) or len(called) != 1:
            return None
        callee = unit.copy(entrypoints=frozenset(called))
        return replace(self, t_unit=callee, kernel_name=None, arguments=None)

    def opened(self) -> OpenDevice:
        """The device that runs the kernel.

        Raises:
            DeviceUnavailableError: if there is none.
        """
        return open_device(self.device, loopy_target=self.t_unit.target)


def _is_plain_function(unit: lp.TranslationUnit) -> bool:
    if not isinstance(unit.target, lp.CTarget):
        return False
    try:
        return not target_of(unit.target).runs_programs(unit.target)
    except FeinsumError:
        return False


def policy_of(given: Policy | None) -> Policy:
    """The given policy, or else that of the environment variable.

    Raises:
        InvalidOptionError: if it is none.
    """
    found = option_of(
        "policy", given, get_args(Policy), variable=POLICY_VARIABLE, default="default"
    )
    return cast(Policy, found)
