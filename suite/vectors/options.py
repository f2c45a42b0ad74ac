"""The options of `attention-conformance vectors` and of `vectors judge`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attention_conformance.suite.flags import CommandOptions, option
from attention_conformance.suite.run.options import shared
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.elections import ElectionCase
from attention_conformance.suite.spec.operators import OPERATORS


@dataclass(frozen=True)
class Selection(CommandOptions):
    """The cases of a level, of all or only the named operators and dtypes (short names)."""

    level: str = shared("level", default="smoke", checked=True)
    seed: int = shared("seed")
    operator: tuple[str, ...] = option(
        "only cases of this operator; repeatable", many=True, valid=tuple(OPERATORS), checked=True
    )
    dtype: tuple[str, ...] = shared("dtype", checked=True)

    def takes(self, case: Case | ElectionCase) -> bool:
        """True if the case has a selected operator and dtype."""
        operator = not self.operator or case.operator.name in self.operator
        return operator and (not self.dtype or case.dtype.name in self.dtype)


@dataclass(frozen=True)
class ExportOptions(Selection):
    """A selection, and the folder of its vectors."""

    output: Path | None = option("a new or empty folder", "FOLDER", default=None, kind=Path)


@dataclass(frozen=True)
class JudgeOptions(CommandOptions):
    """The options of `vectors judge`."""

    vectors: Path = option(
        "the vectors that were answered", "FOLDER", default=None, kind=Path, required=True
    )
    case: tuple[str, ...] = shared("case", help="judge only the answer to this case; repeatable")
    numerics: str = shared(
        "numerics",
        help="numerics class of the answers; overrides runtime.json",
    )
    elect: tuple[str, ...] = shared(
        "elect",
        help="the answer to an election question that the runtime must give: QUESTION=ANSWER or "
        "QUESTION=DTYPE:ANSWER; overrides runtime.json; repeatable",
    )
    expect: tuple[str, ...] = shared(
        "expect", help="a manifest of expected failures of the runtime; repeatable"
    )
    results: str = shared("results", for_rerun=False)
    verbose: bool = option(
        "explain every failure in full", switch=True, for_rerun=False, short="-v"
    )
