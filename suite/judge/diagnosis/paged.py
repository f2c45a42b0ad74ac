"""Paged attention: other tables, lengths, layouts, masks and scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from attention_conformance.suite.judge.diagnosis.layers import (
    Another,
    Guess,
    made,
    of_scale,
    of_softcap,
    of_window,
)
from attention_conformance.suite.judge.diagnosis.split import of_split
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import filled, owned, slots_first
from attention_conformance.suite.spec.operators.paged import flat_slots, page_counts
from attention_conformance.suite.spec.recipes import generator


def moderate(inputs: Inputs) -> Inputs:
    """The inputs with small numbers in the slots that no sample owns. Bounds of problems that read these
    slots stay narrow."""
    rng = generator(f"{inputs.case.id}/moderate", inputs.seed)
    key, value = (rng.standard_normal(x.shape) for x in (inputs.key, inputs.value))
    return filled(inputs, ~owned(inputs), value, key)


def with_keys(inputs: Inputs, of: Callable[[np.ndarray], np.ndarray]) -> Inputs:
    """The inputs with other numbers of keys, made from those of the samples, (B,). Raises ValueError if a
    query is left without a key, or a table has too few entries."""
    queries, keys = inputs.case.option("segments")
    other = np.maximum(of(np.array(keys)), np.minimum(keys, 1)) * (np.array(keys) > 0)
    if (-(-other // inputs.letters["s"]) > inputs.letters["t"]).any():
        raise ValueError("more keys than the tables have slots")
    sizes = replace(inputs.sizes, Lk=int(other.sum()))
    options = dict(inputs.case.options, segments=(queries, tuple(other.tolist())))
    case = replace(inputs.case, sizes=sizes, options=tuple(options.items()))
    arrays = {**inputs.arrays, "key_lengths": other.astype(float)}
    return replace(inputs, case=case, arrays=arrays, sizes=sizes)


def in_turn(inputs: Inputs) -> np.ndarray:
    """Tables whose pages follow the first one."""
    table = inputs.arrays["page_table"]
    return (table[:, :1] + np.arange(table.shape[1])) % inputs.letters["p"]


def one_slot_late(inputs: Inputs) -> Inputs:
    """The inputs with every slot moved to the slot before."""
    arrays = {}
    for name in ("key", "value"):
        shape = slots_first(inputs.case, inputs.arrays[name]).shape
        moved = np.roll(flat_slots(inputs.case, inputs.arrays[name]), -1, 0).reshape(shape)
        arrays[name] = np.ascontiguousarray(slots_first(inputs.case, moved))
    return inputs.replace(**arrays)


def values_in_order(inputs: Inputs) -> Inputs:
    """The inputs with the values of pages 0, 1 and so on in the places that the tables name."""
    counts, _ = page_counts(inputs.case)
    table, value = inputs.arrays["page_table"].astype(int), inputs.value.copy()
    read = np.concatenate([row[:of] for row, of in zip(table, counts, strict=True)])
    value[read] = inputs.value[: len(read)]
    return inputs.replace(value=value)


def layout_mistaken(inputs: Inputs) -> Inputs:
    """The inputs whose pools are the same memory in the other order of slots and heads."""
    arrays = {}
    for name in ("key", "value"):
        array = inputs.arrays[name]
        arrays[name] = np.ascontiguousarray(
            array.reshape(array.swapaxes(1, 2).shape).swapaxes(1, 2)
        )
    return inputs.replace(**arrays)


def of_paged(inputs: Inputs) -> Iterator[Another]:
    """Other tables, lengths, layouts, masks and scales, and parts of the keys that are merged wrongly."""
    size, table = inputs.letters["s"], inputs.arrays["page_table"]
    guesses: tuple[Guess, ...] = (
        (lambda: inputs.replace(page_table=np.roll(table, -1, 0)),
         "A sample reads the pages of the next sample.", "paged", "`block_table[b + 1]`"),
        (lambda: inputs.replace(page_table=np.roll(table, 1, 0)),
         "A sample reads the pages of the sample before.", "paged", "`block_table[b - 1]`"),
        (lambda: inputs.replace(page_table=0 * table + table[:1]),
         "All samples read the pages of sample 0.", "paged", "`block_table[0]`"),
        (lambda: inputs.replace(page_table=in_turn(inputs)),
         "Of a sample's table only the first entry is used: later pages follow it.", "paged",
         "`block_table[b, 0] + j // page_size`"),
        (lambda: with_keys(inputs, lambda n: n - 1),
         "A sample does not see its last key.", "paged", "`j < seqused_k - 1`"),
        (lambda: with_keys(inputs, lambda n: n + 1),
         "A sample sees the slot behind its last key.", "paged", "`j <= seqused_k`"),
        (lambda: with_keys(inputs, lambda n: -(-n // size) * size),
         "The last page of a sample is attended to its end.", "paged",
         "`pages * page_size` keys for `seqused_k`"),
        (lambda: with_keys(inputs, lambda n: np.where(n >= size, n // size * size, n)),
         "A last page that is not full is not read.", "paged", "`seqused_k // page_size` pages"),
        (lambda: one_slot_late(inputs), "Every key is read one slot late.", "paged",
         "positions counted from 1"),
        (lambda: values_in_order(inputs), "Values are read without the table.", "paged",
         "one table for both pools"),
        (lambda: layout_mistaken(inputs),
         "Heads and slots of a page are exchanged without moving memory.", "layout",
         "`view` or `reshape` for `transpose`"),
        (lambda: inputs.replace(alignment="all", left=None), "The causal flag is ignored.", "mask", ""),
        *of_window(inputs),
        of_softcap(inputs),
        *of_scale(inputs),
    )  # fmt: skip
    yield from made(inputs, guesses)
    yield from of_split(inputs)
