"""The options of `python -m suite vectors` and of `vectors judge`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suite.run.flags import CommandOptions, option
from suite.run.options import shared
from suite.spec.case import Case
from suite.spec.elections import ElectionCase
from suite.spec.operators import OPERATORS


@dataclass(frozen=True)
class Selection(CommandOptions):
    """What is asked of a level: all operators and dtypes (short names), or those that are named."""

    level: str = shared("level", default="smoke", checked=True)
    seed: int = shared("seed")
    operator: tuple[str, ...] = option(
        "only cases of this operator; repeatable", many=True, valid=tuple(OPERATORS), checked=True
    )
    dtype: tuple[str, ...] = shared("dtype", checked=True)

    def takes(self, case: Case | ElectionCase) -> bool:
        """Whether the case is one of the operators and the dtypes."""
        operator = not self.operator or case.operator.name in self.operator
        return operator and (not self.dtype or case.dtype.name in self.dtype)


@dataclass(frozen=True)
class ExportOptions(Selection):
    """A selection, and the folder of its vectors."""

    output: Path | None = option("a new or empty folder", "FOLDER", default=None, kind=Path)


@dataclass(frozen=True)
class JudgeOptions(CommandOptions):
    """What answers are judged by."""

    vectors: Path = option(
        "the vectors they answer", "FOLDER", default=None, kind=Path, required=True
    )
    case: tuple[str, ...] = shared("case", help="judge the answer to this case alone; repeatable")
    numerics: str = shared(
        "numerics",
        help="numerics class that answers are held to, before that of runtime.json",
    )
    elect: tuple[str, ...] = shared(
        "elect",
        help="hold the runtime to an answer where the field has no single one: QUESTION=ANSWER, or "
        "QUESTION=DTYPE:ANSWER, before what runtime.json elects; repeatable",
    )
    expect: tuple[str, ...] = shared(
        "expect", help="a manifest of expected failures of the runtime; repeatable"
    )
    results: str = shared("results", again=False)
    verbose: bool = option("explain every failure in full", switch=True, again=False, short="-v")
