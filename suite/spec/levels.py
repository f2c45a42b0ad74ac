"""Levels: which cases are tested at which level, and why.

An operator or a check lists patterns of ids, with {dt} for the dtype. Each list (`Ask`) names the first
level that asks it and a row of `DTYPES_AT`. A level includes all levels before it.

- `SHARES`: promises that do not depend on values are asked on a share of the cases only.
- `POSTPONED`: costly implementations are asked some cases at a later level.

`attention-conformance list --why ID` explains one case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from attention_conformance.suite.spec.covering import Covering
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.ids import part
from attention_conformance.suite.spec.vocabulary import LEVELS

ALL = tuple(DTYPES)
HALF = ("f32", "bf16")
TURNS: tuple[str, ...] = ("turns",)
"""One dtype of `HALF` per pattern, in turns."""
OWN: tuple[str, ...] = ("own",)
"""The dtypes in the rows of a covering array."""


class DtypesAt(NamedTuple):
    """The dtypes of patterns at each level.

    `all_dtypes` selects the patterns that standard asks in all dtypes:

    - "common": patterns with sizes in `Asks.common_sizes`.
    - "promise": patterns of "common", and all patterns of operators that are no layers.
    - "": no pattern.
    """

    smoke: tuple[str, ...]
    standard: tuple[str, ...]
    full: tuple[str, ...]
    why: str
    all_dtypes: str = ""


DTYPES_AT: Mapping[str, DtypesAt] = {
    "common": DtypesAt(
        TURNS, HALF, ALL, "a fault that depends only on sizes shows in few dtypes", "common"
    ),
    "promise": DtypesAt(
        TURNS, HALF, ALL, "a promise is cheap for sizes that are tested anyway", "promise"
    ),
    "every": DtypesAt(TURNS, ALL, ALL, "a feature rounds differently in each dtype"),
    "half": DtypesAt(HALF, HALF, ALL, "a derivative costs three calls"),
    "halves first": DtypesAt(HALF, ALL, ALL, "a long row may lose keys in one dtype only"),
    "float32": DtypesAt(("f32",), ("f32",), ALL, "float32 has the narrowest bounds"),
    "growing": DtypesAt(("f32",), HALF, ALL, "each case makes several calls, or compiles"),
    "float32 first": DtypesAt(("f32",), ALL, ALL, "one dtype shows the kind of fault at smoke"),
    "growing halves": DtypesAt(
        ("f32",),
        ("f32", "bf16", "f16"),
        ALL,
        "dropout needs many draws, and scales weights in each dtype",
    ),
    "last digits": DtypesAt(
        ("f32", "f64"),
        ("f32", "f64"),
        ("f32", "f64"),
        "float64 shows a derivative that is wrong in its last digits",
    ),
    "sixteen": DtypesAt(
        ("bf16",),
        ("bf16", "f16"),
        ("bf16", "f16"),
        "the standard deviation of the error is known in 16 bits only",
    ),
    "array": DtypesAt(OWN, OWN, OWN, "a covering array pairs dtypes with every other axis"),
    "array x dtypes": DtypesAt(OWN, OWN, ALL, "a covering array; at full every row in every dtype"),
}
"""The dtypes of each level, by kind of patterns. Patterns without {dt} are unchanged."""

ELECTIONS_AT: Mapping[str, DtypesAt] = {
    "own": DtypesAt(HALF, ALL, ALL, "a framework has few kernels, and these serve several dtypes"),
    "own, modes": DtypesAt(HALF, (), ALL, "what a mode does depends on few dtypes"),
    "compiled": DtypesAt(("f32",), HALF, HALF, "each case compiles"),
}
"""The dtypes in which elections are asked of frameworks' own implementations and in compiled mode, beside
the first dtype of a question. Users' functions are asked in all dtypes of a question."""

POSTPONED = {
    "variations": "smoke asks each case once, and standard its variations, because another "
    "implementation runs the same code",
    "dtypes": "smoke asks nothing in this dtype, standard smoke's cases, full all cases",
    "kernels": "full asks smoke's cases: an interpreted kernel takes half a second to compile",
}
"""Questions that an implementation may postpone to a later level (`Implementation.postponed`), with the
reason."""

OPTIMIZED = {"values": 6}
"""One in this many cases of a check is compiled with full optimisation, if others are compiled with
reduced optimisation."""

AS_CALLED = {
    "contract": 3, "ambient": 2, "ambient_gradients": 1, "gradient_contract": 1, "invariant_rerun": 1,
    "remembered": 1, "stateless": 1,
}  # fmt: skip
"""One in this many float32 cases of a check of calls is asked of a user function operation by operation.
A function that is called as one program runs no Python. Each operation is compiled for each size and
dtype, so other dtypes are asked of programs."""


class Share(NamedTuple):
    """The share of the cases that a check tests, per operator.

    - smoke: one in `smoke` of the smoke cases, in each of `dtypes`.
    - standard: also one in `smoke_again` of the smoke cases, and one in `later_cases` of the cases that
      standard adds (in `layers` for layers).

    0 means none.
    """

    smoke: int
    smoke_again: int
    later_cases: int
    why: str
    layers: int = 0
    dtypes: tuple[str, ...] = ALL


SHARES: Mapping[str, Share] = {
    "contract": Share(2, 1, 8, "types, purity and determinism do not depend on values", layers=6),
    "kept_answers": Share(
        8, 4, 0, "ownership of the output's memory depends on the kernel", dtypes=HALF
    ),
    "hidden": Share(2, 1, 4, "all masks of one kind hide in the same way"),
    "tangents": Share(1, 1, 8, "the derivative follows the rules of the gradient", dtypes=("f32",)),
}
"""The checks that are asked on a share of the cases only."""


FEW_COMPILED = "each compiled case is a program of its own, so few are tested"
LOST_IN_16_BITS = "log-sum-exps that 16 bits lose"
"""Reasons (`Ask.why`) that several operators give: for cases of compilers, and for the recipe "level"."""


class Ask:
    """Cases to be tested, by `ids` (patterns, functions that return patterns, or covering arrays).
    `dtypes` is a row of `DTYPES_AT`, `since` the first level, `why` the reason for `list --why`."""

    def __init__(
        self, *ids: str | Callable[[], Iterable[str]] | Covering,
        dtypes: str = "common", since: str = "smoke", why: str = "",
    ) -> None:  # fmt: skip
        self.ids, self.dtypes, self.since, self.why = ids, dtypes, since, why

    def ids_at(self, level: str, in_all_dtypes: Callable[[str, str], bool]) -> dict[str, str]:
        """Returns the ids at a level, with reasons; {} before the level `since`.

        `in_all_dtypes(kind, pattern)` is True if the level standard has a pattern in all dtypes.
        """
        if LEVELS.index(level) < LEVELS.index(self.since):
            return {}
        dtypes_at = DTYPES_AT[self.dtypes]
        dtypes: tuple[str, ...] = getattr(dtypes_at, level)
        why = "; ".join(part for part in (self.why, f"{self.dtypes}: {dtypes_at.why}") if part)
        arrays = [item for item in self.ids if isinstance(item, Covering)]
        ids = {
            name: "; ".join(filter(None, (why, reason)))
            for array in arrays
            for name, reason in array.ids(level, () if dtypes == OWN else dtypes).items()
        }
        kind = dtypes_at.all_dtypes if level == "standard" else ""
        turns: Counter[str] = Counter()
        for pattern in self.patterns():
            pattern_dtypes = dtypes
            if dtypes == TURNS:
                operator = part(pattern, "OPERATOR")
                pattern_dtypes = (HALF[turns[operator] % len(HALF)],)
                turns[operator] += 1
            elif kind and in_all_dtypes(kind, pattern):
                pattern_dtypes = ALL
            reason = why if "{dt}" in pattern else self.why or "chosen for this check"
            ids |= dict.fromkeys((pattern.replace("{dt}", dt) for dt in pattern_dtypes), reason)
        return ids

    def patterns(self) -> Iterator[str]:
        """Yields the patterns, without those of covering arrays."""
        for item in self.ids:
            if isinstance(item, str):
                yield item
            elif not isinstance(item, Covering):
                yield from item()


def designed(ids_by_reason: Mapping[str, Iterable[str]], **options: str) -> tuple[Ask, ...]:
    """Returns the asks of patterns by the reason that they stand for, with `options` of `Ask`."""
    return tuple(Ask(*ids, why=why, **options) for why, ids in ids_by_reason.items())


def levels_up_to(level: str) -> tuple[str, ...]:
    """Returns all levels up to this one. Raises ValueError with the valid levels."""
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}; valid: {', '.join(LEVELS)}")
    return LEVELS[: LEVELS.index(level) + 1]


def postponement_reason(
    level: str, postponed_kinds: Collection[str], dtype: str, variation: bool, in_smoke: bool
) -> str:
    """Returns the reason (`POSTPONED`) why a level does not test a cell yet; "" if the level tests it.

    - `postponed_kinds`: keys of `POSTPONED`, and dtypes, that the implementation postpones.
    - `variation`: True if the check runs variations of the case.
    - `in_smoke`: True if smoke has the case.
    """
    if "kernels" in postponed_kinds and not (level == "full" and in_smoke):
        return POSTPONED["kernels"]
    if level == "smoke" and variation and "variations" in postponed_kinds:
        return POSTPONED["variations"]
    if dtype in postponed_kinds and (level == "smoke" or (level == "standard" and not in_smoke)):
        return POSTPONED["dtypes"]
    return ""
