"""Codes and latents in pages: other tables, and arrays that are read without the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attention_conformance.suite.judge.diagnosis.layers import Another
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import flat, gathered, in_order, is_pooled

NAMES = {"codes": "Codes", "scale": "Scales", "rope": "Rotary keys", "latent": "Latents"}
"""What arrays are called, by the end of their names."""


def of_pages(inputs: Inputs) -> Iterator[Another]:
    """Tables of other samples and pages, and some arrays in the order of the pool; nothing without
    pages."""
    table = inputs.arrays.get("page_table")
    if table is None:
        return
    for other, what, hint in (
        (in_order(table), "Pages are taken in the order of the pool.", "`pool[: pages]`"),
        (np.roll(table, -1, 0), "The pages are those of the next sample.", "`page_table[b + 1]`"),
        (np.roll(table, 1, 0), "The pages are those of the sample before.", "`page_table[b - 1]`"),
        (np.roll(table, 1, 1), "Tokens lie in the page before theirs.", "`position // size - 1`"),
        (np.roll(table, -1, 1), "Tokens lie in the page after theirs.", "`position // size + 1`"),
    ):
        yield inputs.replace(page_table=other), what, "paged", hint
    if inputs.case.option("writes"):
        return
    counts = inputs.arrays["key_lengths"]
    for length, text, hint in (
        (counts[:1], "All samples have as many keys as sample 0.", "`key_lengths[0]`"),
        (counts.max(), "All samples have as many keys as the longest.", "`key_lengths.max()`"),
    ):
        yield inputs.replace(key_lengths=0 * counts + length), text, "paged", hint
    right, wrong = gathered(inputs), gathered(inputs.replace(page_table=in_order(table)))
    axes = flat(inputs.case).axes
    for end, what in NAMES.items():
        names = [n for n in right.arrays if n.endswith(end) and is_pooled(axes.get(n, ""))]
        if names:
            arrays = {**right.arrays, **{name: wrong.arrays[name] for name in names}}
            text = f"{what} are taken in the order of the pool, and not by the table."
            yield replace(right, arrays=arrays), text, "paged", "`x[position]` for `x[page_table]`"
