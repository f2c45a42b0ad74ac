"""Merges of partial answers: other weights of the parts, and other log-sum-exps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attention_conformance.suite.judge.diagnosis.layers import Another
from attention_conformance.suite.spec.inputs import Inputs


def of_merge(inputs: Inputs) -> Iterator[Another]:
    """Other weights of the parts."""
    lse = inputs.arrays["partial_lse"]
    part = np.arange(len(lse)).reshape(-1, *[1] * (lse.ndim - 1))
    least = np.finfo(np.float32).min / 4
    for other, sentence, hint in (
        (np.where(np.isneginf(lse), lse, 0.0),
         "All parts weigh the same: log-sum-exps are not used.", "a mean of the outputs"),
        (np.where(np.isneginf(lse), lse, -lse), "Parts weigh exp(-lse), expected exp(lse).", "a sign"),
        (lse * np.log(2), "Parts weigh 2^lse, expected e^lse.", "`exp2` of a log-sum-exp to base e"),
        (lse / np.log(2), "Log-sum-exps are multiplied by log2(e), and e is raised to them.",
         "a log-sum-exp to base 2"),
        (2 * lse, "Parts weigh exp(2 lse), expected exp(lse).", ""),
        (lse[::-1], "Parts have the weights of the parts in reverse order.", "`1 - w`"),
        (np.where(part == 0, lse, least), "Only the first part counts.", ""),
        (np.where(part == len(lse) - 1, lse, least),
         "Only the last part counts.", "an accumulator that is overwritten"),
        (np.where(lse == lse.max(0), lse, least),
         "Only the part with the largest log-sum-exp counts.", "`argmax`"),
        (0 * lse + lse[:, :, :1], "All heads have the log-sum-exps of head 0.", "an index of heads"),
        (0 * lse + lse[:, :1], "All samples have the log-sum-exps of sample 0.", "an index of samples"),
        (np.roll(lse, 1, -1), "Rows have the log-sum-exps of other rows.", "an index of rows"),
        (np.roll(lse, 1, -2), "Heads have the log-sum-exps of other heads.", "an index of heads"),
    ):  # fmt: skip
        yield inputs.replace(partial_lse=other), sentence, "merge", hint
    for merged, text in (
        (lse.sum(0), "sum"), (lse.mean(0), "mean"), (lse.max(0), "maximum"), (lse[0], "first"),
    ):  # fmt: skip
        sentence = f"The merged log-sum-exp is the {text} of the parts' log-sum-exps."
        yield {"lse": merged}, sentence, "merge", "`lse1 + lse2` for `logaddexp(lse1, lse2)`"
