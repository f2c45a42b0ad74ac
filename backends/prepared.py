"""A call made ready for the suite: what `Implementation.prepare` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from suite.spec import features
from suite.spec.inputs import Inputs

ARRAYS = ("query", "key", "value", "bias", *features.ARRAYS, "mask")
"""What a call may be given as arrays besides a layer's parameters."""

LAYER_OUTPUTS = ("output", "weights")
"""What a layer's call returns; the weights are None where they were not asked for."""


WITH_LSE = ("output", "lse")
"""What plain attention returns where its log-sum-exp is asked for, too."""


class ForwardOnly(Exception):
    """What was computed cannot be differentiated; the message says why.

    `declared`: because the backend has no differentiation at all, and not because of the call.
    """

    def __init__(self, message: str, declared: bool = False) -> None:
        super().__init__(message)
        self.declared = declared


class TimeOver(BaseException):
    """The cell ran longer than allowed. No `Exception`, so that who catches these lets it pass."""


ENDS = (KeyboardInterrupt, TimeOver)
"""What ends a cell from outside. Whatever else comes out of a call is the implementation's: `SystemExit`,
and what tells a test runner that a test is skipped or expected to fail."""


@dataclass
class PreparedCall:
    """A call made ready: `function(**arguments)` gives the framework's own output.

    Of one output the call returns the array, of several a tuple in the order of `outputs`.
    `axis_order` is that of the output and of the operands, "bhld" (B, H, L, D) or "blhd" (B, L, H, D);
    layers have none. `operands` says as which argument each array is passed, where it is passed.
    `vjp` is the call's own derivative, for frameworks that have none: it takes the arguments and, by
    name, `cotangent` and `wrt`, names of arguments, and returns gradients by argument; `jvp` takes the
    arguments and `tangents` by argument and returns the output's. `within` makes the context the function
    is called in, which a compiler is not given: a choice of kernel, a thread count. `source` is the call
    as text: lines, imports and all, that compute `output` from variables called like the arguments;
    `through` is how the text goes through a compiler (see `Dialect.compiled`).
    `constants` are the plain values that the function hangs on besides its arguments: where two calls of
    an implementation have equal ones, their functions are the same; None where that is not known.
    `compiled` is the compiled program that the function ends in, in the framework's own type; None where
    nothing is compiled, or where the framework has no handle. `ahead`, where there is one, computes what
    a compiler should not find in the call. `problem` is the problem that the call answers, of a path
    (`Implementation.paths`) only if it is another one than the path was made of.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("output",)
    axis_order: str = "bhld"
    operands: Mapping[str, str] = field(default_factory=lambda: {n: n for n in ARRAYS})
    vjp: Callable[..., dict[str, Any]] | None = None
    jvp: Callable[..., Any] | None = None
    within: Callable[[], AbstractContextManager[Any]] = nullcontext
    source: str = ""
    through: str = ""
    constants: tuple[Any, ...] | None = None
    compiled: Any = None
    ahead: Callable[[], None] | None = None
    problem: Inputs | None = None

    def __call__(self) -> Any:
        return self.call(self.arguments)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """The framework's own outputs for these arguments."""
        with self.within():
            return self.function(**arguments)

    def output(self, arguments: Mapping[str, Any]) -> Any:
        """The output alone, without the weights that may come with it."""
        answer = self.call(arguments)
        several = len(self.outputs) > 1 and isinstance(answer, tuple)
        return answer[self.outputs.index("output")] if several else answer

    def of_operands(self, names: Sequence[str]) -> tuple[Callable[..., Any], list[Any]]:
        """The output as a function of some of the operands and parameters, and these."""

        def output(*operands: Any) -> Any:
            return self.output(self.with_operands(dict(zip(names, operands, strict=True))))

        return output, [self.arguments[self.argument(name)] for name in names]

    def written_out(self, ways: Mapping[str, Mapping[str, Any]]) -> dict[str, PreparedCall]:
        """The call with more arguments, by the names of the ways."""
        return {n: replace(self, arguments=self.arguments | {**way}) for n, way in ways.items()}

    def argument(self, name: str) -> str:
        """The argument as which the array `name`, an operand or a parameter, is passed."""
        return self.operands.get(name, name)

    def with_operands(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with other arrays for some of the operands and parameters, by their names.

        What is one array, as the query, key and value of self-attention can be, stays one, but for those
        that are named.
        """
        new = {self.argument(name): array for name, array in arrays.items()}
        old: dict[int, Any] = {}
        for name, array in new.items():
            if self.arguments.get(name) is not None:
                old.setdefault(id(self.arguments[name]), array)
        same = {n: old[id(array)] for n, array in self.arguments.items() if id(array) in old}
        return self.arguments | same | new


def attention_call(
    function: Callable[..., Any], arguments: dict[str, Any], lse: bool = False, **more: Any
) -> PreparedCall:
    """A call of plain attention, which returns the pair of output and log-sum-exp where `lse` is asked.

    A script that shows a call has its output alone: a pair has no source.
    """
    if lse:
        more |= {"outputs": WITH_LSE, "source": ""}
    if more.get("constants") is not None:
        more["constants"] = (*more["constants"], lse)
    return PreparedCall(function, arguments, **more)


@contextmanager
def set_to(value: Any, read: Callable[[], Any], write: Callable[[Any], Any]) -> Iterator[None]:
    """A context in which a framework's setting has another value."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def variations(
    function: Callable[..., Any], own: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Callable[[], Any]]:
    """Calls of a function with some of its `own` arguments changed, by what the changes are called."""
    return {name: partial(function, **{**own, **change}) for name, change in changes.items()}
