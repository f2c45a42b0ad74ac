"""Bad problems: requests that have no meaning. An implementation must raise; silence is a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from suite.spec.dtypes import DTYPES, DType, round_to
from suite.spec.layers import LayerCase, LayerInputs, draw_layer
from suite.spec.masks import Window
from suite.spec.problem import Inputs
from suite.spec.recipes import generator


@dataclass(frozen=True)
class BadCase:
    """A bad problem with a name and the change that spoils a good one.

    `needs` names the features without which the problem cannot even be asked.
    """

    name: str
    text: str
    spoil: Callable[[Inputs], Inputs]
    needs: tuple[str, ...] = ()
    dtype: DType = DTYPES["f32"]

    kind = "bad"
    operator = "sdpa"
    group = "bad problems"

    @property
    def id(self) -> str:
        return f"bad/{self.name}/{self.dtype.name}"

    def inputs(self, seed: int = 0) -> Inputs:
        """The spoilt inputs: B2 H4 Hkv2 Lq5 Lk7 D8, apart from what is wrong with them."""
        rng = generator(self.id, seed)
        q, k, v = (
            round_to(rng.standard_normal(shape), self.dtype)
            for shape in ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))
        )
        return self.spoil(Inputs(q, k, v, self.dtype))

    def describe(self) -> str:
        """The bad problem in a few lines for people."""
        return f"{self.id}\n  {self.text}; an implementation must raise"

    def __str__(self) -> str:
        return self.id


def _mha(x: Inputs) -> Inputs:
    return replace(x, key=np.repeat(x.key, 2, 1), value=np.repeat(x.value, 2, 1))


def _mask(*shape: int) -> Callable[[Inputs], Inputs]:
    return lambda x: replace(_mha(x), mask_array=np.ones(shape, bool), form="dense")


BAD_CASES: tuple[BadCase, ...] = (
    BadCase(
        "heads-do-not-divide",
        "4 query heads with 3 key/value heads",
        lambda x: replace(
            x, key=np.repeat(x.key, 2, 1)[:, :3], value=np.repeat(x.value, 2, 1)[:, :3]
        ),
        needs=("grouped-heads",),
    ),
    BadCase(
        "more-key-heads-than-query-heads",
        "2 query heads with 4 key/value heads",
        lambda x: replace(_mha(x), query=x.query[:, :2]),
        needs=("grouped-heads",),
    ),
    BadCase(
        "key-value-heads-differ",
        "4 key heads with 2 value heads",
        lambda x: replace(x, key=np.repeat(x.key, 2, 1)),
    ),
    BadCase(
        "query-key-size-differ",
        "queries of size 8 with keys of size 6",
        lambda x: replace(_mha(x), key=_mha(x).key[..., :6]),
    ),
    BadCase(
        "key-value-lengths-differ",
        "7 keys with 6 values",
        lambda x: replace(_mha(x), value=_mha(x).value[:, :, :6]),
    ),
    BadCase(
        "batch-differs",
        "a batch of 2 queries with a batch of 3 keys and values",
        lambda x: replace(
            _mha(x),
            key=np.concatenate([_mha(x).key, _mha(x).key[:1]]),
            value=np.concatenate([_mha(x).value, _mha(x).value[:1]]),
        ),
    ),
    BadCase(
        "mask-too-few-keys", "a mask (5, 6) for 7 keys", _mask(5, 6), needs=("mask", "mask-array")
    ),
    BadCase(
        "mask-too-many-queries",
        "a mask (6, 7) for 5 queries",
        _mask(6, 7),
        needs=("mask", "mask-array"),
    ),
    BadCase(
        "mask-wrong-batch",
        "a mask (3, 1, 5, 7) for a batch of 2",
        _mask(3, 1, 5, 7),
        needs=("mask", "mask-array"),
    ),
    BadCase(
        "mask-wrong-heads",
        "a mask (2, 3, 5, 7) for 4 heads",
        _mask(2, 3, 5, 7),
        needs=("mask", "mask-array"),
    ),
    BadCase("mask-rank-5", "a mask of rank 5", _mask(2, 2, 4, 5, 7), needs=("mask", "mask-array")),
    BadCase(
        "bias-too-few-keys",
        "a bias (2, 4, 5, 6) for 7 keys",
        lambda x: replace(_mha(x), bias=np.zeros((2, 4, 5, 6)), bias_kind="bhqk"),
        needs=("bias", "mask-array"),
    ),
    BadCase(
        "negative-window",
        "a native sliding window of -2 to the left",
        lambda x: replace(_mha(x), mask=Window(-2, 0)),
        needs=("native-window",),
    ),
    BadCase(
        "key-rank-3",
        "queries of rank 4 with keys of rank 3",
        lambda x: replace(_mha(x), key=_mha(x).key[0]),
    ),
)


@dataclass(frozen=True)
class LayerBadCase:
    """A bad problem put to a layer: the layer fits the good problem, and is called with the spoilt one.

    `mask` is handed over as it stands. The good problem is `GOOD_LAYERS[operator]`.
    """

    name: str
    text: str
    spoil: Callable[[LayerInputs], LayerInputs]
    operator: str = "multi-head"
    needs: tuple[str, ...] = ()
    dtype: DType = DTYPES["f32"]

    kind = "bad"
    group = "bad problems"

    @property
    def id(self) -> str:
        return f"bad/{self.operator}/{self.name}/{self.dtype.name}"

    def inputs(self, seed: int = 0) -> LayerInputs:
        """The spoilt inputs."""
        return self.spoil(draw_layer(LayerCase.parse(GOOD_LAYERS[self.operator]), seed))

    def describe(self) -> str:
        """The bad problem in a few lines for people."""
        return f"{self.id}\n  {self.text}; a layer must raise"

    def __str__(self) -> str:
        return self.id


GOOD_LAYERS = {
    "multi-head": "multi-head/none/mha/f32/b2h4q5k9d3/e12.12.12.12",
    "additive": "additive/none/mha/f32/b2h1q5k9d12/e12.12.12.12/identity",
    "dot": "dot/none/mha/f32/b2h1q5k9d8/e8.8.8.8/unscaled",
}


def _raw(*shape: int) -> Callable[[LayerInputs], LayerInputs]:
    return lambda x: replace(x, mask_array=np.ones(shape, bool), form="raw")


def _one_sample_less(x: LayerInputs) -> LayerInputs:
    return replace(x, key=x.key[:1].repeat(3, 0), value=x.value[:1].repeat(3, 0))


LAYER_BAD_CASES: tuple[LayerBadCase, ...] = (
    LayerBadCase(
        "width-does-not-divide",
        "a width of 12 split among 5 heads",
        lambda x: replace(x, sizes=replace(x.sizes, H=5, Hkv=5)),
        needs=("batch", "cross", "splits-width"),
    ),
    LayerBadCase(
        "mask-too-few-keys",
        "a mask (5, 8) for 9 keys",
        _raw(5, 8),
        needs=("batch", "cross", "mask", "raw-mask"),
    ),
    LayerBadCase(
        "mask-too-many-queries",
        "a mask (6, 9) for 5 queries",
        _raw(6, 9),
        needs=("batch", "cross", "mask", "raw-mask"),
    ),
    LayerBadCase(
        "mask-wrong-batch",
        "a mask (3, 5, 9) for 2 samples and 4 heads",
        _raw(3, 5, 9),
        needs=("batch", "cross", "mask", "raw-mask"),
    ),
    LayerBadCase(
        "mask-rank-5",
        "a mask of rank 5",
        _raw(1, 2, 4, 5, 9),
        needs=("batch", "cross", "mask", "raw-mask"),
    ),
    *(
        case
        for operator in GOOD_LAYERS
        for case in (
            LayerBadCase(
                "key-value-lengths-differ",
                "9 keys with 8 values",
                lambda x: replace(x, value=x.value[:, :8]),
                operator,
                needs=("batch", "cross"),
            ),
            LayerBadCase(
                "batch-differs",
                "2 samples of queries with 3 of keys and values",
                _one_sample_less,
                operator,
                needs=("batch", "cross"),
            ),
            LayerBadCase(
                "query-width-differs",
                "queries two features narrower than the layer's",
                lambda x: replace(x, query=x.query[..., :-2]),
                operator,
                needs=("batch", "cross"),
            ),
        )
    ),
)
