"""How a call is built: as a view, or with a kernel.

:func:`build_call` takes the first of these ways that works::

    a view, for one operand without sums, as in ij->ji     no kernel
    zeros, where an extent is zero                         no kernel
    a recorded recipe of the einsum as it was given
    a recorded recipe of the normalized einsum             operands on the host
    a predicted recipe of the normalized einsum            operands on the host
    a kernel without a recipe

A kernel on the host gets addresses, not shapes. So ``ij,ij->ij`` of arrays in C order
is one loop over all entries, and ``abi,ij->abj`` is a product of two matrices: see
:func:`feinsum.calling.einsum_call.normalize_terms`. Normalized kernels have longer
loops, and more calls share them.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from time import perf_counter, sleep
from typing import Any

from feinsum.calling.einsum_call import Argument, EinsumCall, StridedTerm
from feinsum.calling.host.prepared import (
    Conversion,
    PreparedCall,
    build_view,
    convert_on_device,
    copy_from_host,
)
from feinsum.calling.kernel import (
    CallKernel,
    KernelProblem,
    build_checked_kernel,
    build_predicted_kernel,
    build_recorded_kernel,
    build_untransformed_kernel,
    find_untransformed_path,
    make_sizes_key,
    view_as,
)
from feinsum.calling.kernel_cache import CallKey, get_cached_kernel
from feinsum.calling.structure import (
    COPIED,
    OUTPUT,
    CallStructure,
    LaidOutCall,
    Layouts,
    list_stride_values,
    list_strides,
    make_strided_layout,
)
from feinsum.canonical import CanonicalForm, canonicalize
from feinsum.errors import FeinsumError
from feinsum.measure import OpenDevice, open_device
from feinsum.measure.kernel import SPIN_S
from feinsum.predict import MEASURING
from feinsum.records import TransformSpec
from feinsum.result_memory import check_free_memory
from feinsum.select import find_fastest
from feinsum.targets.opencl.device import get_device
from feinsum.targets.protocol import Array

logger = logging.getLogger(__name__)

Arrays = Sequence[Any]


def build_call(
    parsed: EinsumCall, key: CallKey, arrays: Arrays, n_rivals: int = 0
) -> PreparedCall:
    """Build a call and its kernel, if it needs one.

    ``n_rivals`` recipes are timed besides the one that is predicted to be the fastest.
    """
    is_view = key.device.is_host and key.target is None
    if is_view and (view := build_view(parsed)):
        open_device(key.device.selector)  # raises an error if there is no such device
        return PreparedCall(parsed, None, view=view)
    if parsed.is_empty:
        return PreparedCall(parsed, None)
    if not key.device.is_host:
        return _build_on_device(parsed, key, arrays)
    return _build_for_host(parsed, key, arrays, n_rivals)


def _build_for_host(
    parsed: EinsumCall, key: CallKey, arrays: Arrays, n_rivals: int
) -> PreparedCall:
    """Build a call of host arrays, on any device."""
    opened = open_device(key.device.selector)
    structure = CallStructure(parsed, key.forms, key.target)
    layouts = structure.written.layouts
    if not opened.reads_in_place:
        layouts = dict.fromkeys(layouts, COPIED)
    # Linux overcommits memory: allocating too much succeeds, and ends the process later
    _check_room(parsed, layouts, has_target=key.target is not None)
    options, strides = key.options, list_strides(layouts)
    problem = KernelProblem(parsed.einsum, parsed.sizes, strides)
    sharing = key.device, options, make_sizes_key(parsed.einsum, parsed.sizes)
    kernel_key = parsed.einsum, tuple(sorted(strides.items())), sharing
    kernel = None
    # an effort that measures tunes the normalized einsum: more calls share its facts
    if not (opened.reads_in_place and options.effort in MEASURING):
        # a miss is none if the normalized einsum, which comes next, has a fact
        first = replace(options, on_miss="return") if opened.reads_in_place else options
        kernel = get_cached_kernel(
            kernel_key, lambda: build_recorded_kernel(problem, opened, first)
        )
    if kernel is None and opened.reads_in_place:
        context = CompilationContext(structure, key, arrays, opened, sharing)
        call = context.build(n_rivals)
        if call is not None:
            return call
    if kernel is None:
        kernel = get_cached_kernel(
            # the path depends on sizes, which the einsum in the key does not have
            (find_untransformed_path(parsed.einsum, parsed.sizes), *kernel_key),
            lambda: build_untransformed_kernel(problem, opened),
        )
        assert kernel is not None
    return _with_kernel(LaidOutCall(parsed, layouts), kernel)


def _with_kernel(call: LaidOutCall, kernel: CallKernel) -> PreparedCall:
    """Prepare a call with a kernel of the given einsum, not normalized."""
    parsed, constants = call.parsed, call.constants
    copies = _make_copies(parsed, call.layouts)
    names = tuple(x.name for x in parsed.arguments)
    return PreparedCall(
        parsed,
        kernel,
        tuple((x.position, copies.get(x.name)) for x in parsed.arguments),
        kernel.compiled.built.caller(names, constants),
        call.layouts[OUTPUT].is_in_place and parsed.dtype == parsed.work_dtype,
        names=names,
        scalars={name: name for name in constants},
    )


def _build_on_device(parsed: EinsumCall, key: CallKey, arrays: Arrays) -> PreparedCall:
    """Build a call of arrays on an OpenCL device."""
    opened, dtype = get_device(arrays[0]), parsed.work_dtype
    einsum, sizes = parsed.einsum, parsed.sizes
    problem = KernelProblem(einsum, sizes)
    decisive = make_sizes_key(einsum, sizes), find_untransformed_path(einsum, sizes)
    kernel = get_cached_kernel(
        (einsum, key.device, key.options, decisive),
        lambda: (
            build_recorded_kernel(problem, opened, key.options)
            or build_untransformed_kernel(problem, opened)
        ),
    )
    assert kernel is not None
    inputs = ((x.position, convert_on_device(x, dtype)) for x in parsed.arguments)
    names = [x.name for x in parsed.arguments]
    caller = kernel.compiled.built.caller(names, sizes, arrays[0].queue)
    return PreparedCall(parsed, kernel, tuple(inputs), caller)


def _make_copies(parsed: EinsumCall, layouts: Layouts) -> dict[str, Conversion]:
    """Return the copying functions of arguments that a kernel cannot read in place."""
    return {
        x.name: copy_from_host(x, parsed.work_dtype)
        for x in parsed.arguments
        if not layouts[x.name].is_in_place
    }


def _check_room(parsed: EinsumCall, layouts: Layouts, *, has_target: bool) -> None:
    """Raise a MeasurementError unless the copies and the result fit into memory."""
    itemsize = parsed.work_dtype.itemsize
    copied = [
        prod(x.shape) for x in parsed.arguments if not layouts[x.name].is_in_place
    ]
    if copied:
        check_free_memory(sum(copied) * itemsize, "copies of operands")
    if not (has_target and layouts[OUTPUT].is_in_place):
        check_free_memory(prod(parsed.shape) * itemsize, "a result")


@dataclass(frozen=True, eq=False)
class CompilationContext:
    """A call of host arrays, with all that kernels of its normalized einsum depend on.

    Attributes:
        structure: the structure of the call.
        arrays: the operands of the call.
        sharing: a key that is equal for calls that may share kernels.
    """

    structure: CallStructure
    key: CallKey
    arrays: Arrays
    opened: OpenDevice
    sharing: Hashable

    def build(self, n_rivals: int) -> PreparedCall | None:
        """Build the call with a recorded or predicted recipe; None if none works."""
        kernel = get_cached_kernel(
            self.kernel_key,
            lambda: build_recorded_kernel(self.problem, self.opened, self.key.options),
        )
        if kernel is not None:
            return self.with_kernel(kernel)
        if self.key.options.effort == "recorded":
            return None
        prediction = build_predicted_kernel(self.checked_problem, self.opened)
        if prediction is None:
            return None
        kernel, rivals = prediction
        call = self.with_kernel(kernel)
        if n_rivals:
            call = self._choose_fastest(
                call, _sort_by_family(kernel, rivals)[:n_rivals]
            )
        # later calls with this key get the chosen kernel without another comparison
        fastest = call.kernel
        get_cached_kernel(self.kernel_key, lambda: fastest)
        return call

    @property
    def normal(self) -> LaidOutCall:
        """The call as an einsum with as few axes as possible."""
        return self.structure.normal

    @cached_property
    def form(self) -> CanonicalForm:
        """The canonical form of the normalized einsum: recipes have its names."""
        return canonicalize(self.normal.parsed.einsum)

    @cached_property
    def arguments(self) -> Mapping[str, Argument]:
        """The arguments of the normalized call, by canonical name."""
        names = self.form.relabeling.operands
        return {names[x.name]: x for x in self.normal.parsed.arguments}

    @cached_property
    def copies(self) -> Mapping[int, Conversion]:
        """The functions that copy operands not readable in place, by position."""
        parsed = self.structure.parsed
        copies = _make_copies(parsed, self.structure.written.layouts)
        return {
            x.position: copies[x.name] for x in parsed.arguments if x.name in copies
        }

    @cached_property
    def array_names(self) -> Mapping[str, str]:
        """The name in the structure of each array and the result, by canonical name."""
        return {**{name: x.name for name, x in self.arguments.items()}, OUTPUT: OUTPUT}

    @cached_property
    def kernel_layouts(self) -> Layouts:
        """Layouts of the normalized einsum's arrays and result, by canonical name."""
        return {
            canonical: make_strided_layout(canonical, self.normal.terms[name])
            for canonical, name in self.array_names.items()
        }

    @cached_property
    def scalars(self) -> Mapping[str, str]:
        """For each size and stride, by canonical name, the name in the structure."""
        sizes = {
            canonical_name: given_name
            for given_name, canonical_name in self.form.relabeling.size_params.items()
        }
        strides = {
            canonical: name
            for array, layout in self.kernel_layouts.items()
            for canonical, name in zip(
                layout.values,
                self.normal.layouts[self.array_names[array]].values,
                strict=True,
            )
        }
        return {**sizes, **strides}

    @cached_property
    def kernel_key(self) -> Hashable:
        """A key that is equal for all calls that can share a kernel."""
        strides = tuple(sorted(self.problem.strides.items()))
        return "normalized", self.form.text, strides, self.sharing

    @property
    def sizes(self) -> Mapping[str, int]:
        """Values of size parameters, by canonical name."""
        names = self.form.relabeling.size_params
        return {names[name]: n for name, n in self.normal.parsed.sizes.items()}

    @cached_property
    def problem(self) -> KernelProblem:
        """The normalized einsum in canonical names, without the operands."""
        layouts = self.kernel_layouts
        return KernelProblem(self.form.einsum, self.sizes, list_strides(layouts))

    @cached_property
    def checked_problem(self) -> KernelProblem:
        """The same with the operands of the call, on which a kernel is checked."""
        arrays = [*self.arrays]
        for position, copy in self.copies.items():
            arrays[position] = copy(arrays[position])
        views = {
            name: view_as(arrays[x.position], self.normal.terms[x.name])
            for name, x in self.arguments.items()
        }
        steps = list_stride_values(self.kernel_layouts)
        return replace(self.problem, arrays=views, steps=steps)

    def with_kernel(self, kernel: CallKernel) -> PreparedCall:
        """Return the call with a kernel, which other calls may share."""
        built, parsed = kernel.compiled.built, self.structure.parsed
        # generated code takes addresses only; a program of library calls needs shapes
        is_program = not built.n_launches
        inputs = tuple(
            (
                x.position,
                _make_conversion(
                    self.copies.get(x.position), self.normal.terms[x.name], is_program
                ),
            )
            for x in self.arguments.values()
        )
        is_in_place = self.structure.written.layouts[OUTPUT].is_in_place
        constants = {**self.sizes, **list_stride_values(self.kernel_layouts)}
        return PreparedCall(
            parsed,
            kernel,
            inputs,
            built.caller([*self.arguments], constants),
            # results in half precision and booleans are converted after the kernel
            is_in_place and parsed.dtype == parsed.work_dtype,
            _make_conversion(None, self.normal.terms[OUTPUT], is_program),
            names=(*self.arguments,),
            scalars=self.scalars,
            is_normal=True,
        )

    def with_recipe(self, spec: TransformSpec) -> PreparedCall:
        """Build the call with another recipe, if that is correct for these operands.

        Raises:
            FeinsumError: if it cannot be built, or is wrong.
        """
        kernel = build_checked_kernel(spec, self.checked_problem, self.opened)
        return self.with_kernel(kernel)

    def _choose_fastest(
        self, call: PreparedCall, rivals: Sequence[TransformSpec]
    ) -> PreparedCall:
        """Build the call with rival recipes, too, and return the fastest."""
        calls = [call]
        for spec in rivals:
            try:
                calls.append(self.with_recipe(spec))
            except FeinsumError as error:
                logger.warning("skipped the predicted recipe %s: %s", spec, error)
            except Exception:  # no recipe may break a call
                logger.exception("skipped the predicted recipe %s", spec)
        runs = [partial(_time_call, rival, self.arrays) for rival in calls]
        return calls[find_fastest(runs)]


def _time_call(call: PreparedCall, arrays: Arrays) -> float:
    """Measure the seconds of a call, including its overhead."""
    start_s = perf_counter()
    call.run(arrays)
    elapsed_s = perf_counter() - start_s
    if call.kernel is not None and call.kernel.compiled.built.n_launches == 0:
        sleep(SPIN_S)  # the threads of a library spin for a while before they sleep
    return elapsed_s


def _sort_by_family(
    kernel: CallKernel, specs: Sequence[TransformSpec]
) -> list[TransformSpec]:
    """Sort recipes, the best of each family first: costs err for whole families."""
    assert kernel.spec is not None
    best = {kernel.spec.name: kernel.spec}
    for spec in specs:
        best.setdefault(spec.name, spec)
    first = [*best.values()][1:]
    return [*first, *(spec for spec in specs if spec not in first)]


def _make_conversion(
    copy: Conversion | None, strided: StridedTerm, is_program: bool
) -> Conversion | None:
    """Return the conversion of an argument; only a program needs its view."""
    if not is_program:
        return copy

    def convert(array: Array) -> Array:
        return view_as(array if copy is None else copy(array), strided)

    return convert
