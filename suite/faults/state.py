"""Faults that remember: answers by array or address, what they made of an operand, options of earlier
calls, old contents of a workspace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel
from suite.faults.kernels.variants import Workspace
from suite.spec.dtypes import round_to


def address(array: Rounded) -> tuple[int, tuple[int, ...]]:
    """Where the values of an array lie, and its shape."""
    return array.values.__array_interface__["data"][0], array.shape


@fault("stateless")
class AnswersKeptByArrays(Kernel):
    """Answers are kept by the arrays they are of."""

    def compute(self, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        arrays = (call.query, call.key, call.value, call.mask, call.bias)
        # The arrays are kept, too: their identities are nobody else's.
        key = (*map(id, arrays), call.causal)
        if key not in kept:
            kept[key] = (super().compute(call), arrays)
        return kept[key][0]


@fault("stateless")
class AnswersKeptByAddress(Kernel):
    """Answers are kept by where the query and the key lie in memory."""

    def compute(self, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        key = (address(call.query), address(call.key), call.fmt.name, call.causal)
        return kept.setdefault(key, super().compute(call)).copy()


@fault("stateless")
class KeysKeptByArray(Kernel):
    """What was made of a key is kept by the array it was made of."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        copy, _ = kept.setdefault(id(call.key), (key.copy(), call.key))
        return super().scores(query, copy, call)


@fault("stateless")
class MaskKeptByArray(Kernel):
    """A mask is read once, and kept by its array."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        entry = kept.setdefault(id(call.mask), (super().masked(mask, call).copy(), call.mask))
        return entry[0]


@fault("stateless")
class WorkspaceNotCleared(Workspace):
    """What an earlier call left in a workspace meets weights of zero."""


@fault("remembered")
class ScaleOfFirstCall(Kernel):
    """The scale is that of the first call of a shape."""

    def factor(self, call: Call) -> float:
        known = self.__dict__.setdefault("known", {})
        return known.setdefault((call.query.shape, call.key.shape), super().factor(call))


@fault("remembered")
class SoftcapStays(Kernel):
    """A call without a softcap has the softcap of the call before."""

    kept_cap: float | None = None

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        self.kept_cap = call.softcap or self.kept_cap
        return super().capped(scores, replace(call, softcap=self.kept_cap))


@fault("remembered")
class MaskStays(Kernel):
    """A call without a mask has the mask of the last call of its shape."""

    def allowed(self, call: Call) -> np.ndarray | None:
        known = self.__dict__.setdefault("known", {})
        key = (call.query.shape, call.key.shape, call.fmt.name)
        known[key] = allowed = super().allowed(call) if given(call) else known.get(key)
        return allowed


@fault("remembered")
class VisiblePairsKeptBySize(Kernel):
    """Which pairs a causal flag or a window allows is kept by Lq and Lk alone."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        known = self.__dict__.setdefault("known", {})
        key = (call.sizes.Lq, call.sizes.Lk)
        return known.setdefault(key, super().windowed(call, left, right))


@fault("remembered")
class ScaleKeptByLengths(Kernel):
    """The default scale is kept by the lengths, which leaves the head size out."""

    def factor(self, call: Call) -> float:
        if call.scale is not None:
            return call.scale
        known = self.__dict__.setdefault("known", {})
        key = (call.sizes.Lq, call.sizes.Lk, call.fmt.name)
        return known.setdefault(key, super().factor(call))


@fault("remembered")
class ScaleKeptByArray(Kernel):
    """The scale is kept by the array of keys that it was first used with."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        known = self.__dict__.setdefault("known", {})
        entry = known.setdefault((id(call.key), call.fmt.name), (self.factor(call), call.key))
        return super().scores(query, key, replace(call, scale=entry[0]))


@fault("remembered")
class NarrowestDtypeStays(Kernel):
    """Answers are rounded to the narrowest dtype that was asked in their shape."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        known = self.__dict__.setdefault("known", {})
        before = known.get(out.shape, call.fmt)
        known[out.shape] = fmt = min(before, call.fmt, key=lambda dtype: dtype.precision)
        return super().deliver(round_to(out, fmt), call)


def given(call: Call) -> bool:
    """True if the call hides any pair by an argument."""
    return call.mask is not None or call.lengths is not None or call.causal or bool(call.window)
