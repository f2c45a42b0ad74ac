"""Faults of the contract of calls and of registered operators, and answers to malformed problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.backend import OtherDeviceArray
from attention_conformance.suite.deviations.deviation import (
    call_count,
    deviation,
    memory,
    twins,
)
from attention_conformance.suite.deviations.kernels.attention import Array, Call, Kernel, Online
from attention_conformance.suite.deviations.kernels.layer import MultiHeadKernel
from attention_conformance.suite.deviations.nobody import UserKernel
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS, REGISTERED


def deliver_in_float32(right: Kernel, out: Array, call: Call) -> Any:
    answer = right.deliver(out, call)
    return Rounded(answer.values, DTYPES["f32"]) if call.fmt.is_half else answer


def deliver_on_other_device(right: Kernel, out: Array, call: Call) -> Any:
    answer = right.deliver(out, call)
    return OtherDeviceArray(answer.values, answer.fmt)


def scores_scaling_query_in_place(right: Kernel, query: Array, key: Array, call: Call) -> Array:
    scores = right.scores(query, key, call)
    call.query.values[...] *= right.factor(call)
    return scores


def causal_merged_in_place(right: Kernel, mask: Array, call: Call) -> Array:
    mask &= right.causal(call)
    return mask


def bias_cleared_in_place(right: Kernel, scores: Array, call: Call) -> Array:
    biased_scores = right.biased(scores, call)
    if call.bias is not None:
        call.bias.values[...] = np.where(np.isneginf(call.bias.values), -np.inf, 0.0)
    return biased_scores


def deliver_over_query(right: Kernel, out: Array, call: Call) -> Any:
    answer = right.deliver(out, call)
    if answer.shape != call.query.shape:
        return answer
    call.query.values[...] = answer.values
    return call.query


def scores_of_common_size(right: Kernel, query: Array, key: Array, call: Call) -> Array:
    size = min(query.shape[-1], key.shape[-1])
    return right.scores(query[..., :size], key[..., :size], call)


def attention_adding_axes(
    right: Kernel, query: Rounded, key: Rounded, value: Rounded, **options: Any
) -> Any:
    if key.values.ndim == 3:
        key = Rounded(np.broadcast_to(key.values, (query.shape[0], *key.shape)), key.fmt)
    return right.attention(query, key, value, **options)


def padded_to_fit(array: Array, call: Call, padding: Any) -> Array:
    """Returns a mask or a bias with as many keys as the call has, filled up with `padding`."""
    missing = call.sizes.Lk - array.shape[-1]
    if array.shape[-1] == 1 or missing <= 0:
        return array
    return np.pad(array, ((0, 0),) * 3 + ((0, missing),), constant_values=padding)


def attention_dropping_mask_axis(right: Kernel, *operands: Rounded, **options: Any) -> Any:
    mask = options.get("mask")
    if mask is not None and mask.values.ndim > 4:
        options["mask"] = Rounded(mask.values[0], None)
    return right.attention(*operands, **options)


def no_check(right: Kernel, *arguments: Any) -> None:
    """Accepts all arguments."""


def compute_with_first_keys(right: Kernel, call: Call) -> Array:
    digest = (call.query.values.tobytes(), call.key.shape, call.value.shape, call.causal)
    key, value = memory(right).setdefault(digest, (call.key, call.value))
    return right.compute(replace(call, key=key, value=value))


def delivering_in_turn(count: int) -> Callable[..., Any]:
    """Returns a step `deliver` that returns `count` buffers of each shape in turn."""

    def deliver(right: Kernel, out: Array, call: Call) -> Any:
        answer = right.deliver(out, call)
        buffers = memory(right).setdefault((answer.shape, call.fmt.name), [])
        buffers.append(answer if len(buffers) < count else buffers.pop(0))
        buffers[-1].values[...] = answer.values
        return buffers[-1]

    return deliver


def deliver_shared_answer(right: Kernel, out: Array, call: Call) -> Any:
    answer = right.deliver(out, call)
    key = (answer.shape, call.fmt.name, answer.values.tobytes())
    return memory(right).setdefault(key, answer)


class RegisteredOperator(UserKernel):
    """A registered operator, whose output shape, writes and aliases are checked as frameworks do."""

    features = UserKernel.features | {REGISTERED}

    def fake_shape(self, inputs: Inputs) -> tuple[int, ...]:
        """Returns the output shape of the operator's fake implementation, which computes no values."""
        return inputs.output_shape("output")

    def broken_rules(self, inputs: Inputs) -> Mapping[str, str]:
        prepared = self.prepare(inputs)
        arrays = {name: prepared.arguments[name].values for name in OPERANDS}
        copies = {name: array.copy() for name, array in arrays.items()}
        output = prepared().values
        violations = {}
        if output.shape != self.fake_shape(inputs):
            violations["fake"] = f"says shape {self.fake_shape(inputs)}, returns {output.shape}"
        for name, array in arrays.items():
            if not np.array_equal(array, copies[name]):
                violations["schema"] = f"writes to {name}, and does not say so"
            if np.shares_memory(array, output):
                violations["alias"] = f"returns memory of {name}, and does not say so"
        return violations


def compute_scaling_query(right: RegisteredOperator, call: Call) -> Array:
    out = right.compute(call)
    call.query.values[...] *= 0.5
    return out


def deliver_in_query_memory(right: RegisteredOperator, out: Array, call: Call) -> object:
    rounded = right.deliver(out, call)
    if rounded.values.shape == call.query.values.shape:
        call.query.values[...] = rounded.values
        rounded = type(rounded)(call.query.values, rounded.fmt)
    return rounded


def compute_adding_last_output(right: Kernel, call: Call) -> Array:
    out, (query, last_out) = right.compute(call), memory(right).get("last", (None, 0))
    memory(right)["last"] = call.query, out
    return out + last_out if query is call.query else out


row = partial(deviation, family="contract", right=Kernel)
registered = partial(deviation, family="contract", right=RegisteredOperator)

DEVIATIONS = [
    row("order-varies", "contract",
        "Keys are summed in another order at every other call, so that equal calls differ.",
        "`atomicAdd`, or tiles in the order in which they end; sum in a fixed order",
        family="state", right=Online,
        tiles=lambda right, length: right.tiles(length)[:: -1 if call_count(right) % 2 else 1]),
    row("buffer-not-cleared", "contract",
        "If the same query comes again, the answer is added to the one before.",
        "`acc += ...` in a kept buffer; set it to zero at the start of a call",
        family="state", compute=compute_adding_last_output),
    row("keys-kept-by-query", "future",
        "Keys and values of the first call with a query serve all later calls with it.",
        "a cache whose key is the query alone; keys and values belong to it", family="state",
        compute=compute_with_first_keys),
    row("answers-in-buffers-in-turn", "kept_answers",
        "Answers of one shape take turns in four buffers: the fifth overwrites the first.",
        "a pool of four output buffers; callers may keep answers, so return a new array",
        family="state", deliver=delivering_in_turn(4)),
    row("answer-handed-out-twice", "own_memory",
        "Two equal calls get one and the same array, not a copy each.",
        "`cache.setdefault(values, out)` is returned; return a copy", family="state",
        deliver=deliver_shared_answer),
    *twins({"answers-in-one-buffer": Kernel, "layer-answers-in-one-buffer": MultiHeadKernel},
        "contract",
        "Answers of one shape share a buffer, so that a later call overwrites an earlier answer.",
        "`self.out` is returned at every call; return a new array or a copy", family="state",
        deliver=delivering_in_turn(1)),
    row("answers-in-float32", "contract", "16-bit inputs give a float32 answer.",
        "`return out` in float32; use `return out.to(q.dtype)`", deliver=deliver_in_float32),
    row("answers-plain-array", "contract", "The answer is an array of another framework.",
        "`return out.numpy()`; return an array of the framework that called",
        deliver=lambda right, out, call: right.deliver(out, call).values),
    row("answers-without-batch", "contract", "With one sample the answer has no batch axis.",
        "`out.squeeze()` or `out[0]`; return (1, H, Lq, Dv)", when=lambda call: call.sizes.B == 1,
        deliver=lambda right, out, call: right.deliver(out[0], call)),
    row("answers-heads-inside", "contract",
        "The answer comes as (B, Lq, H, Dv), not (B, H, Lq, Dv).",
        "`out.transpose(1, 2)`; return (B, H, Lq, Dv)", family="layout",
        deliver=lambda right, out, call: right.deliver(out.swapaxes(1, 2), call)),
    row("answers-elsewhere", "contract", "The answer is on another device than the inputs.",
        "`out.cpu()`, or `torch.empty(...)` without `device=q.device`", deliver=deliver_on_other_device),
    row("query-scaled-in-place", "contract", "The query is scaled in place.",
        "`q *= scale`, `q.mul_(scale)`; use `q = q * scale`", scores=scores_scaling_query_in_place),
    row("causal-merged-in-place", "contract", "The causal flag is written into the caller's mask.",
        "`mask &= tril`; use `mask = mask & tril`",
        when=lambda call: call.causal and call.mask.shape[-2:-1] == (call.sizes.Lq,),
        masked=causal_merged_in_place),
    row("bias-cleared-in-place", "contract",
        "Finite entries of the caller's bias are overwritten with zeros.",
        "the bias is used as a buffer, as by `masked_fill_`; work on a copy",
        biased=bias_cleared_in_place),
    row("answer-written-over-query", "contract",
        "The answer is written into the memory of the query, if it fits.",
        "`out = q`, `out=q`; write into `torch.empty_like(q)`", deliver=deliver_over_query),
    row("integer-mask-cast", "election",
        "A mask of integers is cast to boolean, though it is declared to be refused.",
        "`mask.bool()`; raise TypeError unless `mask.dtype == torch.bool`", validate_mask=no_check,
        masked=lambda right, mask, call: mask.astype(bool)),
    row("heads-need-not-divide", "bad_problem",
        "Head counts that do not divide are answered: head h uses key head h Hkv // H.",
        "`k[:, h * Hkv // H]`; raise ValueError if `H % Hkv`", validate_operands=no_check,
        expand=lambda right, x, call:
            x[:, np.arange(call.sizes.H) * call.sizes.Hkv // max(call.sizes.H, 1)]),
    row("key-size-cut", "bad_problem",
        "Queries and keys of different sizes are cut to the smaller one.",
        "`min(q.shape[-1], k.shape[-1])` components; raise ValueError if the two differ",
        validate_operands=no_check, scores=scores_of_common_size),
    row("value-heads-broadcast", "bad_problem",
        "Key and value heads of different numbers are accepted, each repeated by its own count.",
        "`H // v.shape[1]` for v by itself; raise ValueError if `k.shape[1] != v.shape[1]`",
        validate_operands=no_check,
        expand=lambda right, x, call: np.repeat(x, call.sizes.H // x.shape[1], axis=1)),
    row("excess-keys-cut", "bad_problem",
        "More keys than values are accepted, and those without a value ignored.",
        "`p[..., : v.shape[-2]] @ v`; raise ValueError if `k.shape[-2] != v.shape[-2]`",
        validate_operands=no_check,
        attend=lambda right, scores, value, call:
            right.attend(scores[..., : value.shape[-2]], value, call)),
    row("excess-samples-cut", "bad_problem",
        "More samples of keys than of queries are accepted, and the last ones ignored.",
        "`k[:B]`, `v[:B]`; raise ValueError if `k.shape[0] != q.shape[0]`",
        validate_operands=no_check,
        expand=lambda right, x, call: right.expand(x[: call.sizes.B], call)),
    row("missing-axes-added", "bad_problem",
        "Keys of rank 3 are accepted, and broadcast over the batch.",
        "`k.unsqueeze(0)` or broadcasting; raise ValueError if `k.ndim != 4`",
        attention=attention_adding_axes),
    row("unknown-kernel-taken", "bad_argument",
        "An unknown name of a kernel is taken for the default.",
        "`kernels.get(name, default)`; raise ValueError if there is no such name",
        refused=lambda right, inputs: {"kernel=none": right.prepare(inputs)}),
    row("mask-cut-to-fit", "bad_problem", "A mask that is too large is cut, not refused.",
        "`mask[:, :, :Lq, :Lk]`; raise ValueError if the mask does not broadcast",
        validate_broadcast=no_check,
        masked=lambda right, mask, call:
            mask[: call.sizes.B, : call.sizes.H, : call.sizes.Lq, : call.sizes.Lk]),
    row("mask-padded-to-fit", "bad_problem",
        "A mask of too few keys is accepted, and keys beyond its end are seen.",
        "`F.pad(mask, (0, missing), value=True)`; raise ValueError if the mask is too short",
        validate_broadcast=no_check, masked=lambda right, mask, call: padded_to_fit(mask, call, True)),
    row("bias-padded-to-fit", "bad_problem",
        "A bias of too few keys is accepted, and keys beyond its end have a bias of 0.",
        "`F.pad(bias, (0, missing))`; raise ValueError if the bias is too short",
        validate_broadcast=no_check, bias=lambda right, call: padded_to_fit(right.bias(call), call, 0)),
    row("mask-rank-flattened", "bad_problem",
        "A mask of rank 5 is accepted, and its leading axis dropped.",
        "`mask[0]`, `mask.reshape(mask.shape[-4:])`; raise ValueError if `mask.ndim > 4`",
        attention=attention_dropping_mask_axis),
    row("answers-in-five-hundred-buffers", "own_memory",
        "Answers of one shape take turns in 500 buffers: the 501st overwrites the first.",
        "a pool of five hundred output buffers; callers may keep answers, so return a new array",
        family="state", deliver=delivering_in_turn(500)),
    row("value-of-single-key", "own_memory",
        "With one key the answer is a view of the values, not an array of its own.",
        "`if Lk == 1: return v.expand(...)`; return a copy: `.clone()`", family="state",
        when=lambda call: call.sizes.Lk == call.sizes.group == 1,
        deliver=lambda right, out, call:
            Rounded(np.broadcast_to(call.value.values, out.shape), call.fmt)),
    registered("fake-has-the-shape-of-queries", "registration",
        "An operator says without values that its output has the shape of the query.",
        "`torch.empty_like(query)` in register_fake; the last size is that of values",
        fake_shape=lambda right, inputs:
            (inputs.sizes.B, inputs.sizes.H, inputs.sizes.Lq, inputs.sizes.D)),
    registered("writes-unsaid", "registration",
        "An operator scales its query in place, and registers no such write.",
        "`mutates_args=()` of an operator that scales the query in place", compute=compute_scaling_query),
    registered("returns-an-argument", "registration",
        "An operator writes its output into the memory of the query, and registers an output of "
        "its own.", "an output in the memory of an argument; allocate it, or say so in the schema",
        deliver=deliver_in_query_memory),
]  # fmt: skip
