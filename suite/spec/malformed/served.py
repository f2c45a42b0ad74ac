"""Malformed problems of packed sequences, pages and caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.malformed.problem import Contained, Spoil, changed, malformed
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.operators.cached import CACHED
from attention_conformance.suite.spec.operators.in_pages import (
    TABLE,
    fill_slots,
    pool_axes_by_name,
    read_entries,
)
from attention_conformance.suite.spec.operators.packed import PACKED
from attention_conformance.suite.spec.operators.paged import PAGED
from attention_conformance.suite.spec.operators.paged_write import PAGED_WRITE
from attention_conformance.suite.spec.operators.steps import Action, Chunk, Crop, Pick, Reset


def _lengths(*added: int) -> Spoil:
    return changed(key_lengths=lambda x: x.arrays["key_lengths"] + np.array(added))


PACKS = (
    *malformed(PACKED, {
        "values-missing": ("24 keys with 23 values", changed(value=lambda x: x.value[:-1])),
    }),
    *malformed(PACKED, {
        "lengths-beyond-keys": ("lengths of segments that add up to 27 for 24 keys", _lengths(0, 0, 3)),
        "lengths-short-of-keys": ("lengths of segments that add up to 21 for 24 keys",
            _lengths(0, 0, -3)),
        "length-negative": ("a segment of -2 keys among those that add up to 24", _lengths(-7, 7, 0)),
    }, "length-arrays"),
)  # fmt: skip


def _options(**options: Any) -> Spoil:
    """Returns the change to these options, without a check that a case can have them."""

    def spoil(x: Inputs) -> Inputs:
        case = object.__new__(Case)  # unchecked
        case_fields = {field.name: getattr(x.case, field.name) for field in fields(Case)}
        vars(case).update(case_fields, options=tuple({**dict(x.case.options), **options}.items()))
        return replace(x, case=case)

    return spoil


def _sample_1(**options: Any) -> Contained:
    """An answer is right, too, if sample 1 has the answer with these options, and sample 0 does not
    depend on the tokens of other samples."""

    def contained(x: Inputs, spoilt: Inputs) -> Iterable[tuple[Inputs, np.ndarray]]:
        is_first = np.arange(x.sizes.B)[:, None, None, None] == 0
        far_tokens = {name: np.where(is_first, x.arrays[name], 50.0) for name in ("key", "value")}
        return (_options(**options)(x), ~is_first), (spoilt.replace(**far_tokens), is_first)

    return contained


def _as_options(**options: Any) -> Contained:
    """An answer is right, too, if it is the answer with these options."""
    return lambda x, spoilt: ((_options(**options)(x), np.ones((1, 1, 1, 1), bool)),)


def _script(action: Action) -> tuple[Action, ...]:
    return Chunk(5), action, Chunk(1), Chunk(3)


CACHES = (
    *malformed(CACHED, {
        "values-missing": ("9 keys with 8 values", changed(value=lambda x: x.value[:, :, :8])),
        "key-value-heads-differ": ("2 key heads with 1 value head",
            changed(value=lambda x: x.value[:, :1])),
        "query-key-size-differ": ("queries of size 8 with keys of size 6",
            changed(key=lambda x: x.key[..., :6])),
    }),
    *malformed(CACHED, {
        "rollback-beyond-length": ("a rollback of 7 tokens from a cache of 5",
            _options(script=_script(Crop(7)))),
        "rollback-negative": ("a rollback of -2 tokens", _options(script=_script(Crop(-2)))),
    }, "rollback"),
    *malformed(CACHED, {
        "capacity-zero": ("a cache of 0 slots", _options(capacity=0), _as_options(capacity=None)),
        "capacity-negative": ("a cache of -3 slots", _options(capacity=-3), _as_options(capacity=None)),
    }),
    *malformed(CACHED, {
        "history-beyond-batch": ("sample 0 goes on with the history of sample 2 in a batch of 2",
            _options(script=_script(Pick((2, 1)))), _sample_1(script=_script(Pick((1, 1))))),
        "history-negative": ("sample 0 goes on with the history of sample -1",
            _options(script=_script(Pick((-1, 1)))), _sample_1(script=_script(Pick((1, 1))))),
    }, "reorder"),
    *malformed(CACHED, {
        "reset-beyond-batch": ("a reset of sample 2 in a batch of 2",
            _options(script=_script(Reset((2,)))), _as_options()),
    }, "reset", "subsets"),
    *malformed(CACHED, {
        "rollback-beyond-batch": ("a rollback of sample 2 in a batch of 2",
            _options(script=_script(Crop(2, (2,)))), _as_options()),
    }, "rollback", "subsets"),
    *malformed(CACHED, {
        "padding-negative": ("left padding of -1 tokens",
            _options(padding=(-1, 0)), _as_options(padding=(0, 0))),
        "padding-beyond-length": ("left padding of 20 tokens of a sample with 9",
            _options(padding=(20, 0)), _sample_1(padding=(1, 0))),
    }, "left-padding"),
)  # fmt: skip


def _sample_without_last_page(x: Inputs) -> int:
    """Returns the first sample that does not read the last page of the pool, which NumPy reads as page
    -1."""
    return int(np.argmax((x.arrays["page_table"] != x.letters["p"] - 1).all(1)))


def _last_page(number: Callable[[Inputs], float]) -> Spoil:
    """Returns the change of a sample's last page to the page `number(inputs)`."""

    def spoil(x: Inputs) -> Inputs:
        table, sample = x.arrays["page_table"].copy(), _sample_without_last_page(x)
        table[sample, read_entries(x)[sample].sum() - 1] = number(x)
        return x.replace(page_table=table)

    return spoil


def _entry(name: str, index: int, number: Callable[[Inputs], float]) -> Spoil:
    """Returns the change of entry `index` of the array `name` (n,) to `number(inputs)`."""

    def spoil(x: Inputs) -> Inputs:
        array = x.arrays[name].copy()
        array[index] = number(x)
        return x.replace(**{name: array})

    return spoil


def _small_pool(x: Inputs) -> Inputs:
    """Returns the inputs with one slot less per page in their last pool."""
    name, pool_axes = list(pool_axes_by_name(x).items())[-1]
    array = x.arrays[name]
    return x.replace(**{name: array.take(range(x.letters["s"] - 1), pool_axes.index("s"))})


def _rows_of(x: Inputs, samples: np.ndarray) -> np.ndarray:
    """Returns the rows of some `samples`, boolean (B,), as a boolean that broadcasts to the output."""
    axes = x.operator.outputs(x.case)["output"]
    rows = samples if "b" in axes else np.repeat(samples, x.case.option("segments")[0])
    return np.asarray(rows.reshape(-1, *[1] * (len(axes) - 1)))


def _by_sample(x: Inputs, spoilt: Inputs) -> Iterable[tuple[Inputs, np.ndarray]]:
    """An answer is right, too, if unspoilt samples have the rows of the well-formed problem, and the rows
    of a spoilt sample do not depend on pages that its table does not name."""
    names = [name for name in ("query_lengths", *TABLE) if name in x.arrays]
    differences = [(x.arrays[n] != spoilt.arrays[n]).reshape(x.sizes.B, -1).any(1) for n in names]
    samples, pages = np.any(differences, 0), np.zeros(x.letters["p"], bool)
    named_pages = spoilt.arrays["page_table"][samples[:, None] & read_entries(spoilt)].astype(int)
    pages[named_pages[(named_pages >= 0) & (named_pages < len(pages))]] = True
    unnamed_slots = np.repeat(~pages[:, None], x.letters["s"], 1)
    rows = _rows_of(x, samples)
    return (x, ~rows), (fill_slots(spoilt, unnamed_slots, 50.0, 0.0), rows)


PAGES = (
    *(
        case
        for operator in OPERATORS.values()
        if operator.asks.pages
        for case in (
            *malformed(operator, {
                "pages-of-two-sizes": ("two pools, in which pages have other sizes", _small_pool),
                "samples-without-table": ("lengths of all samples with a page table of one sample less",
                    changed(page_table=lambda x: x.arrays["page_table"][:-1])),
                "page-beyond-pool": ("page P in a table of P pages",
                    _last_page(lambda x: x.letters["p"]), _by_sample),
                "page-negative": ("page -1 among those of a sample",
                    _last_page(lambda x: -1), _by_sample),
            }),
            *malformed(operator, {
                "keys-beyond-table": ("a sample with a key more than its row of the table has slots",
                    _entry("key_lengths", 1, lambda x: x.letters["t"] * x.letters["s"] + 1), _by_sample),
                "keys-negative": ("a sample of -2 keys",
                    _entry("key_lengths", 1, lambda x: -2), _by_sample),
            }, "length-arrays"),
        )
    ),
    *malformed(PAGED, {
        "queries-missing": ("lengths that add up to 12 for 9 queries",
            _entry("query_lengths", 2, lambda x: 8), _by_sample),
        "offsets-fall": ("cumulative lengths of queries of 0, 5, 4 and 9",
            changed(query_lengths=lambda x: np.array([5.0, -1.0, 5.0]))),
    }, "length-arrays"),
)  # fmt: skip


def _other_slots(x: Inputs, spoilt: Inputs) -> Iterable[tuple[Inputs, np.ndarray]]:
    """An answer is right, too, if it differs from that of the well-formed problem only in the slot of the
    spoilt token."""
    slot = x.arrays["slot_mapping"][x.arrays["slot_mapping"] != spoilt.arrays["slot_mapping"]]
    other_slots = np.arange(x.letters["p"] * x.letters["s"]) != slot
    return ((x, other_slots.reshape(-1, x.letters["s"], 1, 1)),)


WRITES = malformed(PAGED_WRITE, {
    "slots-missing": ("8 slots for 9 tokens",
        changed(slot_mapping=lambda x: x.arrays["slot_mapping"][:8])),
    "slot-beyond-pool": ("slot P S in pools of P pages of S slots",
        _entry("slot_mapping", 1, lambda x: x.letters["p"] * x.letters["s"]), _other_slots),
})  # fmt: skip
