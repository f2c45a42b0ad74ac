"""Shrink a failing case: a simpler mask, default options, smaller sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attention_conformance.suite.spec.case import Case, Widths
from attention_conformance.suite.spec.sizes import Sizes


def smallest_failing(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Returns the smallest failing case that is reached from `case`: each step goes to the first failing
    case in `simpler_cases`."""
    passing: set[str] = set()
    while True:
        for candidate in simpler_cases(case):
            if candidate.id in passing:
                continue
            if fails(candidate):
                case = candidate
                break
            passing.add(candidate.id)
        else:
            return case


def simpler_cases(case: Case) -> Iterator[Case]:
    """Yields valid cases that are simpler than `case` in one respect, largest steps first: without the
    mask, with one part of the mask, with the default of an option or recipe, with smaller sizes."""
    fields = {
        **{name: getattr(case, name) for name in ("operator", "sizes", "dtype", "mask", "widths")},
        **{name: getattr(case, name) for name in ("recipe", "axis_order", "form")},
        **{option.name: case.option(option.name) for option in case.operator.options},
    }
    for changed in (*_simpler_fields(case), *_smaller_sizes(case)):
        try:
            candidate = Case.of(**fields | changed)
        except ValueError:
            continue
        if candidate != case and well_posed(candidate):
            yield candidate


def _simpler_fields(case: Case) -> Iterator[dict[str, Any]]:
    """Yields a simpler mask, or the default of an option or of a field, as keywords of `Case.of`."""
    if case.mask is not None:
        yield {"mask": None, "form": "native"}
        yield from ({"mask": part} for part in case.mask.parts)
    yield from ({option.name: option.default} for option in case.operator.options)
    yield from ({name: getattr(Case, name)} for name in ("recipe", "axis_order", "form"))


def _smaller_sizes(case: Case) -> Iterator[dict[str, Any]]:
    """Yields smaller sizes of one axis, as keywords of `Case.of`. For each axis first size 1, then
    increasing sizes up to one less than its own. Tied axes stay equal. So do D and Dv, and a layer's
    width (x, y, z, o) and the width of all heads, if they are equal in `case`."""
    s = case.sizes
    ties = case.operator.all_ties({o.name: case.option(o.name) for o in case.operator.options})
    widths = (
        {} if case.widths is None else dict(zip("xyzo", vars(case.widths).values(), strict=True))
    )
    reducible = {"b": s.B, "group": s.group, "g": s.Hkv, "q": s.Lq, "k": s.Lk, "d": s.D}
    reducible |= {} if s.Dv == s.D else {"v": s.Dv}
    reducible |= {x: width for x, width in widths.items() if width not in (s.H * s.D, s.H * s.Dv)}
    for name, size in reducible.items():
        reduction = size - 1
        while reduction > 0:
            new = {"v": 0, **reducible, name: size - reduction}
            new |= {"h": new["g"] * new["group"], "v": new["v"] or new["d"]}
            heads_widths = {s.H * s.Dv: new["h"] * new["v"], s.H * s.D: new["h"] * new["d"]}
            letters = {letter: new[letter] for letter in "bhgqkdv"}
            letters |= {x: heads_widths.get(width, new.get(x, 0)) for x, width in widths.items()}
            letters = with_equal_axes(letters, ties)
            yield {
                "sizes": Sizes(*(letters[letter] for letter in "bhgqkdv")),
                "widths": Widths(*(letters[x] for x in "xyzo")) if widths else None,
            }
            reduction //= 2


def what_it_takes(case: Case, passing: Iterable[Case]) -> str:
    """Returns the properties of a failing case that at least one of the `passing` cases lacks, as text:
    "mask causal, 129 queries, 129 keys"."""
    words = _properties(case)
    lost = {word for simpler in passing for word in {*words} - {*_properties(simpler)}}
    return ", ".join(word for word in words if word in lost)


def _properties(case: Case) -> list[str]:
    """Returns the properties of a case that `simpler_cases` removes or reduces, as texts."""
    s = case.sizes
    words = [f"mask {part}" for part in (case.mask_token if case.mask else "").split("+") if part]
    options = {o.name: o for o in case.operator.options}
    words += [options[name].write(value) for name, value in case.options]
    words += [
        f"{name.replace('_', ' ')} {getattr(case, name)}"
        for name in ("recipe", "axis_order", "form")
        if getattr(case, name) != getattr(Case, name)
    ]
    counts = {
        "samples": s.B, "heads": s.H, "key heads": s.Hkv if s.Hkv != s.H else 1, "queries": s.Lq,
        "keys": s.Lk,
    }  # fmt: skip
    words += [f"{count} {name}" for name, count in counts.items() if count > 1]
    sizes = {"head size": s.D, "value size": s.Dv if s.Dv != s.D else 1}
    return [*words, *(f"{name} {size}" for name, size in sizes.items() if size > 1)]


def with_equal_axes(letters: Mapping[str, int], ties: Iterable[str]) -> dict[str, int]:
    """Returns sizes by the letters of axes, with tied axes made equal. Each of `ties` is a set of
    letters, such as "qk". They get size 1 if "1" is in the set, else the size of the letter that is first
    in `letters`. Ties with a common letter are joined."""
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
    """True if the case has no fully masked rows, or if its operator has election questions about their
    output and, if `differentiated`, about their gradients."""
    if case.mask is None or bool(case.mask.dense(case.sizes).any(-1).all()):
        return True
    has_lengths = case.operator.is_layer and case.form == "native"
    question = "padded-sample" if has_lengths else "fully-masked-row"
    questions = {question, *([f"{question}-gradient"] if differentiated else [])}
    if case.option("bias") not in (None, "none"):
        questions.add("minus-inf-row")  # for implementations that merge the mask into the bias
    return questions <= set(case.operator.questions.elections)
