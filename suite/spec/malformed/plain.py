"""Malformed problems of plain attention, layers and rotations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.malformed.problem import Spoil, changed, malformed
from attention_conformance.suite.spec.masks import Window
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD
from attention_conformance.suite.spec.operators.rotary import ROTARY
from attention_conformance.suite.spec.operators.sdpa import SDPA


def _mha(x: Inputs) -> Inputs:
    """Returns the well-formed problem, which has half as many key heads as query heads, with each key
    head repeated."""
    return x.replace(key=np.repeat(x.key, 2, 1), value=np.repeat(x.value, 2, 1))


def _in_mha(spoil: Spoil) -> Spoil:
    """Returns the change `spoil` after `_mha`."""
    return lambda x: spoil(_mha(x))


def _mask(form: str, *shape: int) -> Spoil:
    return lambda x: x.replace(mask_array=np.ones(shape, bool), form=form)


def _dense_mask(*shape: int) -> Spoil:
    return _in_mha(_mask("dense", *shape))


def _rates(well_formed: Spoil) -> dict[str, tuple[str, Spoil]]:
    """Returns rows of `malformed` with dropout rates outside 0 to 1. `well_formed` is applied first."""
    return {
        name: (f"a rate of dropout of {rate:g}", partial(_with_dropout, well_formed, rate))
        for name, rate in (("rate-above-one", 2.0), ("rate-negative", -0.5))
    }


def _with_dropout(well_formed: Spoil, rate: float, x: Inputs) -> Inputs:
    return well_formed(x).replace(rate=rate, training=True)


ATTENTION = (
    *malformed(SDPA, {
        "heads-do-not-divide": ("4 query heads with 3 key/value heads",
            _in_mha(changed(key=lambda x: x.key[:, :3], value=lambda x: x.value[:, :3]))),
        "more-key-heads-than-query-heads": ("2 query heads with 4 key/value heads",
            _in_mha(changed(query=lambda x: x.query[:, :2]))),
    }, "grouped-heads"),
    *malformed(SDPA, {
        "key-value-heads-differ": ("4 key heads with 2 value heads", changed(key=lambda x: _mha(x).key)),
        "query-key-size-differ": ("queries of size 8 with keys of size 6",
            _in_mha(changed(key=lambda x: x.key[..., :6]))),
        "key-value-lengths-differ": ("7 keys with 6 values",
            _in_mha(changed(value=lambda x: x.value[:, :, :6]))),
        "batch-differs": ("a batch of 2 queries with a batch of 3 keys and values",
            _in_mha(changed(key=lambda x: x.key[[0, 1, 0]], value=lambda x: x.value[[0, 1, 0]]))),
    }),
    *malformed(SDPA, {
        "mask-too-few-keys": ("a mask (5, 6) for 7 keys", _dense_mask(5, 6)),
        "mask-too-many-queries": ("a mask (6, 7) for 5 queries", _dense_mask(6, 7)),
        "mask-wrong-batch": ("a mask (3, 1, 5, 7) for a batch of 2", _dense_mask(3, 1, 5, 7)),
        "mask-wrong-heads": ("a mask (2, 3, 5, 7) for 4 heads", _dense_mask(2, 3, 5, 7)),
        "mask-rank-5": ("a mask of rank 5", _dense_mask(2, 2, 4, 5, 7)),
    }, "mask", "mask-array"),
    *malformed(SDPA, {
        "bias-too-few-keys": ("a bias (2, 4, 5, 6) for 7 keys",
            _in_mha(changed(bias=lambda x: np.zeros((2, 4, 5, 6))))),
    }, "bias", "mask-array"),
    *malformed(SDPA, {
        "negative-window": ("a native sliding window of -2 to the left",
            lambda x: _mha(x).replace(mask=Window(-2, 0))),
    }, "native-window"),
    *malformed(SDPA, {
        "key-rank-3": ("queries of rank 4 with keys of rank 3", _in_mha(changed(key=lambda x: x.key[0]))),
    }),
    *malformed(SDPA, _rates(_mha), "dropout"),
)  # fmt: skip

_OF_EVERY_LAYER = {
    "key-value-lengths-differ": ("9 keys with 8 values", changed(value=lambda x: x.value[:, :8])),
    "batch-differs": ("2 samples of queries with 3 of keys and values",
        changed(key=lambda x: x.key[[0] * 3], value=lambda x: x.value[[0] * 3])),
    "query-width-differs": ("queries two features narrower than the layer's",
        changed(query=lambda x: x.query[..., :-2])),
}  # fmt: skip

LAYERS = (
    *malformed(MULTI_HEAD, {
        "width-does-not-divide": ("a width of 12 split among 5 heads",
            lambda x: x.replace(sizes=replace(x.sizes, H=5, Hkv=5))),
    }, "batch", "cross", "splits-width"),
    *malformed(MULTI_HEAD, {
        "mask-too-few-keys": ("a mask (5, 8) for 9 keys", _mask("raw", 5, 8)),
        "mask-too-many-queries": ("a mask (6, 9) for 5 queries", _mask("raw", 6, 9)),
        "mask-wrong-batch": ("a mask (3, 5, 9) for 2 samples and 4 heads", _mask("raw", 3, 5, 9)),
        "mask-rank-5": ("a mask of rank 5", _mask("raw", 1, 2, 4, 5, 9)),
    }, "batch", "cross", "mask", "raw-mask"),
    *malformed(MULTI_HEAD, _rates(lambda x: x), "batch", "cross", "dropout"),
    *(
        case
        for operator in OPERATORS.values()
        if operator.is_layer and operator.questions.well_formed
        for case in malformed(operator, _OF_EVERY_LAYER, "batch", "cross")
    ),
)  # fmt: skip


def _positions(factor: float, offset: int) -> Spoil:
    return changed(position=lambda x: x.arrays["position"] * factor + offset)


ROTATIONS = (
    *malformed(ROTARY, {
        "odd-head-size": ("queries of 15 components, which make no pairs",
            changed(query=lambda x: x.query[..., :15])),
    }),
    *malformed(ROTARY, {
        "position-missing": ("16 positions for 17 queries",
            changed(position=lambda x: x.arrays["position"][:16])),
    }, "positions"),
    *malformed(ROTARY, {
        "position-wrong-batch": ("positions of 3 samples for a batch of 2",
            changed(position=lambda x: np.tile(x.arrays["position"], (3, 1)))),
    }, "positions", "gathered-positions"),
    *malformed(ROTARY, {
        "position-negative": ("a position of -1", _positions(1, -1)),
        "position-beyond-table": ("a position of 17 for a table of 17 positions", _positions(1, 1)),
        "position-fractional": ("positions of 0, 0.5, 1 and so on for a table of whole numbers",
            _positions(0.5, 0)),
    }, "positions", "position-table"),
)  # fmt: skip
