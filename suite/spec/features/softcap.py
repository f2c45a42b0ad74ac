"""Softcap: scores s become c tanh(s / c) before bias and mask (Gemma 2, 2024)."""

from __future__ import annotations

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features.feature import Feature, Reduction
from attention_conformance.suite.spec.operator import number


def validate(case: Case) -> None:
    softcap = case.option("softcap")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be positive, got {softcap}")


SOFTCAP = Feature(
    name="softcap",
    word="softcap",
    text="softcap",
    reduction=Reduction("cap", accumulate=4, score=1, operand=lambda cap, rows, keys: cap),
    option=number("softcap", "cap", 2.0, 0.5, 5.0, 30.0),
    group="softcap",
    validate=validate,
)
