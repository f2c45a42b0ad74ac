"""Changes that spoil a well-formed problem, and what else is a right answer to the spoilt problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.malformed.problem import Contained, Spoil
from attention_conformance.suite.spec.operators.in_pages import (
    TABLE,
    fill_slots,
    pool_axes_by_name,
    read_entries,
)
from attention_conformance.suite.spec.operators.steps import Action, Chunk


def changed(**changes: Any) -> Spoil:
    """Returns the change to these arrays, masks or options (see `Inputs.replace`). A value that is a
    function is called with the well-formed problem."""
    return lambda x: x.replace(**{name: _value(x, change) for name, change in changes.items()})


def _value(x: Inputs, change: Any) -> Any:
    return change(x) if callable(change) else change


def indexed(**indices: Any) -> Spoil:
    """Returns the change of each array to its elements at an index."""
    return lambda x: x.replace(**{name: x.arrays[name][index] for name, index in indices.items()})


def added(**terms: Any) -> Spoil:
    """Returns the change that adds numbers to each array."""
    return lambda x: x.replace(**{n: x.arrays[n] + np.array(term) for n, term in terms.items()})


def entry(
    name: str, index: int | Callable[[Inputs], Any], number: float | Callable[[Inputs], float]
) -> Spoil:
    """Returns the change of one element of the array `name`. An index or a number that is a function is
    called with the well-formed problem."""

    def spoil(x: Inputs) -> Inputs:
        array = x.arrays[name].copy()
        array[_value(x, index)] = _value(x, number)
        return x.replace(**{name: array})

    return spoil


def mask(form: str, *shape: int) -> Spoil:
    """Returns the change to a mask array of this shape and form, in which every pair attends."""
    return changed(mask_array=np.ones(shape, bool), form=form)


def with_heads_repeated(x: Inputs) -> Inputs:
    """Returns a problem that has half as many key heads as query heads, with each key head repeated."""
    return x.replace(key=np.repeat(x.key, 2, 1), value=np.repeat(x.value, 2, 1))


def unchecked(**options: Any) -> Spoil:
    """Returns the change to these options, without a check that a case can have them."""

    def spoil(x: Inputs) -> Inputs:
        case = object.__new__(Case)  # unchecked
        case_fields = {field.name: getattr(x.case, field.name) for field in fields(Case)}
        vars(case).update(case_fields, options=tuple({**dict(x.case.options), **options}.items()))
        return replace(x, case=case)

    return spoil


def script(action: Action) -> Spoil:
    """Returns the change to a script with this action, which is not checked, after 5 tokens."""
    return unchecked(script=(Chunk(5), action, Chunk(1), Chunk(3)))


def small_pool(x: Inputs) -> Inputs:
    """Returns the inputs with one slot less per page in their last pool."""
    name, pool_axes = list(pool_axes_by_name(x).items())[-1]
    array = x.arrays[name]
    return x.replace(**{name: array.take(range(x.letters["s"] - 1), pool_axes.index("s"))})


def last_page(x: Inputs) -> tuple[int, int]:
    """Returns the index in the page table of the last page of a sample: the first sample that does not
    read the last page of the pool, which NumPy reads as page -1."""
    sample = int(np.argmax((x.arrays["page_table"] != x.letters["p"] - 1).all(1)))
    return sample, int(read_entries(x)[sample].sum()) - 1


def same_as(change: Spoil = lambda x: x) -> Contained:
    """An answer is right, too, if it is the answer to the well-formed problem after `change`."""
    return lambda x, spoilt: ((change(x), np.ones((1, 1, 1, 1), bool)),)


def sample_1_as(change: Spoil) -> Contained:
    """An answer is right, too, if sample 1 has the answer to the well-formed problem after `change`, and
    sample 0 does not depend on the tokens of other samples."""

    def contained(x: Inputs, spoilt: Inputs) -> Iterable[tuple[Inputs, np.ndarray]]:
        is_first = np.arange(x.sizes.B)[:, None, None, None] == 0
        far_tokens = {name: np.where(is_first, x.arrays[name], 50.0) for name in ("key", "value")}
        return (change(x), ~is_first), (spoilt.replace(**far_tokens), is_first)

    return contained


def by_sample(x: Inputs, spoilt: Inputs) -> Iterable[tuple[Inputs, np.ndarray]]:
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


def _rows_of(x: Inputs, samples: np.ndarray) -> np.ndarray:
    """Returns the rows of some `samples`, boolean (B,), as a boolean that broadcasts to the output."""
    axes = x.operator.outputs(x.case)["output"]
    rows = samples if "b" in axes else np.repeat(samples, x.case.option("segments")[0])
    return np.asarray(rows.reshape(-1, *[1] * (len(axes) - 1)))


def other_slots(x: Inputs, spoilt: Inputs) -> Iterable[tuple[Inputs, np.ndarray]]:
    """An answer is right, too, if it differs from the answer to the well-formed problem only in the slot
    of the spoilt token."""
    slot = x.arrays["slot_mapping"][x.arrays["slot_mapping"] != spoilt.arrays["slot_mapping"]]
    is_other = np.arange(x.letters["p"] * x.letters["s"]) != slot
    return ((x, is_other.reshape(-1, x.letters["s"], 1, 1)),)
