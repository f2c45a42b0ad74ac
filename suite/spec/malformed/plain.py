"""Malformed problems of plain attention, layers and rotations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.malformed.problem import MalformedCase
from attention_conformance.suite.spec.masks import Window
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD
from attention_conformance.suite.spec.operators.rotary import ROTARY
from attention_conformance.suite.spec.operators.sdpa import SDPA


def _mha(x: Inputs) -> Inputs:
    return x.replace(key=np.repeat(x.key, 2, 1), value=np.repeat(x.value, 2, 1))


def _mask(*shape: int) -> Callable[[Inputs], Inputs]:
    return lambda x: _mha(x).replace(mask_array=np.ones(shape, bool), form="dense")


def _rate(rate: float) -> Callable[[Inputs], Inputs]:
    def spoilt(x: Inputs) -> Inputs:
        plain = x if x.operator.is_layer else _mha(x)
        return plain.replace(rate=rate, training=True)

    return spoilt


_RATES = (
    ("rate-above-one", "a rate of dropout of 2", _rate(2.0)),
    ("rate-negative", "a rate of dropout of -0.5", _rate(-0.5)),
)
"""Name, text and change of each malformed dropout rate."""

ATTENTION = (
    MalformedCase(
        "heads-do-not-divide",
        "4 query heads with 3 key/value heads",
        lambda x: x.replace(
            key=np.repeat(x.key, 2, 1)[:, :3], value=np.repeat(x.value, 2, 1)[:, :3]
        ),
        SDPA,
        needs=("grouped-heads",),
    ),
    MalformedCase(
        "more-key-heads-than-query-heads",
        "2 query heads with 4 key/value heads",
        lambda x: _mha(x).replace(query=x.query[:, :2]),
        SDPA,
        needs=("grouped-heads",),
    ),
    MalformedCase(
        "key-value-heads-differ",
        "4 key heads with 2 value heads",
        lambda x: x.replace(key=np.repeat(x.key, 2, 1)),
        SDPA,
    ),
    MalformedCase(
        "query-key-size-differ",
        "queries of size 8 with keys of size 6",
        lambda x: _mha(x).replace(key=_mha(x).key[..., :6]),
        SDPA,
    ),
    MalformedCase(
        "key-value-lengths-differ",
        "7 keys with 6 values",
        lambda x: _mha(x).replace(value=_mha(x).value[:, :, :6]),
        SDPA,
    ),
    MalformedCase(
        "batch-differs",
        "a batch of 2 queries with a batch of 3 keys and values",
        lambda x: _mha(x).replace(
            key=np.concatenate([_mha(x).key, _mha(x).key[:1]]),
            value=np.concatenate([_mha(x).value, _mha(x).value[:1]]),
        ),
        SDPA,
    ),
    *(
        MalformedCase(name, text, _mask(*shape), SDPA, needs=("mask", "mask-array"))
        for name, text, shape in (
            ("mask-too-few-keys", "a mask (5, 6) for 7 keys", (5, 6)),
            ("mask-too-many-queries", "a mask (6, 7) for 5 queries", (6, 7)),
            ("mask-wrong-batch", "a mask (3, 1, 5, 7) for a batch of 2", (3, 1, 5, 7)),
            ("mask-wrong-heads", "a mask (2, 3, 5, 7) for 4 heads", (2, 3, 5, 7)),
            ("mask-rank-5", "a mask of rank 5", (2, 2, 4, 5, 7)),
        )
    ),
    MalformedCase(
        "bias-too-few-keys",
        "a bias (2, 4, 5, 6) for 7 keys",
        lambda x: _mha(x).replace(bias=np.zeros((2, 4, 5, 6))),
        SDPA,
        needs=("bias", "mask-array"),
    ),
    MalformedCase(
        "negative-window",
        "a native sliding window of -2 to the left",
        lambda x: _mha(x).replace(mask=Window(-2, 0)),
        SDPA,
        needs=("native-window",),
    ),
    MalformedCase(
        "key-rank-3",
        "queries of rank 4 with keys of rank 3",
        lambda x: _mha(x).replace(key=_mha(x).key[0]),
        SDPA,
    ),
    *(MalformedCase(name, text, spoil, SDPA, needs=("dropout",)) for name, text, spoil in _RATES),
)


def _raw(*shape: int) -> Callable[[Inputs], Inputs]:
    return lambda x: x.replace(mask_array=np.ones(shape, bool), form="raw")


def _one_sample_less(x: Inputs) -> Inputs:
    return x.replace(key=x.key[:1].repeat(3, 0), value=x.value[:1].repeat(3, 0))


_OF_EVERY_LAYER: tuple[tuple[str, str, Callable[[Inputs], Inputs]], ...] = (
    ("key-value-lengths-differ", "9 keys with 8 values", lambda x: x.replace(value=x.value[:, :8])),
    ("batch-differs", "2 samples of queries with 3 of keys and values", _one_sample_less),
    (
        "query-width-differs",
        "queries two features narrower than the layer's",
        lambda x: x.replace(query=x.query[..., :-2]),
    ),
)
"""Name, text and change of the malformed problems of every layer."""

LAYERS = (
    MalformedCase(
        "width-does-not-divide",
        "a width of 12 split among 5 heads",
        lambda x: x.replace(sizes=replace(x.sizes, H=5, Hkv=5)),
        MULTI_HEAD,
        needs=("batch", "cross", "splits-width"),
    ),
    *(
        MalformedCase(
            name, text, _raw(*shape), MULTI_HEAD, needs=("batch", "cross", "mask", "raw-mask")
        )
        for name, text, shape in (
            ("mask-too-few-keys", "a mask (5, 8) for 9 keys", (5, 8)),
            ("mask-too-many-queries", "a mask (6, 9) for 5 queries", (6, 9)),
            ("mask-wrong-batch", "a mask (3, 5, 9) for 2 samples and 4 heads", (3, 5, 9)),
            ("mask-rank-5", "a mask of rank 5", (1, 2, 4, 5, 9)),
        )
    ),
    *(
        MalformedCase(name, text, spoil, MULTI_HEAD, needs=("batch", "cross", "dropout"))
        for name, text, spoil in _RATES
    ),
    *(
        MalformedCase(name, text, spoil, operator, needs=("batch", "cross"))
        for operator in OPERATORS.values()
        if operator.is_layer and operator.questions.well_formed
        for name, text, spoil in _OF_EVERY_LAYER
    ),
)


def _positions(by: float, plus: int) -> Callable[[Inputs], Inputs]:
    return lambda x: x.replace(position=x.arrays["position"] * by + plus)


ROTATIONS = (
    MalformedCase(
        "odd-head-size",
        "queries of 15 components, which make no pairs",
        lambda x: x.replace(query=x.query[..., :15]),
        ROTARY,
    ),
    MalformedCase(
        "position-missing",
        "16 positions for 17 queries",
        lambda x: x.replace(position=x.arrays["position"][:16]),
        ROTARY,
        needs=("positions",),
    ),
    MalformedCase(
        "position-wrong-batch",
        "positions of 3 samples for a batch of 2",
        lambda x: x.replace(position=np.tile(x.arrays["position"], (3, 1))),
        ROTARY,
        needs=("positions", "gathered-positions"),
    ),
    *(
        MalformedCase(
            name, text, _positions(by, plus), ROTARY, needs=("positions", "position-table")
        )
        for name, text, by, plus in (
            ("position-negative", "a position of -1", 1, -1),
            ("position-beyond-table", "a position of 17 for a table of 17 positions", 1, 1),
            (
                "position-fractional",
                "positions of 0, 0.5, 1 and so on for a table of whole numbers",
                0.5,
                0,
            ),
        )
    ),
)
