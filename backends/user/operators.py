"""A user's function of an operator as an implementation; docs/operators lists its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.masks import Call, masked_arrays
from attention_conformance.backends.memory import segmented
from attention_conformance.backends.operators import CALL_ARRAYS
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.user.function import UserCallable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import CODES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.masks import And
from attention_conformance.suite.spec.operators import (
    latent,
    merge,
    packed,
    paged_write,
    quantized,
    quantized_write,
    rotary,
)
from attention_conformance.suite.spec.operators import paged as paged_attention
from attention_conformance.suite.spec.operators.in_pages import with_mask_by_position
from attention_conformance.suite.spec.operators.rotary import Rotation
from attention_conformance.suite.spec.operators.tiles import TILE


class OperatorCall(Call):
    """The context of a call of an operator, for values of its parameters."""

    @property
    def rotation(self) -> Rotation:
        """The rotation of the case."""
        return Rotation.of(self.inputs.case, self.inputs.sizes.D)

    @property
    def causal_and_rest(self) -> tuple[bool, Any]:
        """True if the mask has a causal part that a flag aligned at the last key can pass, and the mask's
        other parts."""
        return latent.split_causal(self.inputs.mask, self.inputs.form, self.inputs.sizes)


Row = Parameter[OperatorCall]


def array(name: str, *features: str) -> Row:
    """The parameter that is passed the inputs' array of the same name."""
    return Row(name, features, lambda call: call.inputs.arrays.get(name))


def longest(name: str, lengths: str) -> Row:
    """The parameter that is passed the largest of the inputs' array `lengths`."""
    return Row(name, value=lambda call: int(call.inputs.arrays[lengths].max(initial=0)))


LONGEST = longest("max_seqlen_q", "query_lengths"), longest("max_seqlen_k", "key_lengths")

SCALES = (
    Row("scale", ("scale",), lambda call: call.inputs.scale),
    Row("softmax_scale", ("scale",), lambda call: call.inputs.scale, unless="scale"),
)
"""The scale, under the two names that libraries use."""

LAYOUT = Row("kv_layout", ("heads-before-slots",), lambda call: call.option("layout").upper())
"""The order of slots and heads in a page."""

CAUSAL = Row("causal", ("causal",), lambda call: call.option("alignment") == "causal")

TILES = Row(
    "tile", ("scales-of-tiles",), lambda call: TILE if call.option("scales") == "pertile" else None
)
"""The number of components that share a scale; None for scales that broadcast."""

ZEROS = array("key_zero", "zero-points"), array("value_zero", "zero-points")


def window(call: OperatorCall) -> tuple[int, int] | None:
    """(left, right), the numbers of attended keys before and after the query's position; None without a
    window."""
    left = call.option("left")
    return None if left is None else (left, 0)


def code_of(call: OperatorCall) -> Any:
    """The framework's dtype of the case's codes; the format's name if arrays have no `dtype`."""
    name = call.option("codes")
    return getattr(call.backend.array(np.zeros(1), CODES[name]), "dtype", name)


class UserOperator(UserCallable):
    """A user's function of an operator: `arrays` are positional, parameters of `table` are keywords."""

    def call_arrays(self, inputs: Inputs, names: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays of a call: first those by position, then those of the keywords `names`."""
        return CALL_ARRAYS[self.operator.name](self.backend, inputs)

    def answer(self, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """The outputs of the function for positional arrays and keywords."""
        return self.called(*arrays, **keywords)

    def call_of(self, inputs: Inputs) -> PreparedCall:
        bound = self.binder.bind(OperatorCall(self.backend, inputs), inputs.needs)
        passed = self.call_arrays(inputs, bound)
        positional = [*passed][: len(self.arrays)]
        options = {name: value for name, value in bound.items() if name not in passed}

        def call(**arrays: Any) -> Any:
            return self.answer([arrays.pop(name) for name in positional], arrays | options)

        constants = tuple((name, repr(value)) for name, value in options.items())
        return PreparedCall(call, passed, inputs.outputs, constants=constants)

    def trial_call(self, case: str) -> tuple[Inputs, np.ndarray | None]:
        """The inputs of a case in the function's first dtype, and the function's answer; None if the
        function raises, which the cells report."""
        inputs = draw(Case.parse(case.format(dt=self.declared.dtypes[0])))
        try:
            return inputs, self.backend.to_numpy(self.prepare(inputs)())
        except Exception:
            return inputs, None


class UserPacked(UserOperator):
    """Packed attention, (Lq, H, Dv). With more keys than queries `causal` is aligned at the last query,
    unless a trial call shows that it is aligned at the first one."""

    operator = packed.PACKED
    arrays = ("query", "key", "value", "cu_seqlens_q", "cu_seqlens_k")
    table = (
        *LONGEST,
        replace(
            CAUSAL,
            features=("causal", "causal-bottom-right"),
            value=lambda call: call.option("alignment") != "all",
        ),
        *SCALES,
    )
    features = packed.FEATURES | {"length-arrays"}

    def call_arrays(self, inputs: Inputs, names: Mapping[str, Any]) -> dict[str, Any]:
        return segmented(self.backend, inputs, ("cu_seqlens_q", "cu_seqlens_k"), np.int32)

    def observed(self) -> dict[str, str]:
        if "causal" not in self.binder.taken or not self.aligns_first():
            return {}
        return {"causal-bottom-right": "its causal flag is aligned at the first query"}

    def aligns_first(self) -> bool:
        """True if the first query of a causal segment attends its first key alone."""
        inputs, got = self.trial_call("packed/none/mha/{dt}/b2h2q5k12d8/seg2.3x5.7/causal/integers")
        want = packed_reference(inputs)
        return got is None or (got.shape == want.shape and bool(np.abs(got - want).max() < 0.1))


def packed_reference(inputs: Inputs) -> np.ndarray:
    """Packed attention in float64, (Lq, H, Dv), for H = Hkv."""
    scores = np.einsum("qhd,khd->hqk", inputs.query, inputs.key) * inputs.effective_scale
    scores = np.where(packed.hidden_pairs(inputs.case), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khv->qhv", weights / weights.sum(-1, keepdims=True), inputs.value)


class UserPaged(UserOperator):
    """Paged attention, (Lq, H, Dv)."""

    operator = paged_attention.PAGED
    arrays = ("query", "key_cache", "value_cache", "cu_seqlens_q", "seqused_k", "block_table")
    table = (
        *LONGEST,
        CAUSAL,
        Row("window_size", ("window",), window),
        Row("softcap", ("softcap",), lambda call: call.option("softcap")),
        LAYOUT,
        *SCALES,
    )
    features = paged_attention.FEATURES | {"length-arrays"}


class UserPagedWrite(UserOperator):
    """Writing into pages. Returns both pools, or None after writing into the pools of the call."""

    operator = paged_write.PAGED_WRITE
    arrays = ("key", "value", "key_cache", "value_cache", "slot_mapping")
    table = (LAYOUT,)
    features = paged_write.FEATURES

    def answer(self, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        key, value, *pools, slots = arrays
        # The function may write into copies; frameworks without `clone` never write.
        pools = [pool.clone() if hasattr(pool, "clone") else pool for pool in pools]
        answer = self.called(key, value, *pools, slots, **keywords)
        return tuple(pools) if answer is None else answer


class UserOfCodes(UserOperator):
    """A user's function with arrays of codes, which passes further arrays only as keywords it takes."""

    def call_arrays(self, inputs: Inputs, names: Mapping[str, Any]) -> dict[str, Any]:
        arrays = super().call_arrays(inputs, names)
        positional = {name: arrays[name] for name in self.arrays}
        return positional | {name: x for name, x in arrays.items() if name in names}


class UserQuantized(UserOfCodes):
    """Attention over codes. Returns (B, H, Lq, Dv); with new tokens also the codes of keys and of
    values."""

    operator = quantized.QUANTIZED
    arrays = ("query", "key_codes", "value_codes", "key_scale", "value_scale")
    table = (
        *ZEROS,
        array("key", "new-tokens"),
        array("value", "new-tokens"),
        array("page_table", "pages"),
        array("key_lengths"),
        LAYOUT,
        TILES,
        CAUSAL,
        SCALES[0],
    )
    features = quantized.FEATURES | {"length-arrays"}


class UserQuantizedWrite(UserOfCodes):
    """Quantisation of new tokens. Returns the codes of keys and of values."""

    operator = quantized_write.QUANTIZED_WRITE
    arrays = ("key", "value", "key_scale", "value_scale")
    table = (
        *ZEROS,
        TILES,
        Row("dtype", ("e4m3-codes", "e5m2-codes"), code_of),
        Row("bits", ("int4-codes",), lambda call: 4 if call.option("codes") == "int4" else None),
    )
    features = quantized_write.FEATURES


class UserRotation(UserOperator):
    """Rotation of queries. A function without the parameter `interleaved` is judged by the pairing that a
    trial call shows."""

    operator = rotary.ROTARY
    arrays = ("query", "position")
    table = (
        Row("base", ("rotary-base",), lambda call: call.rotation.base),
        Row("interleaved", (), lambda call: call.rotation.interleaved),
        Row("rotary_size", ("partial-rotation",), lambda call: call.rotation.size),
        Row(
            "scaling",
            ("rotary-scaling",),
            lambda call: rotary.scaling_parameters(call.rotation),
            passes_none=True,
        ),
        Row(
            "max_positions", ("position-table",), lambda call: rotary.table_length(call.inputs.case)
        ),
    )
    features = rotary.FEATURES | {"position-table"}

    def call_arrays(self, inputs: Inputs, names: Mapping[str, Any]) -> dict[str, Any]:
        position = inputs.arrays["position"]
        number_type = np.float32 if (position % 1).any() else np.int32
        return {
            "query": self.backend.memory.operand(inputs.query, inputs, "bhld"),
            "position": self.backend.array(position.astype(number_type), None),
        }

    def observed(self) -> dict[str, str]:
        if "interleaved" in self.binder.taken:
            return {}
        lacking = "halves" if self.follows_interleaved() else "interleaved"
        reason = f"the function has no parameter interleaved, and its pairing is not {lacking}"
        return {lacking: reason}

    def follows_interleaved(self) -> bool:
        """True if the function rotates pairs of neighbours (2i, 2i + 1) and not pairs of halves (i, i +
        D/2): rotation of a pair preserves its length, for every angle."""
        inputs, got = self.trial_call("rotary/none/mha/{dt}/b2h3q17k1d16")
        if got is None or got.shape != inputs.query.shape:
            return False
        shape = got.shape[:-1]

        def length_error(split: tuple[int, ...], axis: int) -> float:
            lengths = (np.linalg.norm(x.reshape(split), axis=axis) for x in (got, inputs.query))
            return float(np.abs(np.subtract(*lengths)).max())

        return length_error((*shape, -1, 2), -1) < length_error((*shape, 2, -1), -2)


class UserLatent(UserOperator):
    """Latent attention, (B, H, Lq, Dv), with `return_lse` also the log-sum-exp, and with new tokens also
    both pools. A causal flag is aligned at the last key."""

    operator = latent.LATENT
    arrays = tuple(latent.AXES)
    table = (
        Row("causal", ("causal",), lambda call: call.causal_and_rest[0] or None),
        Row("mask", ("mask", "mask-array", "causal", "window", "padding")),
        *SCALES,
        array("latent_scale", "scales-of-tiles"),
        array("page_table", "pages"),
        array("key_lengths"),
        array("new_latent", "new-latents"),
        array("new_key_rope", "new-latents"),
        Row("return_lse", ("lse",), lambda call: "lse" in call.inputs.outputs or None),
    )
    features = latent.FEATURES | latent.SERVED | {"length-arrays"}

    def unsupported(self, case: AnyCase) -> str | None:
        """See `Implementation.unsupported`. A causal part that a flag passes needs no mask array."""
        if isinstance(case, Case) and "causal" in self.binder.taken:
            has_causal_part, other_parts = latent.split_causal(case.mask, case.form, case.sizes)
            if has_causal_part:
                mask = (
                    And(other_parts)
                    if len(other_parts) > 1
                    else other_parts[0]
                    if other_parts
                    else None
                )
                case = replace(case, mask=mask)
        return super().unsupported(case)

    def call_arrays(self, inputs: Inputs, names: Mapping[str, Any]) -> dict[str, Any]:
        has_causal_part, other_parts = OperatorCall(self.backend, inputs).causal_and_rest
        passes_flag = has_causal_part and "causal" in names
        masked = with_mask_by_position(inputs)
        if masked is not inputs and (passes_flag or inputs.dense_mask is None):
            masked = replace(masked, mask_array=None)  # `key_lengths` hide the same keys
        arrays = masked_arrays(self.backend, masked, other_parts if passes_flag else None)
        positional = [name if name in arrays else f"{name}_codes" for name in self.arrays]
        keywords = [name for name in arrays if name in names or name == "mask"]
        return {name: arrays[name] for name in (*positional, *keywords)}


class UserMerge(UserOperator):
    """A merge of partial outputs. Returns output and log-sum-exp."""

    operator = merge.MERGE
    arrays = ("partial_output", "partial_lse")
    features = merge.FEATURES
