"""Faults that break the contract of a call: types, state, inputs; and those that answer bad problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.backend import Elsewhere
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel, Online, rank4
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs

FAMILY = "contract"


@fault("contract", "`return out` in float32; use `return out.to(q.dtype)`")
class AnswersInFloat32(Kernel):
    """16-bit inputs give a float32 answer."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        return Rounded(answer.values, DTYPES["f32"]) if call.fmt.is_half else answer


@fault("contract", "`return out.numpy()`; return an array of the framework that called")
class AnswersPlainArray(Kernel):
    """The answer is an array of another framework."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return super().deliver(out, call).values


@fault("contract", "`out.squeeze()` or `out[0]`; return (1, H, Lq, Dv)")
class AnswersWithoutBatch(Kernel):
    """With one sample the answer has no batch axis."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return super().deliver(out[0] if call.sizes.B == 1 else out, call)


@fault("contract", "`out.transpose(1, 2)`; return (B, H, Lq, Dv)", family="layout")
class AnswersHeadsInside(Kernel):
    """The answer comes as (B, Lq, H, Dv), not (B, H, Lq, Dv)."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return super().deliver(out.swapaxes(1, 2), call)


@fault("contract", "`out.cpu()`, or `torch.empty(...)` without `device=q.device`")
class AnswersElsewhere(Kernel):
    """The answer is on another device than the inputs."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        return Elsewhere(answer.values, answer.fmt)


@fault("contract", "`q *= scale`, `q.mul_(scale)`; use `q = q * scale`")
class QueryScaledInPlace(Kernel):
    """The query is scaled in place."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        scores = super().scores(query, key, call)
        call.query.values[...] *= self.factor(call)
        return scores


@fault("contract", "`mask &= tril`; use `mask = mask & tril`")
class CausalMergedInPlace(Kernel):
    """The causal flag is written into the caller's mask."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        if call.causal and mask.shape[-2] == call.sizes.Lq:
            mask &= self.causal(call)
        return mask


@fault("contract", "the bias is used as a buffer, as by `masked_fill_`; work on a copy")
class BiasClearedInPlace(Kernel):
    """Finite entries of the caller's bias are overwritten with zeros."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        biased_scores = super().biased(scores, call)
        if call.bias is not None:
            call.bias.values[...] = np.where(np.isneginf(call.bias.values), -np.inf, 0.0)
        return biased_scores


@fault("contract", "`out = q`, `out=q`; write into `torch.empty_like(q)`")
class AnswerWrittenOverQuery(Kernel):
    """The answer is written into the memory of the query, if it fits."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        if answer.shape != call.query.shape:
            return answer
        call.query.values[...] = answer.values
        return call.query


@fault(
    "contract",
    "`atomicAdd`, or tiles in the order in which they end; sum in a fixed order",
    family="state",
)
class OrderVaries(Online):
    """Keys are summed in another order at every other call, so that equal calls differ."""

    calls = 0

    def tiles(self, length: int) -> list[slice]:
        self.calls += 1
        return super().tiles(length)[:: -1 if self.calls % 2 else 1]


@fault(
    "contract",
    "`acc += ...` in a kept buffer; set it to zero at the start of a call",
    family="state",
)
class BufferNotCleared(Kernel):
    """If the same query comes again, the answer is added to the one before."""

    def compute(self, call: Call) -> np.ndarray:
        out, known = super().compute(call), getattr(self, "known", None)
        self.known = (call.query, out)
        return out + known[1] if known and known[0] is call.query else out


@fault(
    "future", "a cache whose key is the query alone; keys and values belong to it", family="state"
)
class KeysKeptByQuery(Kernel):
    """Keys and values of the first call with a query serve all later calls with it."""

    def compute(self, call: Call) -> np.ndarray:
        known = self.__dict__.setdefault("known", {})
        digest = (call.query.values.tobytes(), call.key.shape, call.value.shape, call.causal)
        kept = known.setdefault(digest, (call.key, call.value))
        changed = Call(**{**call.__dict__, "key": kept[0], "value": kept[1]})
        return super().compute(changed)


@fault("election", "`mask.bool()`; raise TypeError unless `mask.dtype == torch.bool`")
class IntegerMaskCast(Kernel):
    """A mask of integers is cast to boolean, though it is declared to be refused."""

    def validate_mask(self, call: Call) -> None:
        if call.mask is not None:
            self.validate_broadcast("mask", call.mask, call)

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask.astype(bool)


class Unchecked(Kernel):
    """Operands are not held against each other; what NumPy refuses is still refused."""

    def validate_operands(self, call: Call) -> None:
        pass


@fault("bad_problem", "`k[:, h * Hkv // H]`; raise ValueError if `H % Hkv`")
class HeadsNeedNotDivide(Unchecked):
    """Head counts that do not divide are answered: head h uses key head h Hkv // H."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return x[:, np.arange(call.sizes.H) * call.sizes.Hkv // max(call.sizes.H, 1)]


@fault(
    "bad_problem", "`min(q.shape[-1], k.shape[-1])` components; raise ValueError if the two differ"
)
class KeySizeCut(Unchecked):
    """Queries and keys of different sizes are cut to the smaller one."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        size = min(query.shape[-1], key.shape[-1])
        return super().scores(query[..., :size], key[..., :size], call)


@fault(
    "bad_problem",
    "`H // v.shape[1]` for v by itself; raise ValueError if `k.shape[1] != v.shape[1]`",
)
class ValueHeadsBroadcast(Unchecked):
    """Key and value heads of different numbers are accepted, each repeated by its own count."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return np.repeat(x, call.sizes.H // x.shape[1], axis=1)


@fault(
    "bad_problem", "`p[..., : v.shape[-2]] @ v`; raise ValueError if `k.shape[-2] != v.shape[-2]`"
)
class ExcessKeysCut(Unchecked):
    """More keys than values are accepted, and those without a value ignored."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        return super().attend(scores[..., : value.shape[-2]], value, call)


@fault("bad_problem", "`k[:B]`, `v[:B]`; raise ValueError if `k.shape[0] != q.shape[0]`")
class ExcessSamplesCut(Unchecked):
    """More samples of keys than of queries are accepted, and the last ones ignored."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return super().expand(x[: call.sizes.B], call)


@fault("bad_problem", "`k.unsqueeze(0)` or broadcasting; raise ValueError if `k.ndim != 4`")
class MissingAxesAdded(Kernel):
    """Keys of rank 3 are accepted, and broadcast over the batch."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        if key.values.ndim == 3:
            key = Rounded(np.broadcast_to(key.values, (query.shape[0], *key.shape)), key.fmt)
        return super().attention(query, key, value, **rest)


@fault("bad_argument", "`kernels.get(name, default)`; raise ValueError if there is no such name")
class UnknownKernelTaken(Kernel):
    """An unknown name of a kernel is taken for the default."""

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        return {"kernel=none": self.prepare(inputs)}


class FitsMasks(Kernel):
    """Masks and biases are made to fit: cut, repeated or padded with True."""

    def validate_broadcast(self, name: str, array: Rounded, call: Call) -> None:
        pass


@fault("bad_problem", "`mask[:, :, :Lq, :Lk]`; raise ValueError if the mask does not broadcast")
class MaskCutToFit(FitsMasks):
    """A mask that is too large is cut, not refused."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        return mask[: s.B, : s.H, : s.Lq, : s.Lk]


@fault(
    "bad_problem",
    "`F.pad(mask, (0, missing), value=True)`; raise ValueError if the mask is too short",
)
class MaskPaddedToFit(FitsMasks):
    """A mask of too few keys is accepted, and keys beyond its end are seen."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        missing = call.sizes.Lk - mask.shape[-1]
        if mask.shape[-1] == 1 or missing <= 0:
            return mask
        return np.pad(mask, ((0, 0),) * 3 + ((0, missing),), constant_values=True)


@fault("bad_problem", "`F.pad(bias, (0, missing))`; raise ValueError if the bias is too short")
class BiasPaddedToFit(FitsMasks):
    """A bias of too few keys is accepted, and keys beyond its end have a bias of 0."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        missing = call.sizes.Lk - loaded.shape[-1]
        if array is not call.bias or loaded.shape[-1] == 1 or missing <= 0:
            return loaded
        return np.pad(rank4(loaded), ((0, 0),) * 3 + ((0, missing),))


@fault(
    "bad_problem", "`mask[0]`, `mask.reshape(mask.shape[-4:])`; raise ValueError if `mask.ndim > 4`"
)
class MaskRankFlattened(Kernel):
    """A mask of rank 5 is accepted, and its leading axis dropped."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        mask = rest.get("mask")
        if mask is not None and mask.values.ndim > 4:
            rest["mask"] = Rounded(mask.values[0], None)
        return super().attention(query, key, value, **rest)


@fault(
    "contract", "`self.out` is returned at every call; return a new array or a copy", family="state"
)
class AnswersInOneBuffer(Kernel):
    """Answers of one shape share a buffer, so that a later call overwrites an earlier answer."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        known = self.__dict__.setdefault("known", {})
        kept = known.setdefault((answer.shape, call.fmt.name), answer)
        kept.values[...] = answer.values
        return kept


@fault(
    "kept_answers",
    "a pool of four output buffers; callers may keep answers, so return a new array",
    family="state",
)
class AnswersInBuffersInTurn(Kernel):
    """Answers of one shape take turns in four buffers: the fifth overwrites the first."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        ring = self.__dict__.setdefault("ring", {}).setdefault((answer.shape, call.fmt.name), [])
        ring.append(answer if len(ring) < 4 else ring.pop(0))
        ring[-1].values[...] = answer.values
        return ring[-1]


@fault(
    "own_memory",
    "a pool of sixteen output buffers; callers may keep answers, so return a new array",
    family="state",
)
class AnswersInSixteenBuffers(Kernel):
    """Answers of one shape take turns in sixteen buffers: the 17th overwrites the first."""

    count = 16

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        ring = self.__dict__.setdefault("ring", {}).setdefault((answer.shape, call.fmt.name), [])
        ring.append(answer if len(ring) < self.count else ring.pop(0))
        ring[-1].values[...] = answer.values
        return ring[-1]


@fault(
    "own_memory",
    "a pool of five hundred output buffers; callers may keep answers, so return a new array",
    family="state",
)
class AnswersInFiveHundredBuffers(AnswersInSixteenBuffers):
    """Answers of one shape take turns in 500 buffers: the 501st overwrites the first."""

    count = 500


@fault(
    "own_memory", "`if Lk == 1: return v.expand(...)`; return a copy: `.clone()`", family="state"
)
class ValueOfSingleKey(Kernel):
    """With one key the answer is a view of the values, not an array of its own."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        if call.sizes.Lk == 1 and call.sizes.group == 1:
            return Rounded(np.broadcast_to(call.value.values, out.shape), call.fmt)
        return super().deliver(out, call)


@fault("own_memory", "`cache.setdefault(values, out)` is returned; return a copy", family="state")
class AnswerHandedOutTwice(Kernel):
    """Two equal calls get one and the same array, not a copy each."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        known = self.__dict__.setdefault("known", {})
        return known.setdefault((answer.shape, call.fmt.name, answer.values.tobytes()), answer)
