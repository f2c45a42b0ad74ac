"""Faults that break the contract of a call: types, state, inputs; and those that answer bad problems."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.backend import Elsewhere
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel, Online, rank4
from attention_conformance.suite.spec.dtypes import DTYPES

FAMILY = "contract"


def answers_in_float32(right: Kernel, out: np.ndarray, call: Call) -> Any:
    answer = right.deliver(out, call)
    return Rounded(answer.values, DTYPES["f32"]) if call.fmt.is_half else answer


def answers_without_batch(right: Kernel, out: np.ndarray, call: Call) -> Any:
    return right.deliver(out[0] if call.sizes.B == 1 else out, call)


def answers_elsewhere(right: Kernel, out: np.ndarray, call: Call) -> Any:
    answer = right.deliver(out, call)
    return Elsewhere(answer.values, answer.fmt)


def query_scaled_in_place(
    right: Kernel, query: np.ndarray, key: np.ndarray, call: Call
) -> np.ndarray:
    scores = right.scores(query, key, call)
    call.query.values[...] *= right.factor(call)
    return scores


def causal_merged_in_place(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    if call.causal and mask.shape[-2] == call.sizes.Lq:
        mask &= right.causal(call)
    return mask


def bias_cleared_in_place(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    biased_scores = right.biased(scores, call)
    if call.bias is not None:
        call.bias.values[...] = np.where(np.isneginf(call.bias.values), -np.inf, 0.0)
    return biased_scores


def answer_written_over_query(right: Kernel, out: np.ndarray, call: Call) -> Any:
    answer = right.deliver(out, call)
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


def integer_mask_cast_validate_mask(right: Kernel, call: Call) -> None:
    if call.mask is not None:
        right.validate_broadcast("mask", call.mask, call)


class Unchecked(Kernel):
    """Operands are not held against each other; what NumPy refuses is still refused."""

    def validate_operands(self, call: Call) -> None:
        pass


def heads_need_not_divide(right: Unchecked, x: np.ndarray, call: Call) -> np.ndarray:
    return x[:, np.arange(call.sizes.H) * call.sizes.Hkv // max(call.sizes.H, 1)]


def key_size_cut(right: Unchecked, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
    size = min(query.shape[-1], key.shape[-1])
    return right.scores(query[..., :size], key[..., :size], call)


def excess_keys_cut(
    right: Unchecked, scores: np.ndarray, value: np.ndarray, call: Call
) -> np.ndarray:
    return right.attend(scores[..., : value.shape[-2]], value, call)


def missing_axes_added(
    right: Kernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any
) -> Any:
    if key.values.ndim == 3:
        key = Rounded(np.broadcast_to(key.values, (query.shape[0], *key.shape)), key.fmt)
    return right.attention(query, key, value, **rest)


class FitsMasks(Kernel):
    """Masks and biases are made to fit: cut, repeated or padded with True."""

    def validate_broadcast(self, name: str, array: Rounded, call: Call) -> None:
        pass


def mask_cut_to_fit(right: FitsMasks, mask: np.ndarray, call: Call) -> np.ndarray:
    s = call.sizes
    return mask[: s.B, : s.H, : s.Lq, : s.Lk]


def mask_padded_to_fit(right: FitsMasks, mask: np.ndarray, call: Call) -> np.ndarray:
    missing = call.sizes.Lk - mask.shape[-1]
    if mask.shape[-1] == 1 or missing <= 0:
        return mask
    return np.pad(mask, ((0, 0),) * 3 + ((0, missing),), constant_values=True)


def bias_padded_to_fit(right: FitsMasks, array: Rounded, call: Call) -> np.ndarray:
    loaded = right.load(array, call)
    missing = call.sizes.Lk - loaded.shape[-1]
    if array is not call.bias or loaded.shape[-1] == 1 or missing <= 0:
        return loaded
    return np.pad(rank4(loaded), ((0, 0),) * 3 + ((0, missing),))


def mask_rank_flattened(
    right: Kernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any
) -> Any:
    mask = rest.get("mask")
    if mask is not None and mask.values.ndim > 4:
        rest["mask"] = Rounded(mask.values[0], None)
    return right.attention(query, key, value, **rest)


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


def value_of_single_key(right: Kernel, out: np.ndarray, call: Call) -> Any:
    if call.sizes.Lk == 1 and call.sizes.group == 1:
        return Rounded(np.broadcast_to(call.value.values, out.shape), call.fmt)
    return right.deliver(out, call)


@fault("own_memory", "`cache.setdefault(values, out)` is returned; return a copy", family="state")
class AnswerHandedOutTwice(Kernel):
    """Two equal calls get one and the same array, not a copy each."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        known = self.__dict__.setdefault("known", {})
        return known.setdefault((answer.shape, call.fmt.name, answer.values.tobytes()), answer)


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("answers-in-float32", "contract", "16-bit inputs give a float32 answer.",
        "`return out` in float32; use `return out.to(q.dtype)`", deliver=answers_in_float32),
    row("answers-plain-array", "contract", "The answer is an array of another framework.",
        "`return out.numpy()`; return an array of the framework that called",
        deliver=lambda right, out, call: right.deliver(out, call).values),
    row("answers-without-batch", "contract", "With one sample the answer has no batch axis.",
        "`out.squeeze()` or `out[0]`; return (1, H, Lq, Dv)", deliver=answers_without_batch),
    row("answers-heads-inside", "contract",
        "The answer comes as (B, Lq, H, Dv), not (B, H, Lq, Dv).",
        "`out.transpose(1, 2)`; return (B, H, Lq, Dv)", family="layout",
        deliver=lambda right, out, call: right.deliver(out.swapaxes(1, 2), call)),
    row("answers-elsewhere", "contract", "The answer is on another device than the inputs.",
        "`out.cpu()`, or `torch.empty(...)` without `device=q.device`", deliver=answers_elsewhere),
    row("query-scaled-in-place", "contract", "The query is scaled in place.",
        "`q *= scale`, `q.mul_(scale)`; use `q = q * scale`", scores=query_scaled_in_place),
    row("causal-merged-in-place", "contract", "The causal flag is written into the caller's mask.",
        "`mask &= tril`; use `mask = mask & tril`", masked=causal_merged_in_place),
    row("bias-cleared-in-place", "contract",
        "Finite entries of the caller's bias are overwritten with zeros.",
        "the bias is used as a buffer, as by `masked_fill_`; work on a copy",
        biased=bias_cleared_in_place),
    row("answer-written-over-query", "contract",
        "The answer is written into the memory of the query, if it fits.",
        "`out = q`, `out=q`; write into `torch.empty_like(q)`", deliver=answer_written_over_query),
    row("integer-mask-cast", "election",
        "A mask of integers is cast to boolean, though it is declared to be refused.",
        "`mask.bool()`; raise TypeError unless `mask.dtype == torch.bool`",
        validate_mask=integer_mask_cast_validate_mask,
        masked=lambda right, mask, call: mask.astype(bool)),
    row("heads-need-not-divide", "bad_problem",
        "Head counts that do not divide are answered: head h uses key head h Hkv // H.",
        "`k[:, h * Hkv // H]`; raise ValueError if `H % Hkv`", right=Unchecked,
        expand=heads_need_not_divide),
    row("key-size-cut", "bad_problem",
        "Queries and keys of different sizes are cut to the smaller one.",
        "`min(q.shape[-1], k.shape[-1])` components; raise ValueError if the two differ",
        right=Unchecked, scores=key_size_cut),
    row("value-heads-broadcast", "bad_problem",
        "Key and value heads of different numbers are accepted, each repeated by its own count.",
        "`H // v.shape[1]` for v by itself; raise ValueError if `k.shape[1] != v.shape[1]`",
        right=Unchecked,
        expand=lambda right, x, call: np.repeat(x, call.sizes.H // x.shape[1], axis=1)),
    row("excess-keys-cut", "bad_problem",
        "More keys than values are accepted, and those without a value ignored.",
        "`p[..., : v.shape[-2]] @ v`; raise ValueError if `k.shape[-2] != v.shape[-2]`",
        right=Unchecked, attend=excess_keys_cut),
    row("excess-samples-cut", "bad_problem",
        "More samples of keys than of queries are accepted, and the last ones ignored.",
        "`k[:B]`, `v[:B]`; raise ValueError if `k.shape[0] != q.shape[0]`", right=Unchecked,
        expand=lambda right, x, call: right.expand(x[: call.sizes.B], call)),
    row("missing-axes-added", "bad_problem",
        "Keys of rank 3 are accepted, and broadcast over the batch.",
        "`k.unsqueeze(0)` or broadcasting; raise ValueError if `k.ndim != 4`",
        attention=missing_axes_added),
    row("unknown-kernel-taken", "bad_argument",
        "An unknown name of a kernel is taken for the default.",
        "`kernels.get(name, default)`; raise ValueError if there is no such name",
        refused=lambda right, inputs: {"kernel=none": right.prepare(inputs)}),
    row("mask-cut-to-fit", "bad_problem", "A mask that is too large is cut, not refused.",
        "`mask[:, :, :Lq, :Lk]`; raise ValueError if the mask does not broadcast", right=FitsMasks,
        masked=mask_cut_to_fit),
    row("mask-padded-to-fit", "bad_problem",
        "A mask of too few keys is accepted, and keys beyond its end are seen.",
        "`F.pad(mask, (0, missing), value=True)`; raise ValueError if the mask is too short",
        right=FitsMasks, masked=mask_padded_to_fit),
    row("bias-padded-to-fit", "bad_problem",
        "A bias of too few keys is accepted, and keys beyond its end have a bias of 0.",
        "`F.pad(bias, (0, missing))`; raise ValueError if the bias is too short", right=FitsMasks,
        load=bias_padded_to_fit),
    row("mask-rank-flattened", "bad_problem",
        "A mask of rank 5 is accepted, and its leading axis dropped.",
        "`mask[0]`, `mask.reshape(mask.shape[-4:])`; raise ValueError if `mask.ndim > 4`",
        attention=mask_rank_flattened),
    row("answers-in-five-hundred-buffers", "own_memory",
        "Answers of one shape take turns in 500 buffers: the 501st overwrites the first.",
        "a pool of five hundred output buffers; callers may keep answers, so return a new array",
        family="state", right=AnswersInSixteenBuffers, facts={"count": 500}),
    row("value-of-single-key", "own_memory",
        "With one key the answer is a view of the values, not an array of its own.",
        "`if Lk == 1: return v.expand(...)`; return a copy: `.clone()`", family="state",
        deliver=value_of_single_key),
]  # fmt: skip
