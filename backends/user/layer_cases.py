"""Cases as a user's layer is asked them, and the parameters that the layer reads."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from attention_conformance.suite.spec.case import Case, Widths


def as_kind(case: Case, kind: str) -> Case:
    """A case of multi-head attention as self-attention of one head, or with gated heads, of one tensor;
    other cases unchanged. Raises ValueError."""
    if case.option("kind") in (None, kind) or kind == case.operator.name:
        return case
    s, w = case.sizes, case.widths
    assert w is not None
    heads = {"H": 1, "Hkv": 1} if kind == "self-attention" else {}
    output = s.Dv if kind == "self-attention" else w.output
    sizes, widths = replace(s, Lk=s.Lq, **heads), Widths(w.query, w.query, w.query, output)
    sized = replace(case, sizes=sizes, widths=widths)
    return sized.with_options(kind=kind, self_attention=True)


def parameter_names(case: Case) -> frozenset[str]:
    """The names of a case's parameters."""
    return frozenset(case.operator.learned(case.axes))


class ReadNames(UserDict[str, Any]):
    """A dictionary of parameters that records the names that were read."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


def biases_of(names: Iterable[str]) -> set[str]:
    """The names of projection biases."""
    return {name for name in names if name.endswith("_bias")}


def without_biases(case: Case) -> Case | None:
    """The case without projection biases; None if its operator lacks the option."""
    if "without_biases" not in {option.name for option in case.operator.options}:
        return None
    return case.with_options(without_biases=True)
