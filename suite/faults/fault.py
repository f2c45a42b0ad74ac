"""`Fault`, and the decorator `fault` that adds a kernel to the catalogue."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

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
"""Each family of faults, and what goes wrong in it."""

FAULTS: dict[type[Implementation], Fault] = {}
"""The faults of modules imported so far; `suite.faults.all_faults` imports all modules."""

K = TypeVar("K", bound=type[Implementation])


@dataclass(frozen=True)
class Fault:
    """One thing that an implementation can do wrong, and the check that must see it.

    - `kernel`: an implementation with this one fault; its docstring is the sentence
    - `killed_by`: the name of the check that must end in `fail` on one of its cases
    - `hint`: what people probably wrote, in terms of their code, and what is right
    - `family`: one of `FAMILIES`
    """

    kernel: type[Implementation]
    killed_by: str
    hint: str
    family: str = ""

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def sentence(self) -> str:
        """What is wrong, for people, in one line."""
        return (self.kernel.__doc__ or "").strip()


def fault(killed_by: str, hint: str = "", *, family: str = "") -> Callable[[K], K]:
    """Add a kernel or a layer to the catalogue (see `Fault`). The default family is the `FAMILY` of its
    module."""

    def mark(kernel: K) -> K:
        of = family or getattr(sys.modules[kernel.__module__], "FAMILY", "")
        FAULTS[kernel] = Fault(kernel, killed_by, hint, of)
        return kernel

    return mark
