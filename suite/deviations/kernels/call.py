"""The arguments of a call of attention, and implementations that declare what their attributes say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.protocol import Declared, Election, Implementation
from attention_conformance.suite.spec.dtypes import DType, round_to
from attention_conformance.suite.spec.sizes import Sizes


class InDtype:
    """A call that is computed in the dtype of its query."""

    query: Rounded

    @property
    def fmt(self) -> DType:
        assert self.query.fmt is not None
        return self.query.fmt

    @property
    def work(self) -> type:
        """The NumPy type of sums."""
        return self.fmt.working


@dataclass(frozen=True)
class Call(InDtype):
    """The arguments of one call, (B, H, L, D) whatever the axis order; sinks, alibi_slopes and
    logit_scale (H,).

    `lengths` (B,) counts the keys of each sample; `window` is (left, right) with None for unbounded.
    `rate` is that of dropout, `seed` that of its pattern.
    """

    query: Rounded
    key: Rounded
    value: Rounded
    mask: Rounded | None = None
    bias: Rounded | None = None
    sinks: Rounded | None = None
    alibi_slopes: Rounded | None = None
    logit_scale: Rounded | None = None
    lengths: Rounded | None = None
    scale: float | None = None
    softcap: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    lse: bool = False
    rate: float = 0.0
    seed: int = 0

    @property
    def sizes(self) -> Sizes:
        B, H, Lq, D = self.query.shape
        _, Hkv, Lk, Dv = self.value.shape
        return Sizes(B, H, Hkv, Lq, Lk, D, Dv)

    @property
    def rows_and_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Query indices (Lq, 1) and key indices (Lk,)."""
        return np.arange(self.sizes.Lq)[:, None], np.arange(self.sizes.Lk)


def dashed(name: str) -> str:
    """The name of a class as that of an implementation: OnlineTiles16 is online-tiles16."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


class Stated(Implementation):
    """An implementation called after its class, that declares what its attributes say: those that are
    called like the fields of `Declared`. Subclasses mix them."""

    numerics: str | Mapping[str, str] = "exact"
    elections: Mapping[str, Election] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = dashed(cls.__name__)
        names = (field.name for field in fields(Declared))
        cls.declared = Declared(
            **{name: getattr(cls, name) for name in names if hasattr(cls, name)}
        )


class Stages:
    """Stages of attention that layers have, too. A call has `fmt`, `work` and `sizes`."""

    stores: tuple[str, ...] = ()

    def load(self, array: Rounded, call: Any) -> np.ndarray:
        return array.values.astype(call.work)

    def keep(self, x: np.ndarray, what: str, call: Any) -> np.ndarray:
        """`x` as it is stored: in the case's dtype where `what` is among `stores`.

        "features" are what layers hand on, "steps" those of the softmax.
        """
        return round_to(x, call.fmt).astype(call.work) if what in self.stores else x

    def expand(self, x: np.ndarray, call: Any) -> np.ndarray:
        """Key/value heads repeated one by one: (B, Hkv, Lk, D) -> (B, H, Lk, D)."""
        return np.repeat(x, call.sizes.group, axis=1)

    def joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return reduce(np.logical_and, parts)

    def masked(self, mask: np.ndarray, call: Any) -> np.ndarray:
        return mask

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Any) -> np.ndarray:
        return scores if allowed is None else np.where(allowed, scores, call.work(-np.inf))

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Values with zeros in the slots that no row attends."""
        unseen = np.asarray(np.isneginf(scores).all(-2))[..., None]
        return np.where(unseen, value.dtype.type(0), value)

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        """Scores minus the maximum of their row; rows without keys stay -inf."""
        maximum = scores.max(-1, keepdims=True, initial=-np.inf)
        return scores - np.where(np.isneginf(maximum), 0, maximum)
