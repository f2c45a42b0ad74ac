"""The roundings inside an implementation, and symptoms of its softmax and its sums.

A change of an operand below half an ulp of a narrower format changes no bit of the answer if the operand
is rounded to that format. Weights and outputs that are rounded to a format are numbers of the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Symptom,
    softmax,
)
from attention_conformance.suite.judge.tolerance import grade
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

NARROW: Mapping[str, tuple[tuple[str, int], ...]] = {
    "f64": (("bfloat16", 8), ("TF32 or float16", 11), ("float32", 24)),
    "f32": (("bfloat16", 8), ("TF32 or float16", 11)),
}
"""The narrower formats of a dtype: their names and significand bits."""

ADDED = {"bf16": 512, "f16": 4096}
"""The number of equal weights whose running sum stops growing in a 16-bit format: half of the sum has an
ulp of twice the weight."""

OFFSET = 512.0
"""The size of scores whose exponential overflows and underflows in float32."""

MOSTLY = 0.75
"""The share of rows that must agree with rounded scores: a few rows may round ties differently."""

OPERAND_IGNORED = "operand ignored"
"""The key of the symptom of an operand without influence."""


def precision_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields the symptoms of roundings to formats narrower than the dtype of a plain case. Sets
    `tool.unit`."""
    declared = tool.implementation.numerics_for(case.dtype)
    formats_read = {} if declared in ("working", "single") else rounded_formats(tool, case)
    if "ignored" in formats_read:
        text = f"The {formats_read['ignored']} has no influence on the output."
        yield Symptom(text, "scores", "an argument that is not used", key=OPERAND_IGNORED)
    dtype = case.dtype.long_name
    formats = {name: form for name, form in formats_read.items() if name != "ignored"}
    sum_symptoms_found = list(sum_symptoms(tool, case)) if declared != "working" else []
    yield from sum_symptoms_found
    score_symptom = next(score_symptoms(tool, case), None)
    if score_symptom is not None:
        yield score_symptom
        return
    # Rounded weights hide small changes of query and key.
    hides_operands = "weights" in formats and "value" not in formats
    operands = [name for name in OPERANDS if name in formats and not hides_operands]
    if operands:
        form, scores = formats[operands[0]], operands == ["query", "key"]
        yield Symptom(
            f"{_joined_names(operands)}{', or their scores,' if scores else ''} "
            f"{'is' if len(operands) == 1 else 'are'} rounded to {form} inside, in a call of {dtype}.",
            "numerics", "`.to(bfloat16)`, `allow_tf32`, a matrix product of low precision",
            key=f"{_joined_names(operands)} rounded",
        )  # fmt: skip
    for name, place in (
        ("output", "before the output is returned"),
        ("weights", "before the product with the values"),
    ):
        if (
            name in formats
            and not sum_symptoms_found
            and not (name == "weights" and "output" in formats)
        ):
            form = formats[name]
            advice = "; if float64 is not meant, --claim dtypes=f32,bf16,f16"
            hint = f"a cast of the {name}{advice if case.dtype.name == 'f64' else ''}"
            subject = "Results" if name == "output" else "Weights"
            sentence = f"{subject} are rounded to {form} {place}, in a call of {dtype}."
            yield Symptom(sentence, "numerics", hint, key=f"{name} rounded")
    if formats:
        bits = min(dict(NARROW[case.dtype.name])[form] for form in formats.values())
        tool.unit = max(tool.unit, 2.0**-bits)
    if case.dtype.name == "f32":
        yield from overflow_symptoms(tool, case)


def score_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields a symptom if most rows of weights follow from scores, queries or keys that are rounded to a
    narrower format, or to 8 bits. Sets `tool.unit`."""
    if case.dtype.name not in NARROW or tool.implementation.unsupported(case) is not None:
        return
    reading = tool.read_weights(tool.draw(case))
    if reading is None or reading.share_of_rows(reading.want) > 0.5:
        return
    q, k = reading.inputs.query, np.repeat(reading.inputs.key, reading.inputs.sizes.group, axis=1)
    s, dtype = reading.inputs.effective_scale, case.dtype.long_name
    for name, bits in (("bfloat16", 8), ("float16", 11)):
        for scores in (_round(reading.scores, bits), s * _round(reading.scores / s, bits)):
            if reading.share_of_rows(softmax(scores, reading.visible)) > MOSTLY:
                tool.unit = max(tool.unit, 2.0**-bits)
                yield Symptom(
                    f"Scores are rounded to {name} inside, in a call of {dtype}.", "numerics",
                    "`.half()`, `autocast`, a matrix product of low precision", key="scores rounded",
                )  # fmt: skip
                return
    for subject, change in (("Keys", "k"), ("Queries", "q"), ("Queries and keys", "qk")):
        for part, axes in (("tensor", None), ("head", (2, 3)), ("row", (3,))):
            query = _round_to_8_bits(q, axes) if "q" in change else q
            key = _round_to_8_bits(k, axes) if "k" in change else k
            scores = reading.scores + s * (query @ key.swapaxes(-1, -2) - q @ k.swapaxes(-1, -2))
            if reading.share_of_rows(softmax(scores, reading.visible)) > MOSTLY:
                tool.unit = max(tool.unit, 2.0**-8)
                yield Symptom(
                    f"{subject} are rounded to 8 bits inside: steps of the largest element of a {part} "
                    "/ 127.", "numerics", "quantised operands, int8",
                )  # fmt: skip
                return


def _round_to_8_bits(x: np.ndarray, axes: tuple[int, ...] | None) -> np.ndarray:
    """Returns an array rounded to multiples of a step: 1/127 of its largest element over `axes` (None:
    over all axes)."""
    step = np.abs(x).max(axes, keepdims=True) / 127
    return np.asarray(np.rint(x / step) * step)


def output_numerics(tool: Instrument, case: Case) -> str:
    """Returns the narrowest numerics class whose bound the output for unit normals satisfies; "none" if
    no class fits, "" without an output."""
    inputs = tool.draw(case, 1.0)
    got, oracle = tool.output(inputs), tool.oracle(inputs)
    if got is None or oracle is None or inputs.has_empty_rows:
        return ""
    right = np.asarray(oracle.expected["output"].value, float)
    return grade(got - right, lambda name: oracle.in_class(name).expected["output"].error)


def rounded_formats(tool: Instrument, case: Case) -> dict[str, str]:
    """Returns the narrower formats to which operands, "weights" and "output" of a plain case are rounded,
    by name. {} if none is rounded. If an operand has no influence: {"ignored": its name}."""
    formats = NARROW.get(case.dtype.name, ())
    if not formats or tool.implementation.unsupported(case) is not None:
        return {}
    base = tool.draw(case)
    rounded = base.replace(**{n: _round(base.arrays[n], 8) for n in OPERANDS})
    output, format_of = tool.output(rounded), {}
    if output is None or not np.isfinite(output).all():
        return {}
    for name in OPERANDS:
        if _output_is_unchanged(tool, rounded, name, 2, output):
            return {"ignored": name}
        unchanged = (
            f for f, bits in formats if _output_is_unchanged(tool, rounded, name, bits + 2, output)
        )
        format_of[name] = next(unchanged, "")
    full, reading = tool.output(base), tool.read_weights(base)
    for name, values in (("output", full), ("weights", None if reading is None else reading.got)):
        if values is not None:
            equal = (f for f, bits in formats if np.array_equal(_round(values, bits), values))
            format_of[name] = next(equal, "")
    return {name: form for name, form in format_of.items() if form}


def _output_is_unchanged(
    tool: Instrument, inputs: Inputs, name: str, bits: int, before: np.ndarray
) -> bool:
    """True if the output is still `before` after two of three elements of the operand `name` are
    multiplied by 1 + 2^-bits."""
    values = inputs.arrays[name]
    grows = np.indices(values.shape).sum(0) % 3 > 0  # never shrinks: a format may truncate
    after = tool.output(inputs.replace(**{name: values * (1 + grows * 2.0**-bits)}))
    return after is not None and np.array_equal(after, before)


def _round(values: np.ndarray, bits: int) -> np.ndarray:
    """Returns the values rounded to a significand of `bits` bits, in float64."""
    form = DType("", "", bits, -1022, 1023, "float64")
    return round_to(np.asarray(values, np.float64), form)


def sum_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields a symptom if sums over keys run in 16 bits. With equal weights and values of 1 the output
    should be 1. It is 0.5 if the sum of values stops growing, and 2 if the sum of weights does. Sets
    `tool.unit`."""
    for name, keys in ADDED.items():
        if case.dtype.is_half and case.dtype.name != name:
            continue
        long_case = replace(case, sizes=replace(case.sizes, B=1, Lq=1, Lk=keys))
        if tool.implementation.unsupported(long_case) is not None:
            continue
        inputs = tool.draw(long_case)
        ones = inputs.replace(query=np.zeros_like(inputs.query), value=np.ones_like(inputs.value))
        few = tool.output(ones.select("k", slice(0, 8)))
        if few is None or not (np.abs(few - 1) < 0.25).all():
            continue  # the sums of a few weights are wrong, too
        got = tool.output(ones)
        if got is None or not np.isfinite(got).all():
            continue
        if min(abs(got.flat[0] - x) / x for x in (0.5, 2.0)) < 0.25:
            tool.unit = max(tool.unit, DTYPES[name].unit_roundoff)
            yield Symptom(
                f"Sums over keys run in {DTYPES[name].long_name}: {keys} equal weights of the "
                "value 1 add up to "
                f"{got.flat[0]:.3g}.", "numerics",
                "accumulate in float32: `acc = zeros(..., dtype=float32)`", key="sums in 16 bits",
            )  # fmt: skip
            return


def overflow_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields a symptom if large scores overflow because the maximum of their row is not subtracted."""
    if tool.implementation.unsupported(case) is not None:
        return
    inputs = tool.draw(case)
    for signs, sentence in (
        (1.0, f"The maximum is not subtracted before the exponential: scores of {OFFSET:g} overflow."),
        ((-1.0) ** np.arange(inputs.sizes.Lq),
         "The maximum that is subtracted is not that of the row: rows with "
         f"scores of {OFFSET:g} and -{OFFSET:g} disturb each other."),
    ):  # fmt: skip
        query, key = inputs.query.copy(), inputs.key.copy()
        query[..., 0] = 16.0 * signs
        key[..., 0] = 2 * OFFSET / 32 * round(1 / inputs.effective_scale)
        got = tool.output(inputs.replace(query=query, key=key))
        if got is not None and not np.isfinite(got).all():
            yield Symptom(
                sentence, "softmax", "`exp(s - s.max(-1))`; a running maximum in loops over tiles"
            )
            return


def _joined_names(names: list[str]) -> str:
    """Returns names as the beginning of a sentence: "Query, key and value"."""
    text = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return text[0].upper() + text[1:]
