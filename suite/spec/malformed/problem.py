"""A malformed problem: the change that spoils a well-formed one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.operators import OPERATORS

Spoil = Callable[[Inputs], Inputs]
"""The change that spoils a well-formed problem."""

Contained = Callable[[Inputs, Inputs], Iterable[tuple[Inputs, np.ndarray]]]
"""A function from a well-formed problem and the spoilt one to pairs (inputs, elements), elements boolean.
In these elements of the output, the answer to the spoilt problem must have the same bits as the answer to
these inputs."""


@dataclass(frozen=True)
class MalformedCase:
    """A malformed problem: a name, and the change that spoils a well-formed problem.

    A layer is built for the well-formed problem and called with the spoilt one. A mask of the form
    "raw" is passed unchanged. `needs` are the features without which the problem cannot be passed.
    With `contained` an answer is right, too, if no sample reads memory of other samples.
    """

    name: str
    operator: Operator
    needs: tuple[str, ...]
    text: str
    spoil: Spoil
    contained: Contained | None = None

    dtype = DTYPES["f32"]

    group = "bad problems"

    why = "a silent answer to a malformed problem is a fault"
    """The reason for `list --why`."""

    @property
    def id(self) -> str:
        return f"bad/{self.operator.qualified(self.name)}/{self.dtype.name}"

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the problem by name (see `suite.spec.case.Case.facts`)."""
        return {"problem": self.name}

    def inputs(self, seed: int = 0) -> Inputs:
        """Returns the malformed inputs: `well_formed(seed)` after the change `spoil`."""
        return self.spoil(self.well_formed(seed))

    def well_formed(self, seed: int = 0) -> Inputs:
        """Returns the inputs before the change that spoils them."""
        return draw(Case.parse(self.operator.questions.well_formed), seed)

    @property
    def requirement(self) -> str:
        """What an implementation must do: "must raise", or with `contained` also another right answer."""
        return "must raise" + (", or answer without memory of others" if self.contained else "")

    def describe(self) -> str:
        """Returns a description of the malformed problem in a few lines."""
        return f"{self.id}\n  {self.text}; an implementation {self.requirement}"

    def __str__(self) -> str:
        return self.id


Row = tuple[str, str, Spoil] | tuple[str, str, Spoil, Contained]
"""The needs of a malformed problem, separated by blanks; its text; the change that spoils it; optionally
the other right answers."""


def malformed(
    rows: Mapping[str, Row], *operators: str, needs: str = "", first: Spoil = lambda x: x
) -> tuple[MalformedCase, ...]:
    """Returns the malformed problems of operators (names), from rows by name. All rows have the further
    `needs`, and the change `first` before their own."""
    return tuple(
        MalformedCase(
            name,
            OPERATORS[operator],
            (*f"{needs} {own_needs}".split(),),
            text,
            after(first, spoil),
            *contained,
        )
        for operator in operators
        for name, (own_needs, text, spoil, *contained) in rows.items()
    )


def after(first: Spoil, second: Spoil) -> Spoil:
    """Returns the change `second` after the change `first`."""
    return lambda x: second(first(x))
