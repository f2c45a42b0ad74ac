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
"""A condition of a call or of inputs, which both have `sizes`: whether what it returns is true."""

Problem = Callable[[Inputs], Inputs]
"""Other inputs."""

Answer = Callable[[Any, Inputs], Any]
"""What is handed out for the right answer to inputs."""


@dataclass(frozen=True)
class Deviation:
    """One thing that an implementation can do wrong, and the check that must see it.

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
    when: When | None = None,
    problem: Problem | None = None,
    answer: Answer | None = None,
    **steps: Callable[..., Any],
) -> Deviation:
    """A deviation of a right kernel, which changes one thing:

    - steps, which are methods of its class: a changed step takes the right kernel and what the step takes
    - `problem`: the right kernel answers other inputs
    - `answer`: the right answer is handed out wrongly
    - `facts`: attributes that differ, as what is declared

    `when` is a condition: elsewhere the kernel is right. A step asks it of its call, the other two of the
    inputs. Several classes in `right` are mixed, the first one before the others.
    """
    bases = right if isinstance(right, tuple) else (right,)
    body: dict[str, Any] = {"__doc__": sentence, **(facts or {})}

    def changed(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, *arguments: Any, **named: Any) -> Any:
            right = super(kernel, self)
            if when is None or when(_call_of(arguments)):
                return change(right, *arguments, **named)
            return getattr(right, name)(*arguments, **named)

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
    body |= {name: changed(name, change) for name, change in steps.items()}
    kernel: Any = type("".join(word.capitalize() for word in name.split("-")), bases, body)
    kernel.name = name
    return CATALOGUE.setdefault(kernel, Deviation(name, killed_by, sentence, hint, family, kernel))


def twins(
    kernels: Mapping[str, type | tuple[type, ...]], *what: str, **more: Any
) -> list[Deviation]:
    """The same deviation of several right kernels, each under its name."""
    return [deviation(name, *what, right=right, **more) for name, right in kernels.items()]


def _call_of(arguments: tuple[Any, ...]) -> Any:
    """The call that a step is a part of: the argument with sizes."""
    return next(each for each in arguments if hasattr(each, "sizes"))


def memory(right: Any) -> dict[Any, Any]:
    """What the kernel of a changed step remembers from call to call."""
    known: dict[Any, Any] = vars(right.__self__).setdefault("remembered", {})
    return known


def remembering(step: str) -> Callable[..., Any]:
    """The step as it is; its first argument is remembered under the name of the step."""

    def change(right: Any, first: Any, *more: Any) -> Any:
        memory(right)[step] = first
        return getattr(right, step)(first, *more)

    return change


def counted(right: Any, key: Any = "calls") -> int:
    """How often a changed step was called, with a key."""
    known = memory(right)
    known[key] = known.get(key, 0) + 1
    return int(known[key])


def accumulated(right: Any, name: str, gradient: np.ndarray) -> np.ndarray:
    """A gradient, added to what earlier calls left in the buffer of its name and shape."""
    known = memory(right)
    known[name, gradient.shape] = total = gradient + known.get((name, gradient.shape), 0)
    return np.asarray(total)
