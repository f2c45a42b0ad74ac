"""Smaller cases: from a case that fails to one that asks less and fails in the same way.

Hypothesis shrinks what it drew itself; a case that comes from elsewhere is made smaller here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from suite.search.strategies import tied, well_posed
from suite.spec.case import Case, Widths
from suite.spec.sizes import Sizes


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case that is reached from `case` in steps of `smaller`, each of which fails."""
    refused: set[str] = set()
    while True:
        for candidate in smaller(case):
            if candidate.id in refused:
                continue
            if fails(candidate):
                case = candidate
                break
            refused.add(candidate.id)
        else:
            return case


def smaller(case: Case) -> Iterator[Case]:
    """Cases that ask less than `case`, each in one respect, the largest steps first: no mask, one of its
    parts, an option or a recipe less, smaller sizes. What makes no sense is left out."""
    fields = {
        **{name: getattr(case, name) for name in ("operator", "sizes", "dtype", "mask", "widths")},
        **{name: getattr(case, name) for name in ("recipe", "axis_order", "form")},
        **{option.name: case.option(option.name) for option in case.operator.options},
    }
    for step in (*_less(case), *_smaller_sizes(case)):
        try:
            candidate = Case.of(**fields | step)
        except ValueError:
            continue
        if candidate != case and well_posed(candidate):
            yield candidate


def _less(case: Case) -> Iterator[dict[str, Any]]:
    """What to ask otherwise to ask less, by the names of `Case.of`."""
    if case.mask is not None:
        yield {"mask": None, "form": "native"}
        yield from ({"mask": part} for part in case.mask.parts)
    yield from ({option.name: option.default} for option in case.operator.options)
    yield from ({name: getattr(Case, name)} for name in ("recipe", "axis_order", "form"))


def _smaller_sizes(case: Case) -> Iterator[dict[str, Any]]:
    """Smaller sizes of every axis: 1, half of it and so on to one less. What is equal stays equal: the
    sizes of keys and values, heads and the width that they split, and what is tied."""
    s, ties = (
        case.sizes,
        case.operator.tied({o.name: case.option(o.name) for o in case.operator.options}),
    )
    widths = (
        {} if case.widths is None else dict(zip("xyzo", vars(case.widths).values(), strict=True))
    )
    own = {"b": s.B, "group": s.group, "g": s.Hkv, "q": s.Lq, "k": s.Lk, "d": s.D}
    own |= {} if s.Dv == s.D else {"v": s.Dv}
    own |= {x: width for x, width in widths.items() if width not in (s.H * s.D, s.H * s.Dv)}
    for name, size in own.items():
        left = size - 1
        while left > 0:
            n = {"v": 0, **own, name: size - left}
            n |= {"h": n["g"] * n["group"], "v": n["v"] or n["d"]}
            split = {s.H * s.Dv: n["h"] * n["v"], s.H * s.D: n["h"] * n["d"]}
            letters = {letter: n[letter] for letter in "bhgqkdv"}
            letters |= {x: split.get(width, n.get(x, 0)) for x, width in widths.items()}
            letters = tied(letters, ties)
            yield {
                "sizes": Sizes(*(letters[letter] for letter in "bhgqkdv")),
                "widths": Widths(*(letters[x] for x in "xyzo")) if widths else None,
            }
            left //= 2
