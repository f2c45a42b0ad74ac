"""The descriptor of a feature: all that the suite must know to test it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import Option, nothing
from attention_conformance.suite.spec.sizes import Sizes

STEPS = {
    "factor": "scores times an array",
    "cap": "c tanh(scores / c)",
    "bias": "scores plus an array",
    "key": "one more key, with these scores and the value 0",
    "mask": "pairs that do not attend",
    "output": "a further output",
}
"""The steps that features reduce to, in the order of the computation."""


def per_head(x: np.ndarray, rows: int, keys: int) -> np.ndarray:
    """Returns an array x (H,) as (1, H, 1, 1), which broadcasts to (B, H, Lq, Lk)."""
    return x.reshape(1, -1, 1, 1)


@dataclass(frozen=True)
class Reduction:
    """The step of plain attention that a feature reduces to, and the roundings that the step adds.

    - `to`: the name of the step in `STEPS`.
    - `accumulate`, `score`: roundings in the accumulator and stores of scores. They are relative to the
      new scores, to the added bias, or to |x| + |m| + log n for a key of score x beside n keys with the
      maximum m.
    - `operand(value, Lq, Lk)`: the operand of the step for a value of the feature: a number, or an array
      that broadcasts to (B, H, Lq, Lk). For a part of the mask: the argument of a call.
    """

    to: str
    accumulate: int = 0
    score: int = 0
    operand: Callable[[Any, int, int], Any] = per_head


@dataclass(frozen=True, eq=False)
class Feature:
    """A feature of attention.

    - `name`: option of a case, array of its inputs, and parameter of a user function.
    - `word`, `text`: the word that an implementation declares to support the feature, and its meaning.
    - `reduction`: how the feature reduces to plain attention.
    - `option`: the token in ids; None if another part of the id expresses the feature.
    - `axes`, `draw(sizes, rng)`: axis letters and values, if the feature is an array.
    - `outputs`: further outputs.
    - `wide`: True if arrays and outputs are float32 beside 16-bit operands.
    - `constant`: True if the array has no gradient.
    - `cases`, `gradients`: cases for values and for derivatives.
    - `group`: the row of the conformance table.
    - `validate`: raises ValueError for an invalid case.
    """

    name: str
    word: str
    text: str
    reduction: Reduction
    option: Option | None = None
    axes: str = ""
    draw: Callable[[Sizes, np.random.Generator], np.ndarray] | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    wide: bool = False
    constant: bool = False
    cases: tuple[Ask, ...] = ()
    gradients: tuple[Ask, ...] = ()
    group: str = ""
    validate: Callable[[Case], object] = nothing

    def used_by(self, case: Case) -> bool:
        """Returns True if the case has the feature's option, with another value than the default."""
        return self.option is not None and case.option(self.name) != self.option.default

    def value(self, case: Case, arrays: Mapping[str, Any]) -> Any:
        """Returns the feature's array out of `arrays`, or its option value; None without the feature."""
        return arrays.get(self.name) if self.axes else case.option(self.name)
