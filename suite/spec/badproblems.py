"""Bad problems: requests that have no meaning. An implementation must raise; silence is a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from suite.spec.dtypes import DTYPES, DType, round_to
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
