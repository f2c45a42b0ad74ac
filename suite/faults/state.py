"""Faults that remember: answers by array or address, what they made of an operand, options of earlier
calls, old contents of a workspace."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.variants import Workspace
from attention_conformance.suite.spec.dtypes import round_to

FAMILY = "state"


def address(array: Rounded) -> tuple[int, tuple[int, ...]]:
    """Where the values of an array lie, and its shape."""
    return array.values.__array_interface__["data"][0], array.shape


@fault(
    "stateless",
    "`cache[id(q), id(k), id(v)]`, or `lru_cache` on tensors; contents may change in place",
)
class AnswersKeptByArrays(Kernel):
    """Answers are cached by the identity of the arrays: new contents get the old answer."""

    def compute(self, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        arrays = (call.query, call.key, call.value, call.mask, call.bias)
        # The arrays are kept, too: their identities are nobody else's.
        key = (*map(id, arrays), call.causal)
        if key not in kept:
            kept[key] = (super().compute(call), arrays)
        return kept[key][0]


@fault(
    "stateless",
    "`cache[q.data_ptr(), k.data_ptr()]`; other contents, or other arrays, may lie there later",
)
class AnswersKeptByAddress(Kernel):
    """Answers are cached by the addresses of query and key: new contents get the old answer."""

    def compute(self, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        key = (address(call.query), address(call.key), call.fmt.name, call.causal)
        return kept.setdefault(key, super().compute(call)).copy()


@fault(
    "stateless",
    "a converted copy of k in `cache[id(k)]`; convert at every call, since contents may change",
)
class KeysKeptByArray(Kernel):
    """Keys are read once for every array: what is written into the array later is not seen."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        copy, _ = kept.setdefault(id(call.key), (key.copy(), call.key))
        return super().scores(query, copy, call)


@fault("stateless", "a converted copy of the mask in `cache[id(mask)]`; convert it at every call")
class MaskKeptByArray(Kernel):
    """A mask is read once for every array: what is written into the array later is not seen."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        entry = kept.setdefault(id(call.mask), (super().masked(mask, call).copy(), call.mask))
        return entry[0]


@fault(
    "remembered",
    "a kernel cached by shape with `scale` as a constant; the scale belongs to the key",
)
class ScaleOfFirstCall(Kernel):
    """The scale is that of the first call of its shape."""

    def factor(self, call: Call) -> float:
        known = self.__dict__.setdefault("known", {})
        return known.setdefault((call.query.shape, call.key.shape), super().factor(call))


@fault("remembered", "`self.softcap = softcap or self.softcap`; None sets it back")
class SoftcapStays(Kernel):
    """A call without a softcap has the softcap of the call before."""

    kept_cap: float | None = None

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        self.kept_cap = call.softcap or self.kept_cap
        return super().capped(scores, replace(call, softcap=self.kept_cap))


@fault("remembered", "`if mask is not None: self.mask = mask`; None sets it back")
class MaskStays(Kernel):
    """A call without a mask has the mask of the last call of its shape."""

    def allowed(self, call: Call) -> np.ndarray | None:
        known = self.__dict__.setdefault("known", {})
        key = (call.query.shape, call.key.shape, call.fmt.name)
        known[key] = allowed = super().allowed(call) if given(call) else known.get(key)
        return allowed


@fault(
    "remembered",
    "`cache[Lq, Lk]` for the mask of a window; its left and right side belong to the key",
)
class VisiblePairsKeptBySize(Kernel):
    """The mask of a window is cached by Lq and Lk: another window gets the mask of the first."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        known = self.__dict__.setdefault("known", {})
        key = (call.sizes.Lq, call.sizes.Lk)
        return known.setdefault(key, super().windowed(call, left, right))


@fault("remembered", "`cache[Lq, Lk]` for `1 / sqrt(D)`; D belongs to the key")
class ScaleKeptByLengths(Kernel):
    """The default scale is cached by Lq and Lk: another D gets the scale of the first."""

    def factor(self, call: Call) -> float:
        if call.scale is not None:
            return call.scale
        known = self.__dict__.setdefault("known", {})
        key = (call.sizes.Lq, call.sizes.Lk, call.fmt.name)
        return known.setdefault(key, super().factor(call))


@fault("remembered", "`cache[H, Lq, Lk]` for the bias of ALiBi; the slopes belong to the key")
class AlibiKeptBySize(Kernel):
    """The bias of ALiBi is cached by its shape: other slopes get the bias of the first."""

    def alibi(self, slopes: np.ndarray, call: Call) -> np.ndarray:
        known = self.__dict__.setdefault("known", {})
        key = (len(slopes), call.sizes.Lq, call.sizes.Lk, call.fmt.name)
        return known.setdefault(key, super().alibi(slopes, call))


@fault(
    "remembered", "exp(sinks) made at the first call; sinks are parameters, and training moves them"
)
class SinksOfFirstCall(Kernel):
    """The sinks are those of the first call with as many heads."""

    def sunk(self, scores: np.ndarray, call: Call) -> np.ndarray:
        known = self.__dict__.setdefault("known", {})
        if call.sinks is not None:
            first = known.setdefault((call.sizes.H, call.fmt.name), call.sinks)
            call = replace(call, sinks=first)
        return super().sunk(scores, call)


@fault("remembered", "a decoding path with `self.mask = mask or self.mask`; None sets it back")
class MaskStaysWhileDecoding(Kernel):
    """One query without a mask has the mask of the last call of its shape."""

    def allowed(self, call: Call) -> np.ndarray | None:
        if call.sizes.Lq > 1:
            return super().allowed(call)
        known = self.__dict__.setdefault("known", {})
        key = (call.query.shape, call.key.shape, call.fmt.name)
        known[key] = allowed = super().allowed(call) if given(call) else known.get(key)
        return allowed


@fault("remembered", "`tri &= mask` on the triangle in `cache[Lq, Lk]`; make a new array of both")
class TriangleGathersMasks(Kernel):
    """The causal triangle is cached by Lq and Lk, and the masks beside the flag are merged into it."""

    def causal(self, call: Call) -> np.ndarray:
        known = self.__dict__.setdefault("known", {})
        triangle = known.setdefault((call.sizes.Lq, call.sizes.Lk), super().causal(call))
        if call.mask is not None and call.mask.values.shape == triangle.shape:
            triangle &= call.mask.values
        return triangle


@fault("remembered", "`tri += bias` on the triangle in `cache[Lq, Lk]`; make a new array of both")
class TriangleGathersBiases(Kernel):
    """The causal triangle is cached by Lq and Lk, and a bias beside the flag is added to it."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if not call.causal:
            return super().biased(scores, call)
        known = self.__dict__.setdefault("known", {})
        lengths = (call.sizes.Lq, call.sizes.Lk)
        added = known.setdefault(lengths, np.zeros(lengths, scores.dtype))
        if call.bias is None or call.bias.values.shape != lengths:
            return super().biased(scores + added, call)
        added += call.bias.values
        return scores + added


@fault("remembered", "`k * scale` in `cache[id(k)]`; the next call may have another scale")
class ScaleKeptByArray(Kernel):
    """The scale is kept by the array of keys that it was first used with."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        known = self.__dict__.setdefault("known", {})
        entry = known.setdefault((id(call.key), call.fmt.name), (self.factor(call), call.key))
        return super().scores(query, key, replace(call, scale=entry[0]))


@fault("remembered", "a buffer kept by its shape, or its dtype kept; the dtype belongs to the key")
class NarrowestDtypeStays(Kernel):
    """Answers are rounded to the narrowest dtype that was asked before in their shape."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        known = self.__dict__.setdefault("known", {})
        before = known.get(out.shape, call.fmt)
        known[out.shape] = fmt = min(before, call.fmt, key=lambda dtype: dtype.precision)
        return super().deliver(round_to(out, fmt), call)


def given(call: Call) -> bool:
    """True if the call hides any pair by an argument."""
    return call.mask is not None or call.lengths is not None or call.causal or bool(call.window)


row = partial(deviation, family=FAMILY, right=Workspace)

DEVIATIONS = [
    row("workspace-not-cleared", "stateless",
        "NaN that an earlier call left in a workspace meets weights of zero, and spreads.",
        "a reused buffer is padded by weights of 0, and `0 * nan` is NaN; zero the part beyond Lk"),
]  # fmt: skip
