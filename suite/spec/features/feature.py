"""What a feature is: everything that the suite must know to ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from suite.spec.levels import Ask
from suite.spec.operator import Option, nothing
from suite.spec.sizes import Sizes

if TYPE_CHECKING:
    from suite.spec.case import Case


@dataclass(frozen=True, eq=False)
class Feature:
    """A feature of attention.

    `name` is the option of a case, the array among its inputs, and the parameter of a person's function.
    `word` is what an implementation declares to be asked for it, `text` its meaning.

    `option` is the token in ids; None for a feature that another part of an id says. A feature that is an
    array has `axes`, letters of `suite.spec.operator.LETTERS`, and `draw(sizes, rng)` gives its values.
    `outputs` are returned beside the output. Arrays and outputs that are `wide` are float32 beside 16-bit
    operands. A `constant` array has no gradient. `fills` says of an array of numbers by head, (H,), in
    which heads a row attends something though the mask leaves it without keys.

    `cases` are asked of values, `gradients` differentiated. `group` is the row of the conformance table;
    `validate` raises ValueError for a case that makes no sense.
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
        """Whether an option of the case asks for the feature."""
        return self.option is not None and case.option(self.name) != self.option.default

    def value(self, case: Case, arrays: Mapping[str, Any]) -> Any:
        """The array, or the value of the option; None if neither is there."""
        return arrays.get(self.name) if self.axes else case.option(self.name)
