"""`Deviation`: attention with one thing wrong, as a value that the kill table and the diagnosis read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from attention_conformance.backends.protocol import Implementation

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
"""The deviations of modules imported so far, by kernel; `suite.faults.all_faults` imports all modules."""

K = TypeVar("K", bound=type[Implementation])


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
    **steps: Callable[..., Any],
) -> Deviation:
    """A deviation that changes steps of a right kernel, which are methods of its class.

    A changed step takes the right kernel and what the step takes. `facts` are attributes that differ, as
    what is declared. Several classes in `right` are mixed, the first one before the others.
    """
    bases = right if isinstance(right, tuple) else (right,)
    body: dict[str, Any] = {"__doc__": sentence, **(facts or {})}

    def changed(change: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, *arguments: Any, **named: Any) -> Any:
            return change(super(kernel, self), *arguments, **named)

        return step

    body |= {step: changed(change) for step, change in steps.items()}
    kernel: Any = type("".join(word.capitalize() for word in name.split("-")), bases, body)
    kernel.name = name
    return CATALOGUE.setdefault(kernel, Deviation(name, killed_by, sentence, hint, family, kernel))


def fault(killed_by: str, hint: str = "", *, family: str = "") -> Callable[[K], K]:
    """Add a kernel that keeps a state, or has more than steps, as a deviation: its docstring is the
    sentence. The default family is the `FAMILY` of its module."""

    def mark(kernel: K) -> K:
        of = family or getattr(sys.modules[kernel.__module__], "FAMILY", "")
        sentence = (kernel.__doc__ or "").strip()
        CATALOGUE[kernel] = Deviation(kernel.name, killed_by, sentence, hint, of, kernel)
        return kernel

    return mark
