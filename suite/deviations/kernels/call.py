"""What all kernels share: the arguments of a call, the declaration, and steps of attention."""

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

Array = np.ndarray


class TypedCall:
    """A call whose dtype is that of its query."""

    query: Rounded

    @property
    def fmt(self) -> DType:
        assert self.query.fmt is not None
        return self.query.fmt

    @property
    def work(self) -> type:
        """The NumPy type of the arithmetic."""
        return self.fmt.working


@dataclass(frozen=True)
class Call(TypedCall):
    """The arguments of one call. Operands are (B, H, L, D) in any axis order of the caller.
    - `sinks`, `alibi_slopes`, `logit_scale` (H,)
    - `lengths` (B,): the number of keys of each sample
    - `window`: (left, right); None is unbounded
    - `lse`: True if the log-sum-exp is returned, too
    - `rate`, `seed`: of dropout
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


def kebab_case(name: str) -> str:
    """Returns the name of an implementation from the name of its class: online-tiles16 for
    OnlineTiles16."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


class DeclaredKernel(Implementation):
    """An implementation that is named after its class. Class attributes with the names of fields of
    `Declared` are its declaration."""

    numerics: str | Mapping[str, str] = "exact"
    elections: Mapping[str, Election] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = kebab_case(cls.__name__)
        names = (field.name for field in fields(Declared))
        facts = {name: getattr(cls, name) for name in names if hasattr(cls, name)}
        cls.declared = Declared(**facts)


class AttentionSteps:
    """Steps that attention and layers share. A call has `fmt`, `work` and `sizes`."""

    stores: tuple[str, ...] = ()

    def load(self, array: Rounded, call: Any) -> np.ndarray:
        """Returns the values of an array in working precision."""
        return array.values.astype(call.work)

    def keep(self, x: np.ndarray, kind: str, call: Any) -> np.ndarray:
        """Returns `x` as the kernel stores it: rounded to the case's dtype if its `kind` is in `stores`.
        Kinds are "scores", "weights", "features" (activations of layers) and "steps"
        (of a layer's softmax)."""
        return round_to(x, call.fmt).astype(call.work) if kind in self.stores else x

    def expand(self, x: np.ndarray, call: Any) -> np.ndarray:
        """Returns each key or value head repeated for the query heads of its group: (B, H, Lk, .)."""
        return np.repeat(x, call.sizes.group, axis=1)

    def joined(self, masks: list[np.ndarray]) -> np.ndarray:
        return reduce(np.logical_and, masks)

    def masked(self, mask: np.ndarray, call: Any) -> np.ndarray:
        """Returns the mask argument as the kernel reads it, rank 4, True attends."""
        return mask

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Any) -> np.ndarray:
        """Returns the scores, with -inf where the mask `allowed` is False."""
        return scores if allowed is None else np.where(allowed, scores, call.work(-np.inf))

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Returns the values, with zeros for keys that no row attends (all their `scores` are -inf)."""
        unattended = np.asarray(np.isneginf(scores).all(-2))[..., None]
        return np.where(unattended, value.dtype.type(0), value)

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        """Returns the scores minus the maximum of their row; fully masked rows stay -inf."""
        maximum = scores.max(-1, keepdims=True, initial=-np.inf)
        return scores - np.where(np.isneginf(maximum), 0, maximum)


class DropoutSteps:
    """Each weight is dropped independently, by random numbers from the call's seed; kept weights are
    divided by 1 - rate. A call has a `rate` and a `seed`."""

    def validate_rate(self, rate: float) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"a rate of dropout lies between 0 and 1, got {rate}")

    def random(self, call: Any) -> np.random.Generator:
        """Returns the generator of the dropout pattern."""
        return np.random.default_rng(call.seed)

    def pattern(self, shape: tuple[int, ...], rate: float, call: Any) -> np.ndarray:
        """Returns the dropout pattern of weights of this shape: True for weights that are not dropped."""
        return self.random(call).random(shape) >= rate

    def rescale(self, rate: float) -> float:
        """Returns the factor of weights that are not dropped."""
        return 1.0 / (1.0 - rate) if rate < 1 else 0.0
