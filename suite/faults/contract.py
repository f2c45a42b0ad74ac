"""Faults that break the contract of a call: types, state, inputs; and those that answer bad problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from backends._numpy import Rounded
from suite.faults.backend import Elsewhere
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel, Online, rank4
from suite.spec.dtypes import DTYPES
from suite.spec.inputs import Inputs


@fault("contract")
class AnswersInFloat32(Kernel):
    """16-bit inputs give a float32 answer."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        return Rounded(answer.values, DTYPES["f32"]) if call.fmt.is_half else answer


@fault("contract")
class AnswersPlainArray(Kernel):
    """The answer is an array of another framework."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return super().deliver(out, call).values


@fault("contract")
class AnswersWithoutBatch(Kernel):
    """With one sample the axis of the batch is dropped."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return super().deliver(out[0] if call.sizes.B == 1 else out, call)


@fault("contract", like="E12")
class AnswersHeadsInside(Kernel):
    """The answer is (B, Lq, H, Dv)."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return super().deliver(out.swapaxes(1, 2), call)


@fault("contract")
class AnswersElsewhere(Kernel):
    """The answer is on another device than the inputs."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        return Elsewhere(answer.values, answer.fmt)


@fault("contract")
class QueryScaledInPlace(Kernel):
    """The query is scaled in place."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        scores = super().scores(query, key, call)
        call.query.values[...] *= self.factor(call)
        return scores


@fault("contract")
class CausalMergedInPlace(Kernel):
    """The causal flag is merged into the mask in place."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        if call.causal and mask.shape[-2] == call.sizes.Lq:
            mask &= self.causal(call)
        return mask


@fault("contract")
class BiasClearedInPlace(Kernel):
    """Finite entries of the bias are overwritten with zeros."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        biased_scores = super().biased(scores, call)
        if call.bias is not None:
            call.bias.values[...] = np.where(np.isneginf(call.bias.values), -np.inf, 0.0)
        return biased_scores


@fault("contract")
class AnswerWrittenOverQuery(Kernel):
    """The answer is written into the query's memory where it fits."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        if answer.shape != call.query.shape:
            return answer
        call.query.values[...] = answer.values
        return call.query


@fault("contract")
class OrderVaries(Online):
    """Tiles of keys are summed in another order at every other call."""

    calls = 0

    def tiles(self, length: int) -> list[slice]:
        self.calls += 1
        return super().tiles(length)[:: -1 if self.calls % 2 else 1]


@fault("contract")
class BufferNotCleared(Kernel):
    """A kept buffer is added to, not overwritten, when the same query comes again."""

    def compute(self, call: Call) -> np.ndarray:
        out, known = super().compute(call), getattr(self, "known", None)
        self.known = (call.query, out)
        return out + known[1] if known and known[0] is call.query else out


@fault("future", like="B28")
class KeysKeptByQuery(Kernel):
    """Keys and values are kept from the first call with a query and serve all later ones."""

    def compute(self, call: Call) -> np.ndarray:
        known = self.__dict__.setdefault("known", {})
        digest = (call.query.values.tobytes(), call.key.shape, call.value.shape, call.causal)
        kept = known.setdefault(digest, (call.key, call.value))
        changed = Call(**{**call.__dict__, "key": kept[0], "value": kept[1]})
        return super().compute(changed)


@fault("election")
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


@fault("bad_problem")
class HeadsNeedNotDivide(Unchecked):
    """Head h uses key head h Hkv // H: head counts that do not divide are answered."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return x[:, np.arange(call.sizes.H) * call.sizes.Hkv // max(call.sizes.H, 1)]


@fault("bad_problem")
class KeySizeCut(Unchecked):
    """Queries and keys of different sizes are cut to the smaller one."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        size = min(query.shape[-1], key.shape[-1])
        return super().scores(query[..., :size], key[..., :size], call)


@fault("bad_problem")
class ValueHeadsBroadcast(Unchecked):
    """Key and value heads are repeated each by their own count."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return np.repeat(x, call.sizes.H // x.shape[1], axis=1)


@fault("bad_problem")
class ExcessKeysCut(Unchecked):
    """Keys without values are not attended."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        return super().attend(scores[..., : value.shape[-2]], value, call)


@fault("bad_problem")
class ExcessSamplesCut(Unchecked):
    """Samples of keys and values beyond the queries' batch are ignored."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return super().expand(x[: call.sizes.B], call)


@fault("bad_problem")
class MissingAxesAdded(Kernel):
    """An operand of rank 3 is broadcast over the batch."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        if key.values.ndim == 3:
            key = Rounded(np.broadcast_to(key.values, (query.shape[0], *key.shape)), key.fmt)
        return super().attention(query, key, value, **rest)


@fault("bad_argument")
class UnknownKernelTaken(Kernel):
    """The name of a kernel that there is none of is taken for the default."""

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        return {"kernel=none": self.prepare(inputs)}


class FitsMasks(Kernel):
    """Masks and biases are made to fit: cut, repeated or padded with True."""

    def validate_broadcast(self, name: str, array: Rounded, call: Call) -> None:
        pass


@fault("bad_problem", like="C23")
class MaskCutToFit(FitsMasks):
    """A mask that is too large is cut to the problem's size."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        return mask[: s.B, : s.H, : s.Lq, : s.Lk]


@fault("bad_problem", like="C23")
class MaskPaddedToFit(FitsMasks):
    """Keys beyond the end of a mask are attended."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        missing = call.sizes.Lk - mask.shape[-1]
        if mask.shape[-1] == 1 or missing <= 0:
            return mask
        return np.pad(mask, ((0, 0),) * 3 + ((0, missing),), constant_values=True)


@fault("bad_problem")
class BiasPaddedToFit(FitsMasks):
    """Keys beyond the end of a bias have a bias of 0."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        missing = call.sizes.Lk - loaded.shape[-1]
        if array is not call.bias or loaded.shape[-1] == 1 or missing <= 0:
            return loaded
        return np.pad(rank4(loaded), ((0, 0),) * 3 + ((0, missing),))


@fault("bad_problem")
class MaskRankFlattened(Kernel):
    """Leading axes of a mask of rank 5 are dropped."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        mask = rest.get("mask")
        if mask is not None and mask.values.ndim > 4:
            rest["mask"] = Rounded(mask.values[0], None)
        return super().attention(query, key, value, **rest)


@fault("contract")
class AnswersInOneBuffer(Kernel):
    """Answers of one shape share a buffer: a later call overwrites an earlier answer."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        known = self.__dict__.setdefault("known", {})
        kept = known.setdefault((answer.shape, call.fmt.name), answer)
        kept.values[...] = answer.values
        return kept


@fault("kept_answers")
class AnswersInBuffersInTurn(Kernel):
    """Answers of one shape take turns in four buffers."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        ring = self.__dict__.setdefault("ring", {}).setdefault((answer.shape, call.fmt.name), [])
        ring.append(answer if len(ring) < 4 else ring.pop(0))
        ring[-1].values[...] = answer.values
        return ring[-1]


@fault("own_memory")
class AnswersInSixteenBuffers(Kernel):
    """Answers of one shape take turns in sixteen buffers."""

    count = 16

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        ring = self.__dict__.setdefault("ring", {}).setdefault((answer.shape, call.fmt.name), [])
        ring.append(answer if len(ring) < self.count else ring.pop(0))
        ring[-1].values[...] = answer.values
        return ring[-1]


@fault("own_memory")
class AnswersInHundredBuffers(AnswersInSixteenBuffers):
    """Answers of one shape take turns in a hundred buffers."""

    count = 100


@fault("own_memory")
class ValueOfSingleKey(Kernel):
    """Where there is one key, the answer is the value itself, expanded along the rows."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        if call.sizes.Lk == 1 and call.sizes.group == 1:
            return Rounded(np.broadcast_to(call.value.values, out.shape), call.fmt)
        return super().deliver(out, call)


@fault("own_memory")
class AnswerHandedOutTwice(Kernel):
    """An answer is kept by the values it is of, and handed out again without a copy."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        known = self.__dict__.setdefault("known", {})
        return known.setdefault((answer.shape, call.fmt.name, answer.values.tobytes()), answer)
