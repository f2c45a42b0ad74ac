"""Packed attention: the symptom of wrong boundaries of segments, read by one-hot values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Reading,
    Symptom,
    one_hot_inputs,
)
from attention_conformance.suite.judge.diagnosis.weights import picture_of
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import hidden_pairs, segments
from attention_conformance.suite.spec.operators.sdpa import SDPA

CALLS = 8
"""The largest number of calls for one reading of weights."""


def boundary_symptom(tool: Instrument, inputs: Inputs) -> Symptom | None:
    """The symptom if queries see other keys than those of their segments."""
    s, calls = inputs.sizes, one_hot_inputs(inputs, CALLS)
    if not calls:
        return None
    weights = np.zeros((s.H, s.Lq, s.Lk))
    for keys, one_hots in calls:
        got = tool.output(one_hots)  # (Lq, H, Dv)
        if got is None:
            return None
        weights[..., keys] = got.swapaxes(0, 1)[..., : keys.stop - keys.start]
    if not np.isfinite(weights).all():
        return None
    want = ~hidden_pairs(inputs.case)
    reading = _reading(inputs, weights, want)
    visible, differs = reading.visible[0], reading.visible != want
    if not differs.any():
        return None
    picture = picture_of(reading, differs)
    slices = list(segments(inputs.case))
    if any((visible != visible[:1]).ravel()):
        return Symptom("Heads see different keys of a segment.", "packed", "", picture)
    lost, extra = want & ~visible[0], visible[0] & ~want
    for number, (rows, segment) in enumerate(slices):
        for verb, pairs in (("does not see", lost[rows]), ("sees", extra[rows])):
            wrong_keys = np.flatnonzero(pairs.any(0))
            if len(wrong_keys):
                inside = [int(k) for k in wrong_keys if segment.start <= k < segment.stop]
                key_text = f"key {wrong_keys[0]} of the pack, which belongs to another segment"
                if inside:
                    length = segment.stop - segment.start
                    key_text = f"key {inside[0] - segment.start} of its own {length}"
                count = sum(bool((lost | extra)[r].any()) for r, _ in slices)
                some = f" ({count} of {len(slices)} segments are wrong)" if len(slices) > 1 else ""
                hint = "`<=` for `<` at the end of a segment, `cu_seqlens` off by one"
                if inside and verb == "sees":
                    key_text, hint = f"{key_text} too early", OF_SEGMENT
                elif inside and inputs.case.option("alignment") != "all":
                    hint = f"{hint}; {OF_SEGMENT}"
                text = f"Segment {number} of {len(slices)} {verb} {key_text}{some}."
                return Symptom(text, "packed", hint, picture, key=f"{verb}: {hint}")
    return None


OF_SEGMENT = "a causal mask that does not count from the first row and key of each segment"


def _reading(inputs: Inputs, weights: np.ndarray, want: np.ndarray) -> Reading:
    """The weights (H, Lq, Lk) as a reading of plain attention whose mask is `want` (Lq, Lk)."""
    s = replace(inputs.sizes, B=1)
    case = Case(SDPA, s, inputs.dtype)
    arrays = {"query": np.zeros((1, s.H, s.Lq, s.D)), "key": np.zeros((1, s.Hkv, s.Lk, s.D)),
              "value": np.zeros((1, s.Hkv, s.Lk, s.Dv))}  # fmt: skip
    plain = Inputs(case, arrays, s, mask_array=want)
    return Reading(plain, weights[None], want[None, None] * 1.0, np.zeros((1, 1, s.Lq, s.Lk)))
