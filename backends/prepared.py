"""The prepared call that `Implementation.prepare` returns."""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Barrier, Thread
from typing import Any

from attention_conformance.suite.spec import features
from attention_conformance.suite.spec.inputs import Inputs

ARRAYS = ("query", "key", "value", "bias", *features.ARRAYS, "mask")
"""The arrays that a call may have as arguments, without a layer's parameters."""

LAYER_OUTPUTS = ("output", "weights")
"""The outputs of a layer's call. The weights are None if the case does not ask for weights."""


Gradients = tuple[Any, dict[str, Any]]
"""(The output of a call, its gradients by operand)."""

Pullback = tuple[Any, Callable[[Any], dict[str, Any]]]
"""(The output of a call, the function from a cotangent to its gradients by operand)."""


class ForwardOnly(Exception):
    """The output of the call cannot be differentiated; the message says why.

    `declared` is True if the backend has no differentiation at all.
    """

    def __init__(self, message: str, declared: bool = False) -> None:
        super().__init__(message)
        self.declared = declared


class NoKernel(NotImplementedError):
    """The framework was restricted to one kernel, and says that the kernel does not support the call."""


class ForbiddenCall(Exception):
    """A user's function called a function that the claim `forbid` names; the message has the name."""


@contextmanager
def errors_raised_as(make: Callable[[str], Exception], message: str) -> Iterator[None]:
    """A context in which an error whose message matches the pattern `message` is replaced by
    `make(text)`, with the first line of the message as text."""
    try:
        yield
    except (ForwardOnly, NoKernel):
        raise
    except Exception as error:
        if not re.search(message, str(error)):
            raise
        raise make(str(error).partition("\n")[0]) from error


def no_derivative_as_forward_only(
    message: str, declared: bool = False
) -> AbstractContextManager[None]:
    """A context in which an error whose message matches the pattern is replaced by ForwardOnly. Such
    messages say that an operation has no derivative, or with `declared` not this kind of derivative."""
    return errors_raised_as(partial(ForwardOnly, declared=declared), message)


def kernel_missing(message: str) -> AbstractContextManager[None]:
    """A context in which an error whose message matches the pattern is replaced by NoKernel."""
    return errors_raised_as(NoKernel, message)


class TimeOver(BaseException):
    """The cell exceeded its time limit. A BaseException, because code under test may catch Exception.
    `kind` is the kind of the crash."""

    kind = "timeout"


class ProcessDied(TimeOver):
    """The process that runs the code under test died; the message says how."""

    kind = "crash"


ENDS = (KeyboardInterrupt, TimeOver)
"""Exceptions that end a cell from outside. All other exceptions of a call are the implementation's,
SystemExit and pytest's skip and xfail included."""


FORK_RETURNED = mmap.mmap(-1, 1)
"""Memory that forked processes share: 1 if a call forked this process, and the fork returned from the
call."""


def end_fork() -> None:
    """Set `FORK_RETURNED` and end this process, which a call forked. Otherwise both processes would
    continue the run."""
    FORK_RETURNED[0] = 1
    os._exit(0)


def dropout_p_argument(rate: float) -> dict[str, Any]:
    """Returns the keyword argument of torch's own attention that sets the rate of dropout."""
    return {"dropout_p": rate}


@dataclass
class PreparedCall:
    """A prepared call: `function(**arguments)` returns the framework's output.

    - `outputs`: the names of the outputs; a call with several returns a tuple in this order
    - `axis_order`: the axis order of operands and output, "bhld" (B, H, L, D) or "blhd" (B, L, H, D). Not
      used by layers
    - `operands`: by array, the name of the argument that passes it
    - `vjp`: the call's VJP, for frameworks without differentiation. It takes the arguments, `cotangent`
      and `wrt` (argument names), and returns gradients by argument
    - `jvp`: the call's JVP. It takes the arguments and `tangents` by argument, and returns the output's
      tangent
    - `within()`: makes the context of the call, which is not compiled (choice of kernel, thread count)
    - `source`: script lines that set `function`, which takes the arguments; "" if there are none
    - `through`: the expression that compiles `call` in scripts (see `sources.Dialect`)
    - `constants`: the plain values that the function depends on, without its arguments; None if unknown.
      Calls of an implementation with equal constants have equal functions
    - `compiled`: the framework's compiled program, or None
    - `ahead()`: computes values that must not be part of a compiled call; or None
    - `layer_parameters`: the parameters of the called layer, if they are not arguments and can be changed
      in place
    - `dropping(rate)`: the arguments, by name, that drop weights at a rate
    - `problem`: the problem that a path (`Implementation.paths`) answers, if it is not the case's
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
    layer_parameters: tuple[Any, ...] = ()
    dropping: Callable[[float], dict[str, Any]] = dropout_p_argument
    problem: Inputs | None = None

    def __call__(self) -> Any:
        return self.call(self.arguments)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Returns the framework's outputs for these arguments. Ends the process if the call forked it."""
        process = os.getpid()
        with self.within():
            answer = self.function(**arguments)
        if os.getpid() != process:
            end_fork()
        return answer

    def under(self, within: Callable[[], AbstractContextManager[Any]]) -> PreparedCall:
        """Returns the call whose function runs in the context `within()`."""
        if within is nullcontext:
            return self
        inner = self.function

        def function(**arguments: Any) -> Any:
            with within():
                return inner(**arguments)

        return replace(self, function=function, within=within)

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, changed to run in the context of this call."""
        if self.within is nullcontext:
            return function

        def run(*arguments: Any) -> Any:
            with self.within():
                return function(*arguments)

        return run

    def output(self, arguments: Mapping[str, Any]) -> Any:
        """Returns the output for these arguments, without weights or log-sum-exp."""
        answer = self.call(arguments)
        is_tuple = len(self.outputs) > 1 and isinstance(answer, tuple)
        return answer[self.outputs.index("output")] if is_tuple else answer

    def output_function(self, names: Sequence[str]) -> tuple[Callable[..., Any], list[Any]]:
        """Returns (the output as a function of the operands and parameters `names`, their arrays in this
        order)."""

        def output(*operands: Any) -> Any:
            return self.output(self.with_operands(dict(zip(names, operands, strict=True))))

        return output, [self.arguments[self.argument(name)] for name in names]

    def with_additional_arguments(
        self, ways: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, PreparedCall]:
        """Returns for each name in `ways` this call with the additional arguments `ways[name]`."""
        return {n: replace(self, arguments=self.arguments | {**way}) for n, way in ways.items()}

    def argument(self, name: str) -> str:
        """Returns the name of the argument that passes the operand or parameter `name`."""
        return self.operands.get(name, name)

    def with_operands(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments, in which `arrays` replace some operands and parameters by name.

        Arguments that are the same array (self-attention) are all replaced, unless `arrays` names them.
        """
        passed = {self.argument(name): array for name, array in arrays.items()}
        new_by_id: dict[int, Any] = {}
        for name, array in passed.items():
            if self.arguments.get(name) is not None:
                new_by_id.setdefault(id(self.arguments[name]), array)
        shared = {
            n: new_by_id[id(array)] for n, array in self.arguments.items() if id(array) in new_by_id
        }
        return self.arguments | shared | passed


def attention_call(
    function: Callable[..., Any], arguments: dict[str, Any], inputs: Inputs, **fields: Any
) -> PreparedCall:
    """Returns a call of plain attention with all outputs of the inputs. `fields` are fields of
    `PreparedCall`.

    A call with several outputs has no source, because scripts have only an output.
    """
    outputs = inputs.outputs
    if len(outputs) > 1:
        fields["source"] = ""
    if fields.get("constants") is not None:
        fields["constants"] = (*fields["constants"], outputs)
    return PreparedCall(function, arguments, outputs, **fields)


EAGER_SWITCHES = 1e-6
"""Python's switch interval, in seconds, while several threads make calls."""

MOST_ROUNDS = 400
"""The greatest number of calls of one thread in `all_at_once`."""


def all_at_once(
    calls: Sequence[Sequence[PreparedCall]], rounds: int, sync: Callable[[Any], None]
) -> list[list[Any]]:
    """Returns the outputs of each thread; see `Engine.at_once`.

    Every thread calls until all threads have made `rounds` calls of each of theirs, or `MOST_ROUNDS`
    calls: so no call is made without others. A thread that raises stops, and its last output is the
    exception.
    """
    outcomes: list[list[Any]] = [[] for _ in calls]
    start = Barrier(len(calls))
    rounds *= max(map(len, calls))

    def needs_calls(outcome: list[Any]) -> bool:
        has_raised = outcome and isinstance(outcome[-1], BaseException)
        return len(outcome) < rounds and not has_raised

    def run(calls: Sequence[PreparedCall], outcome: list[Any]) -> None:
        start.wait()
        try:
            while any(map(needs_calls, outcomes)) and len(outcome) < MOST_ROUNDS:
                prepared = calls[len(outcome) % len(calls)]
                native = prepared.function(**prepared.arguments)
                sync(native)
                outcome.append(native)
        except BaseException as error:
            outcome.append(error)

    threads = [
        Thread(target=run, args=(thread_calls, outcome), daemon=True)
        for thread_calls, outcome in zip(calls, outcomes, strict=True)
    ]
    with set_to(EAGER_SWITCHES, sys.getswitchinterval, sys.setswitchinterval):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return outcomes


@contextmanager
def set_to(value: Any, read: Callable[[], Any], write: Callable[[Any], Any]) -> Iterator[None]:
    """A context in which a setting has `value`. At its end the earlier value is written back."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)
