"""The descriptor of a feature: all that the suite must know to ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suite.spec.case import Case
from suite.spec.levels import Ask
from suite.spec.operator import Option, nothing
from suite.spec.sizes import Sizes


@dataclass(frozen=True, eq=False)
class Feature:
    """A feature of attention.

    - `name`: option of a case, array of its inputs, and parameter of a user function.
    - `word`, `text`: what an implementation declares to support the feature, and its meaning.
    - `option`: the token in ids; None if another part of the id expresses the feature.
    - `axes`, `draw(sizes, rng)`: axis letters and values, if the feature is an array.
    - `outputs`: further outputs.
    - `wide`: True if arrays and outputs are float32 beside 16-bit operands.
    - `constant`: True if the array has no gradient.
    - `fills`: for an array (H,), the heads whose fully masked rows still attend something (a sink).
    - `cases`, `gradients`: cases for values and for derivatives.
    - `group`: the row of the conformance table.
    - `validate`: raises ValueError for an invalid case.
    """

    name: str
    word: str
    text: str
    option: Option | None = None
    axes: str = ""
    draw: Callable[[Sizes, np.random.Generator], np.ndarray] | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    wide: bool = False
    constant: bool = False
    fills: Callable[[np.ndarray], np.ndarray] | None = None
    cases: tuple[Ask, ...] = ()
    gradients: tuple[Ask, ...] = ()
    group: str = ""
    validate: Callable[[Case], object] = nothing

    def asked_by(self, case: Case) -> bool:
        """True if the case uses the feature as an option."""
        return self.option is not None and case.option(self.name) != self.option.default

    def value(self, case: Case, arrays: Mapping[str, Any]) -> Any:
        """The array or option value of the feature, or None."""
        return arrays.get(self.name) if self.axes else case.option(self.name)
