"""A framework's attention function as a row (`Kernel`), and the implementation that calls it."""

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


def as_named(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """The function of the row; imported, if the row has only its dotted name."""
    function = impl.row.function
    called: Callable[..., Any] = resolve_name(function) if isinstance(function, str) else function
    return called


def written_out(
    impl: FrameworkFunction, inputs: Inputs, plain: PreparedCall
) -> dict[str, PreparedCall]:
    """`plain` with one additional explicit argument: each neutral value, or the default scale."""
    names = [name for name in impl.row.neutral if name not in plain.arguments]
    return plain.written_out(impl.row.ways(names, inputs.default_scale))


def call_text(arguments: Mapping[str, Any]) -> str:
    """The text of keyword arguments in a call: "causal=True, scale=1.0"."""
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


@dataclass(frozen=True, eq=False)
class Kernel(Row):
    """A framework's attention function as a row, and the signature that users' functions are given.

    What is called:

    - `function`: the function, or its dotted name
    - `calls(impl, inputs)`: the callable for inputs, by default `function`
    - `source`: see `PreparedCall`
    - `within(backend)`: the context of a call
    - `through(impl, inputs, call)`: the call as it is made, such as one that is compiled

    How the function is called:

    - `parameters`: the parameters that are passed besides query, key and value
    - `passed_as`: the arguments of arrays that are passed with another name
    - `axis_order`: the order of operands and output
    - `flag_alone`: the function refuses its causal flag beside a mask or bias
    - `divide(inputs)`: divides the mask, by default into the flags that `parameters` serve and the rest
    - `without_flag`: the arguments of a call whose causal flag is merged into the mask or bias beside it.
      A user's function is called so if it refuses both together. None without both

    What is tested besides the cases:

    - `neutral`: values of parameters that change no answer (see `written_out`)
    - `wrong`: arguments that the function must refuse
    - `paths(impl, inputs, plain)`: see `Implementation`; `plain` is the call without `through`
    """

    name: str
    function: str | Callable[..., Any]
    parameters: tuple[Parameter[AttentionCall], ...]
    declared: Declared = field(default_factory=Declared)
    calls: Callable[[FrameworkFunction, Inputs], Callable[..., Any]] = as_named
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
        """Arguments that change no answer, by a description: the neutral values of the parameters
        `names`, and the explicit default `scale` unless it is None."""
        ways = {f"{n}={self.neutral[n]!r}": {n: self.neutral[n]} for n in names}
        return ways if scale is None else ways | {"scale written out": {"scale": scale}}

    @cached_property
    def binder(self) -> Binder[AttentionCall]:
        """The binder of the framework's own function, which takes all `parameters`."""
        return Binder(self.parameters, frozenset(p.name for p in self.parameters))

    def divided(self, inputs: Inputs, binder: Binder[AttentionCall], with_mask: bool) -> Native:
        """The mask divided into the flags that a callable with `binder` takes, and the rest. `with_mask`:
        the causal flag is also passed beside a mask or bias; else only if the case asks so."""
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
        """The mask divided into the flags that the framework's own function takes, and the rest."""
        if self.divide is not None:
            return self.divide(inputs)
        return self.divided(inputs, self.binder, with_mask=False)

    def arguments(self, backend: Backend, inputs: Inputs) -> dict[str, Any]:
        """The arguments of the framework's own function."""
        names = [self.passed_as.get(name, name) for name in OPERANDS]
        operands = backend.operands(inputs, self.axis_order)
        call = AttentionCall(backend, inputs, self.native(inputs))
        return dict(zip(names, operands, strict=True)) | self.binder.bind(call)

    def dropping(self, rate: float) -> dict[str, Any]:
        """The keyword argument that sets the rate of dropout."""
        return {p.name: rate for p in self.parameters if "dropout" in p.features}

    def operands(self, inputs: Inputs) -> dict[str, str]:
        """The arguments of arrays that are passed with another name. If the mask is merged into a bias,
        it is no argument of its own."""
        absent = "bias" if inputs.bias is None else "mask"
        return {name: argument for name, argument in self.passed_as.items() if name != absent}


class FrameworkFunction(FromRow):
    """The implementation that calls the attention function of a row (`Kernel`)."""

    row: Kernel

    def __init__(self, backend: Backend, kernel: Kernel) -> None:
        self.axis_order = kernel.axis_order
        super().__init__(backend, kernel)

    def plain(self, inputs: Inputs) -> PreparedCall:
        """The call of the function, without `Kernel.through`."""
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
