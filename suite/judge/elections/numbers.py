"""Questions about unusual numbers: the probes of NaN, subnormal values and scores beyond float16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attention_conformance.suite.judge.elections.probe import Probe, empty_row, hidden_key
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import in_pages
from attention_conformance.suite.spec.vocabulary import OPERANDS


def _with_nan_in_masked(inputs: Inputs, operand: str) -> Inputs:
    """Returns the inputs with NaN in one key or value that a mask hides from every row."""
    mask = np.ones((inputs.sizes.Lq, inputs.sizes.Lk), bool)
    mask[:, hidden_key(inputs)] = False
    array = getattr(inputs, operand).copy()
    axis = inputs.axes(operand).index("k")
    array[(slice(None),) * axis + (hidden_key(inputs),)] = np.nan
    return inputs.replace(mask_array=mask, form="dense", **{operand: array})


def _probe_of_nan_in_masked(operand: str) -> Callable[[Probe], str]:
    def probe(p: Probe) -> str:
        base = p.cross_inputs()
        inputs = _with_nan_in_masked(base, operand)
        got = p.values(inputs)
        if got is None:
            raise WrongAnswer("election", f"a NaN in a masked {operand} raised")
        if np.isnan(got).any():
            return "leaks"
        if p.matches(got, inputs.replace(**{operand: getattr(base, operand)})):
            return "blocked"
        raise WrongAnswer("election", f"a NaN in a masked {operand} makes finite rows wrong")

    return probe


def _probe_of_nan_in_masked_gradient(operand: str) -> Callable[[Probe], str]:
    def probe(p: Probe) -> str:
        inputs = _with_nan_in_masked(p.inputs(), operand)
        cotangent = p.cotangent(inputs)
        got = p.gradients(inputs, cotangent)
        if got is None:
            raise WrongAnswer(
                "election", f"a NaN in a masked {operand} raised in the backward pass"
            )
        if any(np.isnan(gradient).any() for gradient in got.values()):
            return "leaks"
        if p.matches_gradients(got, inputs, cotangent, "zeros"):
            return "blocked"
        raise WrongAnswer(
            "election", f"a NaN in a masked {operand} leaves gradients finite and makes them wrong"
        )

    return probe


def _probe_of_number_in_attended(operand: str, number: float = np.nan) -> Callable[[Probe], str]:
    """Returns the probe of a NaN or infinity (`number`) in one key or value that all rows attend."""
    name, is_number = ("a NaN", np.isnan) if np.isnan(number) else ("infinity", np.isposinf)

    def probe(p: Probe) -> str:
        base = p.inputs()
        array = getattr(base, operand).copy()
        array[:, :, hidden_key(base)] = number
        got = p.values(base.replace(**{operand: array}))
        if got is None:
            raise WrongAnswer("election", f"{name} in a {operand} raised")
        if is_number(got).all():
            return "reaches-them"
        raise WrongAnswer(
            "election",
            f"{name} in a {operand} that all rows attend is replaced by a number: "
            f"{got[~is_number(got)][:3]}",
        )

    return probe


def _probe_nan_in_bias(p: Probe) -> str:
    """Returns the answer to a NaN in the bias of one pair: of a row that the mask may leave without keys,
    and of a key that the mask may hide, so that all questions ask about the same pair. Raises
    `WrongAnswer` if another row changes, or if the NaN is replaced by a number."""
    base = p.inputs()
    s, row = base.sizes, empty_row(base)
    zero_bias = base.replace(bias=np.zeros((s.B, s.H, s.Lq, s.Lk)))
    bias = zero_bias.arrays["bias"].copy()
    bias[:, :, row, hidden_key(base)] = np.nan
    got = p.values(base.replace(bias=bias))
    if got is None:
        raise WrongAnswer("election", "a NaN in a bias raised")
    in_row = np.arange(s.Lq) == row
    if not p.matches(got, zero_bias, where=np.broadcast_to(~in_row, (s.B, s.H, s.Lq))):
        raise WrongAnswer("election", "a NaN in a bias changes other rows")
    if np.isnan(got[:, :, row]).all():
        return "reaches-the-row"
    raise WrongAnswer(
        "election", f"a NaN in a bias is replaced by a number: {got[:, :, row].ravel()[:3]}"
    )


def _probe_nan_in_query(p: Probe) -> str:
    base = p.inputs()
    query = base.query.copy()
    row = empty_row(base)
    query[:, :, row] = np.nan
    got = p.values(base.replace(query=query))
    if got is None:
        raise WrongAnswer("election", "a NaN in a query raised")
    other_rows = np.ones((base.sizes.B, base.sizes.H, base.sizes.Lq), bool)
    other_rows[:, :, row] = False
    if not p.matches(got, base, where=other_rows):
        raise WrongAnswer("election", "a NaN in a query changes other rows")
    rows = got[:, :, row]
    for name, right in (("nan", np.isnan(rows)), ("zeros", rows == 0)):
        if right.all():
            return name
    raise WrongAnswer("election", f"a NaN in a query is replaced by a number: {rows.ravel()[:3]}")


def _probe_nan_in_other_segment(p: Probe) -> str:
    inputs = p.inputs()
    if p.implementation.refuses(inputs) is not None:
        inputs = inputs.replace(alignment="causal")
    rows_with_nan, row_count = inputs.case.option("segments")[0][0], inputs.sizes.Lq
    arrays = {}
    for name in OPERANDS:
        arrays[name] = inputs.arrays[name].copy()
        arrays[name][:rows_with_nan] = np.nan
    got = p.values(inputs.replace(**arrays))
    if got is None:
        raise WrongAnswer("election", "NaN in one segment raised")
    other_rows = np.arange(row_count) >= rows_with_nan
    return "others" if np.isnan(got[other_rows]).any() else "nobody"


WITHOUT_KEYS = "packed/none/mha/{dt}/b3h4q24k17d8/seg5.7.12x5.0.12"
"""Packed attention whose second segment has no keys."""


def _probe_segment_without_keys(p: Probe) -> str:
    inputs = p.draw(WITHOUT_KEYS)
    got = p.values(inputs)
    if got is None:
        return "raises"
    packing, (queries, _) = p.operator.packing, inputs.case.option("segments")
    assert packing is not None
    rows = np.repeat(np.arange(len(queries)), queries) == 1
    if not p.matches(got[~rows], packing.choose(inputs, (0, 2))):
        raise WrongAnswer("election", "a segment without keys changes other segments")
    for name, right in (("zeros", got[rows] == 0), ("nan", np.isnan(got[rows]))):
        if right.all():
            return name
    raise WrongAnswer(
        "election", f"a segment without keys is neither zeros nor NaN: {got[rows].ravel()[:3]}"
    )


def _paged_inputs(p: Probe) -> Inputs:
    """Returns inputs with pages. Raises NotApplicable if the implementation takes none."""
    inputs = p.draw(p.operator.asks.pages[0])
    if not in_pages.pool_axes_by_name(inputs):
        raise NotApplicable("the implementation takes no pages")
    if p.implementation.refuses(inputs) is not None and inputs.case.option("alignment"):
        inputs = inputs.replace(alignment="all")
    p.require(inputs)
    return inputs


def _probe_minus_one_behind_last_page(p: Probe) -> str:
    inputs = _paged_inputs(p)
    is_read, table = in_pages.read_entries(inputs), inputs.arrays["page_table"]
    got = p.values(inputs.replace(page_table=np.where(is_read, table, -1.0)))
    if got is None:
        return "raises"
    if p.matches(got, inputs):
        return "ignored"
    raise WrongAnswer("election", "page numbers of -1 behind the last pages make rows wrong")


def _probe_nan_behind_last_key(p: Probe) -> str:
    inputs = _paged_inputs(p)
    used_slots = in_pages.owned_slots(inputs)
    unused_slots = ~used_slots & used_slots.any(1, keepdims=True)
    got = p.values(in_pages.fill_slots(inputs, unused_slots, np.nan))
    if got is None:
        raise WrongAnswer("election", "a NaN behind the last key raised")
    if np.isnan(got).any():
        return "leaks"
    if p.matches(got, inputs):
        return "blocked"
    raise WrongAnswer("election", "a NaN behind the last key makes finite rows wrong")


def _probe_subnormal_output(p: Probe) -> str:
    base = p.inputs()
    quarter = p.dtype.smallest_normal / 4
    # 35 keys, or the nearest supported number: some matrix products flush from a certain size on only.
    limits = p.implementation.declared.limits_for(p.dtype)
    sizes = limits.fitted(replace(base.sizes, Lk=35))
    key = base.key.take(np.arange(sizes.Lk) % base.sizes.Lk, axis=2)
    query = base.query.take(np.arange(sizes.Lq) % base.sizes.Lq, axis=2)
    got = p.values(base.replace(query=query, key=key, value=np.full_like(key, quarter)))
    if got is None:
        raise WrongAnswer("election", "subnormal values raised")
    # A quarter of the smallest normal number has few bits left: weights that do not sum to one
    # exactly move it. A kernel with tiles may flush in some of its products, and lose a part.
    unflushed, flushed = np.abs(got - quarter) <= quarter / 4, (got >= 0) & (got <= quarter)
    if (unflushed | flushed).all():
        return "kept" if unflushed.all() else "flushed"
    raise WrongAnswer(
        "election",
        f"values of {quarter:g} give {got[~(unflushed | flushed)][:3]}, and neither it nor a part of it",
    )


def _probe_score_overflow(p: Probe) -> str:
    base = p.inputs()
    got = p.values(base.replace(query=base.query * 256, key=base.key * 256, scale=2.0**-14))
    if got is None:
        raise WrongAnswer("election", "large float16 scores raised")
    if np.isnan(got).any():
        return "nan"
    if p.matches(got, base.replace(scale=4.0)):
        return "finite"
    raise WrongAnswer("election", f"large float16 scores give wrong numbers: {got.ravel()[:3]}")


def _probe_large_scores(p: Probe) -> str:
    assert p.operator.questions.large_scores is not None
    inputs = p.operator.questions.large_scores(p.inputs())
    got = p.values(inputs)
    if got is None:
        raise WrongAnswer("election", "large float16 scores raised")
    if np.isnan(got).any():
        return "nan"
    if p.matches(got, inputs):
        return "largest"
    raise WrongAnswer("election", f"large float16 scores give wrong numbers: {got.ravel()[:3]}")


PROBES: dict[str, Callable[[Probe], str]] = {
    "nan-in-masked-key-gradient": _probe_of_nan_in_masked_gradient("key"),
    "nan-in-masked-value-gradient": _probe_of_nan_in_masked_gradient("value"),
    "nan-in-other-segment": _probe_nan_in_other_segment,
    "nan-in-masked-key": _probe_of_nan_in_masked("key"),
    "nan-in-masked-value": _probe_of_nan_in_masked("value"),
    "nan-in-attended-key": _probe_of_number_in_attended("key"),
    "nan-in-attended-value": _probe_of_number_in_attended("value"),
    "nan-in-bias": _probe_nan_in_bias,
    "inf-in-attended-value": _probe_of_number_in_attended("value", np.inf),
    "nan-in-query": _probe_nan_in_query,
    "nan-behind-last-key": _probe_nan_behind_last_key,
    "minus-one-behind-last-page": _probe_minus_one_behind_last_page,
    "segment-without-keys": _probe_segment_without_keys,
    "subnormal-output": _probe_subnormal_output,
    "score-overflow": _probe_score_overflow,
    "large-scores": _probe_large_scores,
}
"""The probe of each question: it returns the name of the implementation's answer."""
