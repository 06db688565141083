"""Programs of Loopy kernels: what the program computes is what the kernel computes."""

from __future__ import annotations

import importlib
import re

import loopy as lp
import numpy as np
import pytest

import feinsum
from feinsum.errors import ProgramError
from feinsum.programs import (
    attention,
    evaluate_program,
    program_from_kernel,
    program_key,
)
from feinsum.targets.host import HostCTarget
from tests.programs.random_programs import numbers

pytestmark = pytest.mark.filterwarnings("ignore:.*implicit conversion.*")

ATTENTION = lp.make_kernel(
    [
        "{[h,s,t,d]: 0<=h<2 and 0<=s,t<5 and 0<=d<4}",
        "{[h1,s1,t1,t3]: 0<=h1<2 and 0<=s1,t1,t3<5}",
        "{[h2,s2,d2,t2,t4]: 0<=h2<2 and 0<=s2,t2,t4<5 and 0<=d2<4}",
    ],
    """
    scores[h,s,t] = sum(d, 0.5*Q[s,h,d]*K[t,h,d])             {id=scores}
    shares[h1,s1,t1] = exp(scores[h1,s1,t1] - reduce(max, t3, scores[h1,s1,t3])) \
                                                            {id=shares,dep=scores}
    out[s2,h2,d2] = sum(t2, shares[h2,s2,t2]*V[t2,h2,d2])/ \
        sum(t4, shares[h2,s2,t4])                             {dep=shares}
    """,
    [
        lp.GlobalArg("Q,K,V,out", np.float64, shape=(5, 2, 4)),
        *(
            lp.TemporaryVariable(
                name,
                np.float64,
                shape=(2, 5, 5),
                address_space=lp.AddressSpace.GLOBAL,
            )
            for name in ("scores", "shares")
        ),
    ],
    lang_version=(2018, 2),
    target=HostCTarget(),
)


def assert_same(t_unit, program):
    arrays = numbers(program)
    _, found = t_unit.executor()(**arrays)
    expected = evaluate_program(program, arrays)
    names = program.outputs
    for name, one in zip(names, found, strict=True):
        assert np.allclose(one, expected[name], rtol=1e-12, atol=1e-12), name


def test_attention_in_three_nests():
    """With reductions of two kinds inside of expressions."""
    program = program_from_kernel(ATTENTION)
    assert [one.reduction for one in program.statements] == [
        "sum", "max", "sum", "sum", "sum", "sum",
    ]  # fmt: skip
    assert program.outputs == ("out",)
    assert_same(ATTENTION, program)
    p = feinsum.program()
    attention(p, *(p.input(name, (5, 2, 4)) for name in "QKV"))
    arrays = numbers(program)
    (theirs,) = p.run(**arrays).values()
    assert np.allclose(evaluate_program(program, arrays)["out"], theirs)


@pytest.mark.parametrize("name", ["k43_pytato_demo_matmul", "k21_pytato_grad"])
def test_kernels_that_pytato_made(name):
    """Captured from array programs; one of them is a single einsum with its key."""
    t_unit = importlib.import_module(f"tests.raising.kernels.{name}").build()
    program = program_from_kernel(t_unit)
    assert len(program.outputs) == len(program.statements)
    if name.startswith("k21"):
        assert program_key(program).startswith("fe2")
        arrays = numbers(program)
        (found,) = evaluate_program(program, arrays).values()
        J, D, u = (arrays[one] for one in "JDu")
        assert np.allclose(found, np.einsum("xre,rij,ej->xei", J, D, u, optimize=True))
        return
    x = numbers(program)["x"]
    found = evaluate_program(program, {"x": x})
    assert np.allclose(found["aat"], x @ x.T)
    assert np.allclose(found["a2a"], x @ (2 * x))


def kernel(instructions, shape=4):
    args = [
        lp.GlobalArg("A", np.float64, shape=(4, 4)),
        lp.GlobalArg("x", np.float64, shape=(shape,)),
        lp.GlobalArg("y", np.float64, shape=(shape,)),
        lp.GlobalArg("z", np.float32, shape=(4,)),
        lp.ValueArg("c", np.float64),
    ]
    used = ",".join(i for i in "ijk" if re.search(rf"\b{i}\b", instructions))
    return lp.make_kernel(
        f"{{[{used}]: 0<={used}<4}}",
        instructions,
        [arg for arg in args if re.search(rf"\b{arg.name}\b", instructions)],
        lang_version=(2018, 2),
        target=HostCTarget(),
    )


@pytest.mark.parametrize(
    "instructions",
    [
        "y[i] = c*x[i] + 1.5",
        "y[i] = x[i]*x[i]",
        "y[i] = A[i,i]",
        "y[i] = x[i] if i > 1 else sum(j, A[i,j])",
        "y[i] = product(j, A[i,j] + x[j])",
        "y[i] = sum(j, sum(k, A[i,j]*A[j,k]))",
    ],
)
def test_expressions(instructions):
    t_unit = kernel(instructions)
    assert_same(t_unit, program_from_kernel(t_unit))


@pytest.mark.parametrize(
    ("instructions", "words"),
    [
        ("y[i] = 2*y[i]", "reads 'y', which is written later, or here"),
        ("y[i] = x[i] {id=a}\ny[j] = x[j] {dep=a}", "writes 'y', as 'a' does"),
        ("y[i] = x[3-i]", "expected subscripts that are loops"),
        ("y[0] = sum(j, x[j])", "expected every loop to be one subscript"),
        ("z[i] = x[i]", "stores 'z' as float32; its value has the dtype float64"),
        ("y[i] = sum(j, x[i])", "reduces over 'j', on which nothing depends"),
        ("y[i] = x[i] {if=i>2}", "is not a plain assignment"),
    ],
)
def test_what_is_no_program_is_refused(instructions, words):
    with pytest.raises(ProgramError, match=re.escape(words)) as caught:
        program_from_kernel(kernel(instructions))
    assert caught.value.rules == ("kernel",)


def test_a_part_of_an_array_is_no_result():
    with pytest.raises(ProgramError, match="only a part of 'y'") as caught:
        program_from_kernel(kernel("y[i] = x[i]", shape=5))
    assert caught.value.rules == ("kernel",)
