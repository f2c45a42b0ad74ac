"""The options of `attention-conformance search`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.flags import number, option, whole_number
from attention_conformance.suite.run.options import Options, shared

_limit = partial(option, metavar="N", default=None, for_rerun=False)


@dataclass(frozen=True)
class SearchOptions(Options):
    """The options of a search. `seed` draws the cases; `minutes` and `examples` end the search."""

    fixed = ("level", "shard", "audit", "allow_refusals")

    cell_timeout: float = shared("cell-timeout", default=60.0)
    seed: int = shared("seed", help="seed that draws the cases")
    minutes: float | None = _limit("greatest time; default 1, or none with --examples", kind=number)
    examples: int | None = _limit("greatest number of cases", kind=whole_number)
    gradients: bool = option(
        "also judge gradients (default)", default=True, switch=True, for_rerun=False
    )
    script: str = option(
        "save the script of the first failure in this new file", "FILE.py", for_rerun=False
    )
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
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UsageError(f"--{name} must be positive, got {value}")
        for name in ("script", "results"):
            if (path := getattr(self, name)) and Path(path).exists():
                raise UsageError(f"--{name}={path} exists; name a new file")
