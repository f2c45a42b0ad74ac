"""A malformed problem: the change that spoils a well-formed one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, DType
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operator import Operator

Spoil = Callable[[Inputs], Inputs]
"""The change that spoils a well-formed problem."""

Contained = Callable[[Inputs, Inputs], Iterable[tuple[Inputs, np.ndarray]]]
"""From a well-formed problem and the spoilt one: other inputs, and the elements of the output that must
have the bits of the answer to these."""


@dataclass(frozen=True)
class MalformedCase:
    """A malformed problem: a name, and the change that spoils a well-formed problem.

    A layer is built for the well-formed problem and called with the spoilt one. A mask of the form
    "raw" is passed unchanged. `needs` are the features without which the problem cannot be passed.
    With `contained` an answer is right, too, if it has nothing from memory of others.
    """

    name: str
    text: str
    spoil: Spoil
    operator: Operator
    needs: tuple[str, ...] = ()
    dtype: DType = DTYPES["f32"]
    contained: Contained | None = None

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
        """The malformed inputs."""
        return self.spoil(self.well_formed(seed))

    def well_formed(self, seed: int = 0) -> Inputs:
        """The inputs that are spoilt."""
        return draw(Case.parse(self.operator.questions.well_formed), seed)

    @property
    def must(self) -> str:
        """What an implementation must do."""
        return "must raise" + (", or answer without memory of others" if self.contained else "")

    def describe(self) -> str:
        """A description of the malformed problem in a few lines."""
        return f"{self.id}\n  {self.text}; an implementation {self.must}"

    def __str__(self) -> str:
        return self.id


Row = tuple[str, Spoil] | tuple[str, Spoil, Contained]
"""The text of a malformed problem, the change that makes it, and which answers are right, too."""


def malformed(
    operator: Operator, rows: Mapping[str, Row], *needs: str
) -> tuple[MalformedCase, ...]:
    """The malformed problems of an operator that need these features, by name."""
    return tuple(
        MalformedCase(name, text, spoil, operator, needs, contained=next(iter(contained), None))
        for name, (text, spoil, *contained) in rows.items()
    )


def changed(**arrays: Callable[[Inputs], np.ndarray]) -> Spoil:
    """A change of arrays to what functions of the well-formed problem return."""
    return lambda x: x.replace(**{name: change(x) for name, change in arrays.items()})
