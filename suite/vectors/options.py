"""The options of the commands `vectors` and `vectors judge`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attention_conformance.suite.flags import CommandOptions, option
from attention_conformance.suite.run.options import shared
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


@dataclass(frozen=True)
class VectorsOptions(Selection):
    """The options of `vectors`."""

    output: Path | None = option("a new or empty folder", "FOLDER", default=None, kind=Path)


@dataclass(frozen=True)
class JudgeOptions(CommandOptions):
    """The options of `vectors judge`."""

    answers: Path = option("a folder of answers", "ANSWERS", kind=Path, nargs="1")
    vectors: Path = option("the answered vectors", "FOLDER", default=None, kind=Path, required=True)
    case: tuple[str, ...] = shared("case", help="judge only the answer to this case; repeatable")
    results: str = shared("results", for_rerun=False)
    verbose: bool = option("explain failures in full", switch=True, for_rerun=False, short="-v")
