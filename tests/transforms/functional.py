"""Functions as operands of the kernels that recipes are checked on."""

from __future__ import annotations

from dataclasses import replace

import loopy as lp
from pymbolic.primitives import Variable

from feinsum.measure.cases import Case
from feinsum.measure.reference import NEVER_LONG
from feinsum.raising import identify_as_einsum


def functional_case(case: Case) -> Case:
    """The same case with functions as operands: each is an array times a scalar.

    The scalars are 1 but known only at run time, so results stay the same.
    """
    einsum, kernel = case.einsum, case.t_unit.default_entrypoint
    rules, factors = dict(kernel.substitutions), {}
    unique = kernel.get_var_name_generator()
    for op in einsum.operands:
        name = unique(f"factor_{op.name}")
        factors[name] = op.dtype.type(1)
        rule = rules[case.nest.rules[op.name]]
        rules[rule.name] = rule.copy(expression=Variable(name) * rule.expression)
    scalars = [lp.ValueArg(name, value.dtype) for name, value in factors.items()]
    changed = kernel.copy(substitutions=rules, args=[*kernel.args, *scalars])
    t_unit, nest = identify_as_einsum(
        case.t_unit.with_kernel(changed), einsum, long_extent=NEVER_LONG
    )
    arguments = {**case.arguments, **factors}
    return replace(case, t_unit=t_unit, nest=nest, arguments=arguments)
