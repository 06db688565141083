"""A traced function returns what the function does: value, dtype and shape."""

from __future__ import annotations

import random
import warnings
from functools import partial

import numpy as np
import pytest

from feinsum.errors import FeinsumError, ProgramError
from feinsum.ir import array
from feinsum.ir.evaluation import evaluate_statement
from feinsum.programs import local, program, program_from_text, program_key, trace
from tests.portions import spread

BUILT = ("cache", "conv1d")
"""Programs whose contractions are built, which takes seconds."""


@pytest.fixture(autouse=True)
def numpy_contracts(request, monkeypatch):
    if getattr(request.node, "callspec", None) is None or not (
        {*request.node.callspec.params.values()} & {*BUILT}
    ):
        monkeypatch.setattr(local, "compute_contraction", evaluate_statement)


SOURCE = np.random.default_rng(0)


def drawn(*shape, dtype="f8"):
    values = SOURCE.uniform(-2, 2, shape)
    kind = np.dtype(dtype).kind
    if kind == "c":
        values = values + 1j * SOURCE.uniform(-2, 2, shape)
    if kind in "iu":
        values = np.abs(50 * values) if kind == "u" else 50 * values
    return (values > 0) if kind == "b" else values.astype(dtype)


def leaves(value):
    if isinstance(value, dict):
        return [one for part in value.values() for one in leaves(part)]
    if isinstance(value, tuple | list):
        return [one for part in value for one in leaves(part)]
    return [value]


def assert_same(found, right):
    assert type(found) is type(right) or not isinstance(right, dict | tuple | list)
    found, right = leaves(found), leaves(right)
    assert len(found) == len(right)
    for one, other in zip(found, right, strict=True):
        expected = np.asarray(other)
        assert (one.dtype, one.shape) == (expected.dtype, expected.shape)
        eps = np.finfo(one.dtype).eps if one.dtype.kind in "fc" else 0
        np.testing.assert_allclose(one, expected, rtol=64 * eps, atol=64 * eps)


def assert_traced(function, *args, runs=1):
    """And the text of the program says all of it."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        right = function(*args)
    fast = trace(function)
    for run in range(1, runs + 1):
        if run in (1, 2, 3, 10):
            assert_same(fast(*args), right)
        else:
            fast(*args)
    made = fast.program(*args)
    assert program_from_text(str(made)) == made


# Programs as people write them


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(X, W, U, b):
    """All steps of time, with the states collected."""
    n, h = X.shape[1], U.shape[0]
    hidden, cell, outputs = np.zeros((n, h), X.dtype), np.zeros((n, h), X.dtype), []
    for x in X:
        gates = x @ W + hidden @ U + b
        i, f, o = (sigmoid(gates[:, k * h : (k + 1) * h]) for k in range(3))
        cell = f * cell + i * np.tanh(gates[:, 3 * h :])
        hidden = o * np.tanh(cell)
        outputs.append(hidden)
    return np.stack(outputs, axis=1), (hidden, cell)


def softmax(x, axis=-1):
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def heads(X, W, n_heads):
    Q, K, V = np.split(X @ W, 3, axis=-1)
    batch, tokens, features = Q.shape
    Q, K, V = (
        A.reshape(batch, tokens, n_heads, -1).transpose(0, 2, 1, 3) for A in (Q, K, V)
    )
    scores = Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1])
    mask = np.tril(np.ones((tokens, tokens), bool))
    weights = softmax(np.where(mask, scores, -np.inf))
    mixed = (weights @ V).transpose(0, 2, 1, 3)
    return mixed.reshape(batch, tokens, features), weights.mean(axis=1)


def with_cache(x, cache, W):
    """One token more; returns what it sees, and the new cache."""
    query, key, value = (x @ W[name] for name in ("q", "k", "v"))
    keys = np.concatenate([cache["k"], key[None]], axis=0)
    values = np.concatenate([cache["v"], value[None]])
    return softmax(keys @ query / 2.0, 0) @ values, {"k": keys, "v": values}


def conv1d(x, w, b, stride=2):
    taps = w.shape[-1]
    n = (x.shape[-1] - taps) // stride + 1
    out = np.zeros((x.shape[0], w.shape[0], n))
    for k in range(taps):
        part = x[:, :, k : k + stride * (n - 1) + 1 : stride]
        out += np.einsum("ncs,oc->nos", part, w[:, :, k])
    return out + b[:, None]


def layer_norm(x, scale, shift):
    std = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    return (x - x.mean(-1, keepdims=True)) / std * scale + shift


def normalized(x):
    return (x - np.mean(x, axis=(0, 2), keepdims=True)) / x.std((0, 2), ddof=1)[:, None]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def cross_entropy(logits, labels):
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    right = logits.argmax(axis=1) == labels
    return -log_p[np.arange(len(labels)), labels].mean(), right.sum(), right.mean()


def conjugates(z):
    return z.conj(), z.real * z.imag, np.abs(z), (z @ z.conj().T).real, z * 1j, z.std()


def masks(x, y):
    mask = (x > 0) & ~(y <= 0.5) | np.isnan(y)
    return (
        (mask.all(axis=0), mask.any(), mask.sum(axis=1), mask.mean()),
        np.where(mask, x, 0).sum() / np.maximum(mask.sum(), 1),
        (x * mask).max(axis=0, keepdims=True),
        np.count_nonzero(mask, axis=0),
    )


def returned(x, y):
    z = x + y
    return {"twice": [z, z], "argument": x, "view": z.T, "row": z[1], "two": (2, 0.5)}


def in_place(x, y):
    total = x * 0
    total += y
    total -= 0.5
    total *= x
    return total, x


PROGRAMS = {
    "lstm": (lstm, drawn(4, 2, 3), drawn(3, 20), drawn(5, 20), drawn(20)),
    "heads": (partial(heads, n_heads=2), drawn(2, 5, 8), drawn(8, 24)),
    "cache": (
        with_cache,
        drawn(4),
        {"k": drawn(3, 4), "v": drawn(3, 4)},
        {name: drawn(4, 4) for name in "qkv"},
    ),
    "conv1d": (conv1d, drawn(2, 3, 9), drawn(4, 3, 3), drawn(4)),
    "layer norm": (layer_norm, drawn(4, 6), drawn(6), drawn(6)),
    "softmax of columns": (partial(softmax, axis=0), drawn(4, 6)),
    "batch statistics": (normalized, drawn(3, 4, 5)),
    "gelu": (gelu, drawn(4, 6, dtype="f4")),
    "clip": (
        lambda x: (x.clip(0, 1), np.clip(x, None, x.mean()), x.clip(min=-0.5)),
        drawn(4, 6),
    ),
    "cross entropy": (cross_entropy, drawn(4, 6), np.array([0, 5, 2, 3])),
    "embedding": (lambda E, ids: E[ids] + E[ids[0]], drawn(5, 3), np.arange(4)[::2]),
    "complex": (conjugates, drawn(3, 4, dtype="c16")),
    "complex, single": (conjugates, drawn(3, 4, dtype="c8")),
    "masks": (masks, drawn(4, 3), drawn(4, 3)),
    "returned": (returned, drawn(3, 4), drawn(3, 4)),
    "in place": (in_place, drawn(3, 4), drawn(3, 4)),
    "constants": (
        lambda x: (np.zeros(3), np.zeros_like(x, dtype="i2"), 3.0, np.int8(1), 1j),
        drawn(2, 2),
    ),
    "products": (
        lambda A, B, T, x: (
            (A @ B, A @ x, x @ B, x @ x, T @ B, A.T @ T),
            (np.dot(T, B), A.dot(x), np.dot(x, B)),
            np.einsum("bij,ij->bi", T, A, optimize=True),
            np.einsum("ij,j", A, x),
        ),
        *(drawn(*shape) for shape in ((3, 4), (4, 5), (2, 3, 4), (4,))),
    ),
    "broadcast": (
        lambda A, one, s: (A[None] * one[..., None, :, :] - s).sum(0) + one.T @ A,
        drawn(3, 4),
        drawn(3, 1),
        drawn(),
    ),
    "own arrays": (
        lambda x: x * np.arange(4) + np.eye(4) @ x - [1, 2, 3, 4],
        drawn(4, 4, dtype="f4"),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_its_function_does_at_every_run(name):
    function, *args = PROGRAMS[name]
    assert_traced(function, *args, runs=10)


def test_arguments_are_not_changed_and_results_are_new():
    x = drawn(3, 4)
    before = x.copy()
    fast = trace(lambda x: (x.T, x, x[1:], x.reshape(-1), np.exp(x.reshape(4, 3))))
    for _ in range(3):
        first, second = fast(x), fast(x)
        for one in first:
            assert not any(np.shares_memory(one, other) for other in (x, *second))
            one[...] = 0
        np.testing.assert_array_equal(x, before)


def test_a_traced_function_has_the_key_of_the_program_that_is_written_by_hand():
    given = trace(lambda A: softmax(A), A=array("A", (3, 4)))
    p = program()
    A = p.input("A", (3, 4))
    shifted = p.along("x0 - x1", A, p.reduce("max", A, 1), 1)
    powers = p.map("exp(x0)", shifted)
    p.along("x0 / x1", powers, p.reduce("sum", powers, 1), 1)
    assert program_key(given) == program_key(p.build())


# Numbers and dtypes

DTYPES = ("?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
NUMBERS = (True, 2, 5, 0.5, 1e300, 2j, np.nan, np.inf, *map(np.dtype, DTYPES))


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f8", "c8"])
def test_numbers_of_numpy_have_their_dtypes_and_those_of_python_have_not(dtype):
    x = drawn(3, dtype=dtype)
    for number in NUMBERS:
        value = number.type(2) if isinstance(number, np.dtype) else number
        for function in (np.multiply, np.add, np.less, np.equal):
            assert_traced(lambda x, f=function, y=value: (f(x, y), f(y, x)), x)
        assert_traced(lambda x, y=value: np.where(x == x, x, y), x)


def test_numbers_of_the_issue():
    """A number that does not fit is an error of numpy's, and one of ours."""
    x = np.ones(2, "f4")
    assert trace(lambda x: x * np.float64(1e300))(x)[0] == 1e300
    with np.errstate(all="ignore"):
        assert_traced(lambda x: x * 1e300, x)
    assert trace(lambda x: x + np.int64(5))(np.array([127], "i1"))[0] == 132
    with pytest.raises(ProgramError, match="300"):
        trace(lambda x: x + 300)(np.array([1], "i1"))


REDUCTIONS = ("sum", "prod", "mean", "std", "var", "max", "min", "any", "all")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    def reductions(x):
        function = getattr(np, name)
        return [
            *(function(x, axis=axis) for axis in (None, -1, (0, 2), ())),
            function(x, 1, keepdims=True),
            getattr(x, name)(axis=(1, -1), keepdims=True),
            getattr(x[:, None], name)(1),
        ]

    for dtype in ("?", "i1", "u8", "f2", "f4", "c16"):
        if name in ("std", "var") and dtype == "f2":
            continue  # the last digits of halves differ
        x = drawn(2, 3, 4, dtype=dtype)
        assert_traced(reductions, x)
        if name in ("sum", "mean") and dtype != "c16":
            assert_traced(lambda x: getattr(x, name)(axis=0, dtype="f4"), x)


def random_function(source):
    """A function of three arrays, of a few random steps, and its description."""
    pairs = [
        *(np.add, np.subtract, np.multiply, np.maximum, np.minimum),
        *(np.less, np.greater_equal, np.not_equal, np.logical_or),
    ]
    singles = [
        lambda x: x.astype("f4"),
        lambda x: x.astype("i2"),
        lambda x: x.sum(axis=-1, keepdims=True),
        lambda x: x.mean(axis=0, keepdims=True),
        lambda x: np.abs(x),
        lambda x: x.T.reshape(x.shape),
        lambda x: x[::-1],
        lambda x: x[:, 1:2],
        lambda x: np.concatenate([x[1:], x[:1]]),
        lambda x: x > 0,
        lambda x: x * np.float32(0.5),
        lambda x: np.cumsum(x, axis=0),
        lambda x: x.clip(0, 2),
        lambda x: np.where(x > 1, x, 0),
        lambda x: np.tanh(x),
        lambda x: x.max(axis=1)[:, None],
        lambda x: x[np.array([2, 0, 1])],
        lambda x: x + np.arange(3, dtype="i1")[:, None],
    ]
    steps = []
    for _ in range(source.randint(2, 7)):
        if source.random() < 0.5:
            steps.append((source.choice(singles), source.random(), None))
        else:
            steps.append((source.choice(pairs), source.random(), source.random()))

    def function(*arrays):
        known = [*arrays]
        for step, first, second in steps:
            one = known[int(first * len(known))]
            if second is None:
                known.append(step(one))
            else:
                other = known[int(second * len(known))]
                is_bool = step is np.subtract and one.dtype == other.dtype == bool
                known.append(
                    np.logical_xor(one, other) if is_bool else step(one, other)
                )
        return known[3:]

    return function


@pytest.mark.parametrize("seed", spread(range(60), 15))
def test_random_functions(seed):
    source = random.Random(seed)
    arrays = [drawn(3, 3, dtype=source.choice(DTYPES[:9])) for _ in range(3)]
    function = random_function(source)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        right = function(*arrays)
    found = trace(function)(*arrays)
    for one, other in zip(found, right, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if not np.isfinite(other).all() or one.dtype == np.float16:
            continue  # a sum of halves, and what becomes of it, depends on its order
        eps = np.finfo(one.dtype).eps if one.dtype.kind == "f" else 0
        np.testing.assert_allclose(one, other, rtol=1e3 * eps, atol=1e3 * eps)


# Everything that numpy's arrays have

METHODS = {
    **dict.fromkeys(
        ("all", "any", "argmin", "conj", "conjugate", "copy", "cumsum", "flatten",
         "mean", "min", "prod", "ravel", "squeeze", "std", "sum", "trace", "transpose",
         "var"),
        (),
    ),
    **dict.fromkeys(("argmax", "cumprod", "diagonal", "round"), (1,)),
    **dict.fromkeys(("argsort", "max"), (0,)),
    **dict.fromkeys(("clip", "swapaxes"), (0, 1)),
    "astype": ("f4",),
    "dot": ([1.0, 2.0, 3.0],),
    "repeat": (2, 1),
    "reshape": (-1, 2),
    "take": ([0, 2], 1),
    "to_device": ("cpu",),
}  # fmt: skip
"""Methods that are traced, with arguments."""
PROPERTIES = ("T", "mT", "real", "imag")
KNOWN = ("device", "dtype", "itemsize", "nbytes", "ndim", "shape", "size")
PUBLIC = [name for name in dir(np.ndarray) if not name.startswith("_")]


def test_every_attribute_of_arrays_works_or_is_refused_by_name():
    x = drawn(4, 3)
    for name in METHODS.keys() & {*PUBLIC}:
        assert_traced(lambda x, name=name: getattr(x, name)(*METHODS[name]), x)
    for name in {*PROPERTIES} & {*PUBLIC}:
        assert_traced(lambda x, name=name: getattr(x, name), x)
    found = []
    trace(lambda x: found.extend(getattr(x, name) for name in KNOWN) or x)(x)
    assert found == [getattr(x, name) for name in KNOWN]
    for name in {*PUBLIC} - {*METHODS, *PROPERTIES, *KNOWN}:
        with pytest.raises(ProgramError, match=f"attribute '{name}'.*can be traced"):
            trace(lambda x, name=name: getattr(x, name)() + x)(x)


def test_unknown_attributes_are_unknown():
    x = drawn(2)
    assert not trace(lambda x: [hasattr(x, "requires_grad")])(x)[0]
    with pytest.raises(AttributeError, match="no attribute 'detach'"):
        trace(lambda x: x.detach())(x)


OTHER_ARGUMENTS = {
    "array_split": (2,),
    "astype": ("f4",),
    "broadcast_to": ((2, 3, 3),),
    "clip": (0, 1),
    "expand_dims": (1,),
    "full_like": (2,),
    "moveaxis": (0, 1),
    "pad": (1,),
    "repeat": (2,),
    "reshape": ((9,),),
    "roll": (1,),
    "split": (3,),
    "swapaxes": (0, 1),
    "take": ([0, 1],),
    "take_along_axis": (np.array([[0, 1, 2]] * 3), 1),
    "tile": ((2, 1),),
    "linalg.matrix_power": (2,),
    "quantile": (0.5,),
    "searchsorted": ([0.5],),
}
OF_LISTS = {
    *("concatenate", "concat", "stack", "vstack", "hstack", "dstack", "column_stack"),
}
OF_TWO = {
    *("append", "dot", "inner", "outer", "tensordot", "vdot", "vecdot", "matmul"),
    *("linalg.matmul", "linalg.tensordot", "linalg.vecdot", "broadcast_arrays"),
    *("linalg.cross", "linalg.solve"),
}
WORKING = """
abs absolute acos acosh add all any arccos arccosh arcsin arcsinh arctan arctan2
arctanh argmax argmin argsort asin asinh astype atan atan2 atanh bitwise_and
bitwise_count bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift
bitwise_xor broadcast_arrays broadcast_to ceil clip concat conj copysign cos cosh
count_nonzero cumulative_prod cumulative_sum diff divide equal exp expand_dims expm1
flip floor floor_divide greater greater_equal hypot imag invert isfinite isinf isnan
less less_equal log log10 log1p log2 logaddexp logical_and logical_not logical_or
logical_xor matmul matrix_transpose max maximum mean min minimum moveaxis multiply
negative nextafter not_equal ones_like permute_dims positive pow prod real reciprocal
remainder repeat reshape roll round sign signbit sin sinh sort sqrt square squeeze
stack std subtract sum take take_along_axis tan tanh tensordot tile tril triu trunc
unstack var vecdot where zeros_like full_like amax amin angle append around
array_split atleast_1d atleast_2d atleast_3d average column_stack concatenate cumprod
cumsum diag diagonal dot dstack einsum fliplr flipud heaviside hstack inner
linalg.diagonal linalg.matmul linalg.matrix_transpose linalg.norm linalg.outer
linalg.tensordot linalg.trace linalg.vecdot outer pad ptp split swapaxes trace vdot
vstack
"""
MISSING = """
linalg.cholesky linalg.cross linalg.det linalg.eigh linalg.inv linalg.matrix_norm
linalg.matrix_power linalg.matrix_rank linalg.pinv linalg.qr linalg.slogdet
linalg.solve linalg.svd linalg.svdvals linalg.vector_norm fft.fft fft.ifft fft.rfft
median meshgrid modf nansum nonzero quantile searchsorted unique_all unique_counts
unique_inverse unique_values
"""


def arguments(function, name, x):
    if name in OF_LISTS:
        return ([x, x],)
    if name in OF_TWO:
        return (x, x)
    if name in OTHER_ARGUMENTS:
        return (x, *OTHER_ARGUMENTS[name])
    if isinstance(function, np.ufunc):
        return (x,) * function.nin
    return (x,)


def call_of(name):
    function = np
    for part in name.split("."):
        function = getattr(function, part, None)
    if function is None:
        return None  # this numpy has none

    def call(x):
        if name == "where":
            return np.where(x > 0, x, 1.0)
        if name == "einsum":
            return np.einsum("ij->ji", x)
        if name.startswith("cumulative"):
            return function(x, axis=1)
        if name == "linalg.outer":
            return function(x[0], x[1])
        return function(*arguments(function, name, x))

    return call


def test_functions_of_the_standard_and_others():
    for name in WORKING.split():
        is_bits = name.startswith("bitwise") or name == "invert"
        x = np.arange(9).reshape(3, 3) % 4 if is_bits else drawn(3, 3) / 4
        if call := call_of(name):
            with np.errstate(all="ignore"):
                assert_same(trace(call)(x), call(x))
    empty = trace(lambda x: np.empty_like(x))(drawn(3, 2))  # of any values
    assert (empty.shape, empty.dtype) == ((3, 2), np.dtype(float))


def test_all_other_functions_of_the_standard_are_refused_by_name():
    for name in MISSING.split():
        short = name.removesuffix("svdvals")
        if call := call_of(name):
            with pytest.raises(ProgramError, match=f"numpy.{short}.*can be traced"):
                trace(call)(drawn(3, 3))


REFUSED = {
    "out": (lambda x: np.add(x, 1, out=x), "out"),
    "out of a method": (lambda x: x.sum(axis=0, out=np.zeros(3)), "sum with out="),
    "where": (lambda x: np.sum(x, where=x > 0), "sum with other arguments.*'where'"),
    "where of a ufunc": (lambda x: np.exp(x, where=x > 0), "numpy.exp with"),
    "initial": (lambda x: x.max(initial=0), "max with other arguments.*'initial'"),
    "masks": (lambda x: x[x > 0], "a mask as a subscript"),
    "entries": (lambda x: x.__setitem__(0, 1), "an assignment to entries"),
    "argument": (lambda x: x.__iadd__(1), "a change in place of an argument"),
    "narrower": (lambda x: (x * 1).astype("i4").__iadd__(0.5), "conversion from float"),
    "text": (lambda x: x + "a", "a str of its own"),
    "wide": (lambda x: x + np.longdouble(1), "longdouble|float128"),
    "array of them": (lambda x: np.array([x, x]), "numpy.stack"),
    "order": (lambda x: x.reshape(-1, order="F"), "order='F'"),
    "place": (lambda x: x[9], "x0\\[9\\]"),
    "shape": (lambda x: x.reshape(5), "does not become"),
    "accumulate": (lambda x: np.add.accumulate(x), "numpy.add with accumulate"),
    "twice": (lambda x: x.sum(axis=(0, 0)), "one of them twice"),
    "result": (lambda x: None, "returns NoneType"),
    "number": (lambda x: float(x.sum()), "a decision on values"),
    "large": (lambda x: x + drawn(100, 1000, 1, 1), "operand"),
    "function": (lambda x: np.linalg.inv(x), "numpy.linalg.inv"),
    "decision": (lambda x: x if x.sum() > 0 else -x, "a decision on values"),
    "values": (lambda x: np.asarray(x), "the values of an array"),
    "axis": (lambda x: x.sum(axis=2), "axis 2 of an array with 2 axes"),
    "two results": (lambda x: np.frexp(x), "numpy.frexp"),
    "term": (lambda x: np.einsum("ij,j", x, x), "ij,j"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_rest_is_refused_by_name(name):
    function, words = REFUSED[name]
    with pytest.raises(FeinsumError, match=words):
        trace(function)(drawn(4, 3))


def test_a_view_from_before_a_change_in_place_is_refused():
    def function(x):
        y = x * 2
        row = y[0]
        y += 1
        return row

    with pytest.raises(ProgramError, match="changed in place"):
        trace(function)(drawn(3, 4))


def test_an_array_that_was_changed_under_another_name_is_refused():
    def function(x):
        one = other = np.zeros(4)
        one += x.sum(0)
        return one + other

    with pytest.raises(ProgramError, match="under another name"):
        trace(function)(drawn(3, 4))


def test_masked_arrays_and_lists_of_text_are_no_arguments():
    for value in (np.ma.masked_array([1.0]), {"a": {1}}):
        with pytest.raises(ProgramError, match="takes numpy arrays"):
            trace(lambda x: x)(value)


def test_other_arguments_are_constants_and_programs_are_kept():
    calls = []

    def function(x, n, scale=1.0):
        calls.append(n)
        return (x * scale)[:n]

    fast, x = trace(function), drawn(4)
    for n, scale in ((2, 1.0), (3, 1.0), (2, 2.0), (2, 1.0)):
        assert_same(fast(x, n, scale=scale), function(x, n, scale))
    assert len(calls) == 3 + 4
