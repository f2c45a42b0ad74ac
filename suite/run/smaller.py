"""Shrink a failing case: a simpler mask, default options, smaller sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attention_conformance.suite.spec.case import Case, Widths
from attention_conformance.suite.spec.sizes import Sizes


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case that `smaller` reaches from `case` in steps that all fail."""
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
    """Valid cases that are simpler than `case` in one respect, largest steps first: without the mask,
    with one part of the mask, with the default of an option or recipe, with smaller sizes."""
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
    """Simpler masks, options and recipes, as keywords of `Case.of`."""
    if case.mask is not None:
        yield {"mask": None, "form": "native"}
        yield from ({"mask": part} for part in case.mask.parts)
    yield from ({option.name: option.default} for option in case.operator.options)
    yield from ({name: getattr(Case, name)} for name in ("recipe", "axis_order", "form"))


def _smaller_sizes(case: Case) -> Iterator[dict[str, Any]]:
    """Smaller sizes of every axis: 1, then steps that halve, up to one less. These stay equal: tied axes,
    D and Dv, and a width that the heads split."""
    s, ties = (
        case.sizes,
        case.operator.all_ties({o.name: case.option(o.name) for o in case.operator.options}),
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


def tied(letters: Mapping[str, int], ties: Iterable[str]) -> dict[str, int]:
    """The sizes of axes, with tied axes made equal: to 1, or to the first tied axis."""
    groups: list[set[str]] = []
    for tie in ties:
        group = set(tie).union(*(g for g in groups if g & set(tie)))
        groups = [g for g in groups if not g & group] + [group]
    sizes = dict(letters)
    for group in groups:
        first = next(letter for letter in letters if letter in group)
        sizes |= dict.fromkeys(group - {"1"}, 1 if "1" in group else letters[first])
    return sizes


def well_posed(case: Case, differentiated: bool = False) -> bool:
    """True if the operator's elections decide the output of the case's fully masked rows (if
    `differentiated` also their gradients), or if there are no such rows."""
    if case.mask is None or bool(case.mask.dense(case.sizes).any(-1).all()):
        return True
    by_lengths = case.operator.is_layer and case.form == "native"
    question = "padded-sample" if by_lengths else "fully-masked-row"
    questions = {question, *([f"{question}-gradient"] if differentiated else [])}
    if case.option("bias") not in (None, "none"):
        questions.add("minus-inf-row")  # for implementations that merge the mask into the bias
    return questions <= set(case.operator.questions.elections)
