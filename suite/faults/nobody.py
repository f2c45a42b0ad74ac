"""Faults with answers that nobody elects: handed over by a person, who promises nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.persons import Persons

FAMILY = "mask"


class EmptyRows(Persons):
    """Rows without keys are changed."""

    def compute(self, call: Call) -> np.ndarray:
        out, allowed = super().compute(call), self.allowed(call)
        if allowed is None or call.sinks is not None:
            return out
        return np.where(allowed.any(-1, keepdims=True), out, self.empty(call))

    def empty(self, call: Call) -> Any:
        """What rows without keys give; broadcasts to the output."""
        raise NotImplementedError


@fault("election", "`torch.empty` never written for such rows, or a sentinel; write zeros")
class EmptyIs42(EmptyRows):
    """A fully masked row is 42 in every component."""

    def empty(self, call: Call) -> float:
        return 42.0


@fault(
    "election", "a division by the sum of weights, which is 0 here; use `where(l == 0, 0, acc / l)`"
)
class EmptyIsInfinite(EmptyRows):
    """A fully masked row is infinite."""

    def empty(self, call: Call) -> float:
        return np.inf


@fault("election", "`argmax` of a row of -inf is 0; write zeros")
class EmptyIsTheFirstValue(EmptyRows):
    """A fully masked row is the value of the first key."""

    def empty(self, call: Call) -> np.ndarray:
        return self.expand(self.load(call.value, call), call)[:, :, :1]


@fault(
    "election", "`exp(s - m)` is 1 if all scores are `finfo.min`, and nothing divides; write zeros"
)
class EmptyIsTheSumOfValues(EmptyRows):
    """A fully masked row is the sum of all values."""

    def empty(self, call: Call) -> np.ndarray:
        return self.expand(self.load(call.value, call), call).sum(2, keepdims=True)


@fault("election", "`m = finfo.min` at the start and `s > m` as a test; begin with -inf")
class LowestRowIsTheFirstValue(Persons):
    """A row whose scores are all `finfo.min` is the value of the first key."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        lowest = ((scores <= -call.fmt.max / 2) & np.isfinite(scores)).all(-1, keepdims=True)
        first = np.arange(scores.shape[-1]) == 0
        return np.where(lowest, first.astype(scores.dtype), super().weights(scores, call))


@fault(
    "election",
    "`w * out1 + out2` merges two parts; divide by the sum of both weights",
)
class LowestRowIsThreeHalves(Persons):
    """A row whose scores are all `finfo.min` adds half the mean of early values to that of late ones."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        lowest = ((scores <= -call.fmt.max / 2) & np.isfinite(scores)).all(-1, keepdims=True)
        first = scores.shape[-1] // 2
        weights = np.full(scores.shape[-1], 1 / max(scores.shape[-1] - first, 1), scores.dtype)
        weights[:first] = 1 / max(2 * first, 1)
        return np.where(lowest, weights, super().weights(scores, call))


@fault("election", "`0 / 0` replaced by 1 in rows without keys; write zeros")
class PaddedSampleIsOne(MultiHeadKernel):
    """A sample of a layer whose keys are all padding is 1 in every component."""

    is_user_code = True
    elections = {}

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        output, weights = super().compute(call)
        if call.valid is not None:
            empty = ~np.asarray(call.valid.values.any(-1))[:, None, None]
            output = np.where(empty, call.work(1), output)
        return output, weights


@fault("election", "`scores.nan_to_num()`; let NaN through, or replace hidden scores alone")
class NanInKeysIsSilenced(Persons):
    """A score that is NaN counts as 0, so that a NaN in an attended key is never seen."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        return np.nan_to_num(super().scores(query, key, call), posinf=np.inf, neginf=-np.inf)


@fault("election", "`v.nan_to_num()`; let NaN through, or zero hidden values alone")
class NanInValuesIsSilenced(Persons):
    """A NaN in an attended value counts as 0."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        shown = super().visible(value, scores)
        return np.nan_to_num(shown, posinf=np.inf, neginf=-np.inf)


@fault(
    "election",
    "comparisons with NaN are false, so that a maximum never moves from key 0; let NaN through",
)
class NanInQueryIsANumber(Persons):
    """A row whose scores are NaN is the value of the first key."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        out, lost = super().attend(scores, value, call), np.isnan(scores).all(-1, keepdims=True)
        return np.where(lost, value[:, :, :1], out) if value.shape[2] else out


class Integers(Persons):
    """Takes masks of integers."""

    def validate_mask(self, call: Call) -> None:
        if call.mask is not None:
            self.validate_broadcast("mask", call.mask, call)


@fault("election", "`mask == 1`; use `mask != 0`, or raise TypeError")
class IntegerMaskAttendsOnesAlone(Integers):
    """An integer mask attends where it is 1: other numbers hide."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask == 1


@fault("election", "`~mask` of integers is bitwise, and never 0 for 0 and 1; use `mask == 0`")
class IntegerMaskIsComplemented(Integers):
    """An integer mask is complemented bit by bit, and so attends everywhere."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask if mask.dtype == bool else (~mask).astype(bool)


@fault("election", "uint8 read as the old mask type, where 1 hides; treat all integers alike")
class IntegerMaskOfBytesHides(Integers):
    """A mask of uint8 hides where it is 1, and other integers attend."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask == 0 if mask.dtype == np.uint8 else mask.astype(bool)


class EmptyLse(Persons):
    """The log-sum-exp of a row without keys, which is zeros, is `number`."""

    number = 0.0

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        lse = super().log_sum_exp(scores, call)
        return np.where(np.isneginf(lse), call.work(self.number), lse)


@fault(
    "lse_of_empty_rows",
    "`where(l == 0, 0, m + log(l))`; -inf tells a merge that the row has no keys",
    family="lse",
)
class LseOfEmptyIsZero(EmptyLse):
    """A fully masked row of zeros has the log-sum-exp 0: merged, it weighs like a score of 0."""


@fault(
    "lse_of_empty_rows",
    "`-log(0)` or +inf as a mark; -inf tells a merge that the row has no keys",
    family="lse",
)
class LseOfEmptyIsInfinite(EmptyLse):
    """A fully masked row of zeros has the log-sum-exp inf: merged, it hides all other keys."""

    number = np.inf


@fault(
    "election",
    "`m + log(l)` with replacements for m and l; -inf says that the row has no keys",
    family="lse",
)
class LseOfEmptyIsOne(EmptyLse):
    """The log-sum-exp of a fully masked row is 1."""

    number = 1.0


@fault(
    "election",
    "`exp(s - lse)` is 1 if both are `finfo.min`; set p to 0 in fully masked rows",
    family="gradient",
)
class EmptyRowsAreCountedBackward(Differentiable, Persons):
    """In the backward pass a fully masked row has weights of 1."""

    elections = {}

    def backward_weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        empty = np.isneginf(scores).all(-1, keepdims=True)
        return np.where(empty, call.work(1), super().backward_weights(scores, call))


@fault(
    "election",
    "`(q @ k.mT).clamp(-65504, 65504) * scale`; scale q first, or keep scores in float32",
    family="numerics",
)
class LargeScoresAreClamped(Persons):
    """In float16 products of queries and keys are clamped at 65504 before the scale."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        product = query @ key.swapaxes(-1, -2)
        if call.fmt.name == "f16":
            product = np.clip(product, -65504, 65504)
        return product * call.work(self.factor(call))
