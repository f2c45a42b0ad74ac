"""A framework's attention function as a row (`Kernel`) in a backend's table of implementations, and the
implementation that calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pkgutil import resolve_name
from typing import Any

from attention_conformance.backends.binder import Binder, Parameter
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.implementation import FromRow, Row
from attention_conformance.backends.masks import AttentionCall, Native, split_native
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.backends.protocol import Backend, seeded
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS


def function_of_row(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """Returns the function of the row; it is imported if the row has its dotted name."""
    function = impl.row.function
    resolved: Callable[..., Any] = resolve_name(function) if isinstance(function, str) else function
    return resolved


def calls_with_explicit_arguments(
    impl: FrameworkFunction, inputs: Inputs, plain: PreparedCall
) -> dict[str, PreparedCall]:
    """Returns copies of `plain` by description, each with one more explicit argument: a neutral value, or
    the default scale."""
    names = [name for name in impl.row.neutral if name not in plain.arguments]
    return plain.with_additional_arguments(impl.row.ways(names, inputs.default_scale))


def call_text(arguments: Mapping[str, Any]) -> str:
    """Returns keyword arguments as a text of Python: "causal=True, scale=1.0"."""
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


@dataclass(frozen=True, eq=False)
class Kernel(Row):
    """A framework's attention function as a row. Users' functions have its signature.

    What is called:

    - `function`: the function, or its dotted name
    - `calls(impl, inputs)`: the callable for inputs, by default `function`
    - `source`: see `PreparedCall`
    - `within(backend)`: makes the context of a call
    - `through(impl, inputs, call)`: the call in its final form, for example compiled

    How the function is called:

    - `parameters`: the parameters that are passed besides query, key and value
    - `passed_as`: by array, the name of its argument, if that is another name
    - `axis_order`: the axis order of operands and output
    - `flag_alone`: the function refuses its causal flag together with a mask or bias
    - `divide(inputs)`: the mask divided into flags and the rest; by default into the flags of
      `parameters`
    - `without_flag(arguments)`: the arguments with the causal flag merged into the mask or bias; None
      unless both are passed. Used for a user's function that refuses both together

    What is tested besides the cases:

    - `neutral`: values of parameters that change no answer (see `calls_with_explicit_arguments`)
    - `wrong`: arguments that the function must refuse
    - `paths(impl, inputs, plain)`: see `Implementation`; `plain` is the call without `through`
    """

    name: str
    function: str | Callable[..., Any]
    parameters: tuple[Parameter[AttentionCall], ...]
    declared: Declared = field(default_factory=Declared)
    calls: Callable[[FrameworkFunction, Inputs], Callable[..., Any]] = function_of_row
    source: str = ""
    within: Callable[[Backend], AbstractContextManager[Any]] | None = None
    through: Callable[[FrameworkFunction, Inputs, PreparedCall], PreparedCall] = (
        lambda impl, inputs, call: call
    )
    passed_as: Mapping[str, str] = field(default_factory=dict)
    axis_order: str = "blhd"
    flag_alone: bool = False
    divide: Callable[[Inputs], Native] | None = None
    without_flag: Callable[[Mapping[str, Any]], dict[str, Any] | None] = lambda arguments: None
    neutral: Mapping[str, Any] = field(default_factory=dict)
    paths: Callable[[FrameworkFunction, Inputs, PreparedCall], Mapping[str, PreparedCall]] = (
        lambda impl, inputs, plain: {}
    )

    def ways(self, names: Iterable[str], scale: float | None = None) -> dict[str, dict[str, Any]]:
        """Returns keyword arguments that change no answer, by description: the neutral value of each
        parameter in `names`, and `scale` unless it is None."""
        ways = {f"{n}={self.neutral[n]!r}": {n: self.neutral[n]} for n in names}
        return ways if scale is None else ways | {"scale written out": {"scale": scale}}

    @cached_property
    def binder(self) -> Binder[AttentionCall]:
        """The binder of the framework's own function, which has all `parameters`."""
        return Binder(self.parameters, frozenset(p.name for p in self.parameters))

    def divided(self, inputs: Inputs, binder: Binder[AttentionCall], with_mask: bool) -> Native:
        """Returns the mask divided into the flags that a callable with `binder` has, and the rest.

        A mask of one part, without a bias, may always become the causal flag. Together with another part
        of the mask or a bias the causal flag is passed if the row's function takes both (not
        `flag_alone`), if `with_mask` is True, or if the case's form is "flag-and-mask". If it is not
        passed, the causal part stays in the rest."""
        single = inputs.mask is not None and len(inputs.mask.parts) == 1 and inputs.bias is None
        passes_flag = with_mask or single or not self.flag_alone or inputs.form == "flag-and-mask"
        return split_native(
            inputs,
            causal=bool(binder.serving("native-causal")) and passes_flag,
            window=bool(binder.serving("native-window")),
            lengths=any(
                p.features == ("padding",) and p.name in binder.taken for p in binder.table
            ),
        )

    def native(self, inputs: Inputs) -> Native:
        """Returns the mask divided into the flags of the framework's own function, and the rest."""
        if self.divide is not None:
            return self.divide(inputs)
        return self.divided(inputs, self.binder, with_mask=False)

    def arguments(self, backend: Backend, inputs: Inputs) -> dict[str, Any]:
        """Returns the arguments of the framework's own function, by name."""
        names = [self.passed_as.get(name, name) for name in OPERANDS]
        operands = backend.operands(inputs, self.axis_order)
        call = AttentionCall(backend, inputs, self.native(inputs))
        return dict(zip(names, operands, strict=True)) | self.binder.bind(call)

    def dropping(self, rate: float) -> dict[str, Any]:
        """Returns the keyword argument that sets the rate of dropout; {} without a parameter for
        dropout."""
        return {p.name: rate for p in self.parameters if "dropout" in p.features}

    def operands(self, inputs: Inputs) -> dict[str, str]:
        """Returns the names of arguments by the names of arrays (`passed_as`), without "bias" if there is
        none; with a bias without "mask", which is merged into it."""
        absent = "bias" if inputs.bias is None else "mask"
        return {name: argument for name, argument in self.passed_as.items() if name != absent}


class FrameworkFunction(FromRow):
    """The implementation that calls the attention function of a row (`Kernel`)."""

    row: Kernel

    def __init__(self, backend: Backend, kernel: Kernel) -> None:
        self.axis_order = kernel.axis_order
        super().__init__(backend, kernel)

    def plain(self, inputs: Inputs) -> PreparedCall:
        """Returns the call of the function, without `Kernel.through`."""
        kernel = self.row
        within = nullcontext if kernel.within is None else partial(kernel.within, self.backend)
        return attention_call(
            seeded(self.backend, kernel.calls(self, inputs), inputs),
            kernel.arguments(self.backend, inputs), inputs, axis_order=kernel.axis_order,
            operands=kernel.operands(inputs), within=within, source=kernel.source, constants=(),
            dropping=kernel.dropping,
        )  # fmt: skip

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.row.through(self, inputs, self.plain(inputs))

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = self.row.paths(self, inputs, self.plain(inputs))
        return {name: self.row.through(self, inputs, call) for name, call in calls.items()}

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        call = self.plain(inputs)
        return {
            call_text(way): partial(call.function, **call.arguments | {**way})
            for way in self.row.wrong
        }
