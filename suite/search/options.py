"""The options of `attention-conformance search`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.flags import number, option, whole
from attention_conformance.suite.run.options import Options, shared

CELL_SECONDS = 60.0
"""Default time limit of a cell; drawn cases are small."""

UNSTORED = ("shapes", "script", "list", "case", "results")
"""Options that the records leave out."""


@dataclass(frozen=True)
class SearchOptions(Options):
    """The options of a search. `seed` draws the cases; `minutes` and `examples` end the search."""

    fixed = ("level", "shard", "audit", "allow_refusals")

    cell_timeout: float = shared("cell-timeout", default=CELL_SECONDS)
    seed: int = shared("seed", help="seed that draws the cases")
    minutes: float | None = option(
        "greatest time; default 1, or none with --examples",
        "N",
        default=None,
        kind=number,
        for_rerun=False,
    )
    examples: int | None = option(
        "greatest number of cases", "N", default=None, kind=whole, for_rerun=False
    )
    gradients: bool = option(
        "also judge the gradients of implementations that have them (default)",
        default=True,
        switch=True,
        for_rerun=False,
    )
    shapes: int | None = option(
        "draw only N sizes of each operator; 0: any sizes; default: few sizes if every new shape is "
        "compiled, else any",
        "N",
        default=None,
        kind=whole,
        for_rerun=False,
    )
    script: str = option(
        "save the script of the first failure in this new file, of later failures in FILE-2.py, ...",
        "FILE.py",
        for_rerun=False,
    )
    list: bool = option("print the id of every case drawn", switch=True, for_rerun=False)
    case: tuple[str, ...] = shared(
        "case",
        help="judge this case instead of drawing, and shrink it if it fails; repeatable",
        for_rerun=False,
    )
    results: str = shared("results", help="write the failures to this new file", for_rerun=False)

    def check(self) -> None:
        """Raise UsageError for invalid options. Imports no framework."""
        super().check()
        for name in ("minutes", "examples"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"--{name} must be positive, got {value}")
        if self.shapes is not None and self.shapes < 0:
            raise UsageError(f"--shapes must not be negative, got {self.shapes}")
        for name in ("script", "results"):
            path = getattr(self, name)
            if path and Path(path).exists():
                raise UsageError(f"--{name}={path} exists; name a new file")
