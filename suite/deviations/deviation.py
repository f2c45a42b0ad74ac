"""`Deviation`: attention with one thing wrong, as a value that the kill table and the diagnosis read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs

FAMILIES = {
    "cache": "what a cache keeps between steps",
    "contract": "types, devices and refusals of a call",
    "dropout": "which weights dropout drops, and when",
    "gradient": "the backward pass",
    "heads": "which head or sample is read for a head or sample",
    "latent": "projections and rotary parts of latent attention",
    "layer": "projections, norms and options of layers",
    "layout": "the order of axes, strides and memory",
    "lse": "the log-sum-exp of a row",
    "mask": "which keys a query sees",
    "merge": "answers of parts of the keys that are merged",
    "numerics": "where numbers are rounded or overflow",
    "packed": "segments of packed batches",
    "paged": "pages and their tables",
    "quantized": "8-bit codes and their scales",
    "rotary": "rotations by position",
    "scale": "the factor of the scores",
    "scores": "softcap, bias and other terms of the scores",
    "shapes": "sizes of 0 or 1, and sizes that differ",
    "sinks": "logits that take weight and have no value",
    "softmax": "maximum, exponential and sum of a row",
    "state": "what a call remembers, or takes from around it",
    "tiles": "blocks of rows, keys and components, and their tails",
}
"""Each family of deviations, and what goes wrong in it."""

CATALOGUE: dict[type[Implementation], Deviation] = {}
"""The deviations of modules imported so far, by kernel; `all_faults` imports all modules."""

When = Callable[[Any], object]
"""A condition on a call or on inputs. Both have `sizes`. The result counts as true or false."""

Problem = Callable[[Inputs], Inputs]
"""A function from the inputs of a case to the changed inputs that a kernel answers instead."""

Answer = Callable[[Any, Inputs], Any]
"""A function from the right answer and the inputs to the changed answer that callers get."""


@dataclass(frozen=True)
class Deviation:
    """A fault: one thing that an implementation can do wrong, and the check that must see it.

    - `killed_by`: the name of the check that must end in `fail` on one of its cases
    - `sentence`: what is wrong, for people, in one line
    - `hint`: what people probably wrote, in terms of their code, and what is right
    - `family`: one of `FAMILIES`
    - `kernel`: an implementation with this one thing wrong
    """

    name: str
    killed_by: str
    sentence: str
    hint: str
    family: str
    kernel: type[Implementation]


def deviation(
    name: str,
    killed_by: str,
    sentence: str,
    hint: str = "",
    *,
    family: str,
    right: type | tuple[type, ...],
    facts: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Deviation:
    """Adds a deviation to `CATALOGUE`, and returns it. `right`, `facts` and `changes` are arguments of
    `changed_kernel`; the other arguments are fields of `Deviation`."""
    kernel = changed_kernel(name, right, {"__doc__": sentence, **(facts or {})}, **changes)
    return CATALOGUE.setdefault(kernel, Deviation(name, killed_by, sentence, hint, family, kernel))


def changed_kernel(
    name: str,
    right: type | tuple[type, ...],
    facts: Mapping[str, Any] | None = None,
    when: When | None = None,
    problem: Problem | None = None,
    answer: Answer | None = None,
    **steps: Callable[..., Any],
) -> type[Implementation]:
    """Returns a subclass of the class `right`, or of several classes, that differs in one of these:
    - `steps`: methods, each replaced by a function of the right kernel and the method's arguments
    - `problem`: the kernel answers changed inputs
    - `answer`: the right answer is changed before callers get it
    - `facts`: class attributes, such as those of the declaration

    If the condition `when` is false, the kernel is right. `when` gets the call of a step; for `problem`
    and `answer` it gets the inputs. Raises AttributeError for a step that the class lacks.
    """
    bases = right if isinstance(right, tuple) else (right,)
    body: dict[str, Any] = dict(facts or {})

    def changed_step(step_name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, *arguments: Any, **keywords: Any) -> Any:
            right = super(kernel, self)
            if when is None or when(_call_among(arguments)):
                return change(right, *arguments, **keywords)
            return getattr(right, step_name)(*arguments, **keywords)

        return step

    def prepare(self: Any, inputs: Inputs) -> PreparedCall:
        if when is not None and not when(inputs):
            return super(kernel, self).prepare(inputs)
        call = super(kernel, self).prepare(inputs if problem is None else problem(inputs))
        if answer is None:
            return call
        return replace(
            call, function=lambda **arguments: answer(call.function(**arguments), inputs)
        )

    if problem is not None or answer is not None:
        body["prepare"] = prepare
    if unknown := [step for step in steps if not any(hasattr(base, step) for base in bases)]:
        raise AttributeError(f"{name}: its right kernel has no steps {', '.join(unknown)}")
    body |= {step: changed_step(step, change) for step, change in steps.items()}
    kernel: Any = type("".join(word.capitalize() for word in name.split("-")), bases, body)
    kernel.name = name
    return kernel


def twins(
    kernels: Mapping[str, type | tuple[type, ...]], *texts: str, **arguments: Any
) -> list[Deviation]:
    """Returns deviations that differ only in name and right kernel. `kernels`: the right kernels by
    name."""
    return [deviation(name, *texts, right=right, **arguments) for name, right in kernels.items()]


def _call_among(arguments: tuple[Any, ...]) -> Any:
    """Returns the call (or cache, or inputs) among the arguments of a step: the first argument that has
    `sizes`."""
    return next(argument for argument in arguments if hasattr(argument, "sizes"))


def memory(right: Any) -> dict[Any, Any]:
    """Returns a dictionary that belongs to the kernel object of a changed step. Its entries last from
    call to call."""
    return vars(right.__self__).setdefault("remembered", {})


def storing_argument(step: str) -> Callable[..., Any]:
    """Returns the right step `step` that also stores its first argument in `memory`, under the step's
    name."""

    def change(right: Any, argument: Any, *arguments: Any) -> Any:
        memory(right)[step] = argument
        return getattr(right, step)(argument, *arguments)

    return change


def edited(step: str, change: Callable[..., Mapping[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Returns a step that replaces entries of what the right step `step` returns, such as gradients by
    name, by those of `change(entries, *arguments)`. Entries that the right step lacks are left out."""

    def edit(right: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        entries = getattr(right, step)(*arguments, **options)
        changed = change(entries, *arguments, **options)
        return {**entries, **{name: x for name, x in changed.items() if name in entries}}

    return edit


def call_count(right: Any, key: Any = "calls") -> int:
    """Counts a call of a changed step. Returns the number of its calls with this key, including this
    one."""
    store = memory(right)
    store[key] = store.get(key, 0) + 1
    return int(store[key])


def accumulate(right: Any, name: str, gradient: np.ndarray) -> np.ndarray:
    """Adds a gradient to the buffer of its name and shape. Returns the sum over all calls so far."""
    store = memory(right)
    store[name, gradient.shape] = total = gradient + store.get((name, gradient.shape), 0)
    return np.asarray(total)


def has_one_query(call: Any) -> bool:
    """Returns True for a call with one query, as in decoding."""
    return bool(call.sizes.Lq == 1)


def is_float16(call: Any) -> bool:
    """Returns True for a float16 call."""
    return bool(call.fmt.name == "f16")


def has_groups(call: Any) -> bool:
    """Returns True if query heads share key heads."""
    return bool(call.sizes.H != call.sizes.Hkv)
