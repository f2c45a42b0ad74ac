"""A user's function of an operator as an implementation; docs/operators says what each is given."""

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
    """A call of an operator."""

    @property
    def rotation(self) -> Rotation:
        """The rotation of the case."""
        return Rotation.of(self.inputs.case, self.inputs.sizes.D)

    @property
    def flagged(self) -> tuple[bool, Any]:
        """True if a causal flag aligned at the last key is a part of the mask, and the other parts."""
        return latent.split_causal(self.inputs.mask, self.inputs.form, self.inputs.sizes)


Row = Parameter[OperatorCall]


def array(name: str, *features: str) -> Row:
    """The parameter of an array of the inputs."""
    return Row(name, features, lambda call: call.inputs.arrays.get(name))


def longest(name: str, lengths: str) -> Row:
    """The parameter of the length of the longest segment."""
    return Row(name, value=lambda call: int(call.inputs.arrays[lengths].max(initial=0)))


LONGEST = longest("max_seqlen_q", "query_lengths"), longest("max_seqlen_k", "key_lengths")

SCALES = (
    Row("scale", ("scale",), lambda call: call.inputs.scale),
    Row("softmax_scale", ("scale",), lambda call: call.inputs.scale, unless="scale"),
)
"""The scale, for which libraries have two names."""

LAYOUT = Row("kv_layout", ("heads-before-slots",), lambda call: call.option("layout").upper())
"""The order of slots and heads in a page."""

CAUSAL = Row("causal", ("causal",), lambda call: call.option("alignment") == "causal")

TILES = Row(
    "tile", ("scales-of-tiles",), lambda call: TILE if call.option("scales") == "pertile" else None
)
"""The number of components that share a scale, of scales that do not broadcast."""

ZEROS = array("key_zero", "zero-points"), array("value_zero", "zero-points")


def window(call: OperatorCall) -> tuple[int, int] | None:
    """(left, right) keys beside a query's own one; None without a window."""
    left = call.option("left")
    return None if left is None else (left, 0)


def code_of(call: OperatorCall) -> Any:
    """The framework's dtype of codes, or its name."""
    name = call.option("codes")
    return getattr(call.backend.array(np.zeros(1), CODES[name]), "dtype", name)


class UserOperator(UserCallable):
    """A user's function that takes `arrays` by position, and keywords of `table`."""

    def call_arrays(self, inputs: Inputs, names: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays of a call: first those by position, then those of the keywords `names`."""
        return CALL_ARRAYS[self.operator.name](self.backend, inputs)

    def answered(self, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """What the function returns."""
        return self.called(*arrays, **keywords)

    def call_of(self, inputs: Inputs) -> PreparedCall:
        bound = self.binder.bind(OperatorCall(self.backend, inputs), inputs.needs)
        passed = self.call_arrays(inputs, bound)
        places = [*passed][: len(self.arrays)]
        own = {name: value for name, value in bound.items() if name not in passed}

        def call(**arrays: Any) -> Any:
            placed = [arrays.pop(name) for name in places]
            return self.answered(placed, arrays | own)

        constants = tuple((name, repr(value)) for name, value in own.items())
        return PreparedCall(call, passed, inputs.outputs, constants=constants)

    def tried(self, case: str) -> tuple[Inputs, np.ndarray | None]:
        """The inputs of a case in a dtype of the function, and the function's answer; None if it raises,
        which the cells report."""
        inputs = draw(Case.parse(case.format(dt=self.declared.dtypes[0])))
        try:
            return inputs, self.backend.to_numpy(self.prepare(inputs)())
        except Exception:
            return inputs, None


class UserPacked(UserOperator):
    """Packed attention, (Lq, H, Dv). With more keys than queries `causal` is aligned at the last query,
    unless it is seen to be aligned at the first one."""

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
        inputs, got = self.tried("packed/none/mha/{dt}/b2h2q5k12d8/seg2.3x5.7/causal/integers")
        want = expected(inputs)
        return got is None or (got.shape == want.shape and bool(np.abs(got - want).max() < 0.1))


def expected(inputs: Inputs) -> np.ndarray:
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
    """Writing into pages: both pools, or None from a function that writes into those of the call."""

    operator = paged_write.PAGED_WRITE
    arrays = ("key", "value", "key_cache", "value_cache", "slot_mapping")
    table = (LAYOUT,)
    features = paged_write.FEATURES

    def answered(self, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        key, value, *pools, slots = arrays
        # The function may write into copies; frameworks without `clone` never write.
        pools = [pool.clone() if hasattr(pool, "clone") else pool for pool in pools]
        answer = self.called(key, value, *pools, slots, **keywords)
        return tuple(pools) if answer is None else answer


class UserOfCodes(UserOperator):
    """A function of codes."""

    def call_arrays(self, inputs: Inputs, names: Mapping[str, Any]) -> dict[str, Any]:
        arrays = super().call_arrays(inputs, names)
        places = {name: arrays[name] for name in self.arrays}
        return places | {name: x for name, x in arrays.items() if name in names}


class UserQuantized(UserOfCodes):
    """Attention over codes, (B, H, Lq, Dv); with new tokens also both arrays of codes."""

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
    """Writing codes: those of keys and of values."""

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
    """The rotated query. A function without `interleaved` is judged in its observed pairing."""

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
        kind = np.float32 if (position % 1).any() else np.int32
        return {
            "query": self.backend.memory.operand(inputs.query, inputs, "bhld"),
            "position": self.backend.array(position.astype(kind), None),
        }

    def observed(self) -> dict[str, str]:
        if "interleaved" in self.binder.taken:
            return {}
        other = "halves" if self.follows_interleaved() else "interleaved"
        return {other: f"the function has no parameter interleaved, and its pairing is not {other}"}

    def follows_interleaved(self) -> bool:
        """True if the function keeps the lengths of neighbours better than those of halves, whatever
        the angles."""
        inputs, got = self.tried("rotary/none/mha/{dt}/b2h3q17k1d16")
        if got is None or got.shape != inputs.query.shape:
            return False
        shape, pair = got.shape[:-1], (got, inputs.query)
        far = [
            np.abs(np.subtract(*(np.linalg.norm(x.reshape(split), axis=axis) for x in pair))).max()
            for split, axis in (((*shape, 2, -1), -2), ((*shape, -1, 2), -1))
        ]
        return bool(far[1] < far[0])


class UserLatent(UserOperator):
    """Latent attention, (B, H, Lq, Dv), with `return_lse` also the log-sum-exp, and with new tokens also
    both pools. A causal flag is aligned at the last key."""

    operator = latent.LATENT
    arrays = tuple(latent.AXES)
    table = (
        Row("causal", ("causal",), lambda call: call.flagged[0] or None),
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
        """As for every function; a mask whose causal part is a flag needs no array for this part."""
        if isinstance(case, Case) and "causal" in self.binder.taken:
            flagged, rest = latent.split_causal(case.mask, case.form, case.sizes)
            if flagged:
                left = And(rest) if len(rest) > 1 else rest[0] if rest else None
                case = replace(case, mask=left)
        return super().unsupported(case)

    def call_arrays(self, inputs: Inputs, names: Mapping[str, Any]) -> dict[str, Any]:
        flagged, rest = OperatorCall(self.backend, inputs).flagged
        flagged = flagged and "causal" in names
        shown = with_mask_by_position(inputs)
        if shown is not inputs and (flagged or inputs.dense_mask is None):
            shown = replace(shown, mask_array=None)  # the lengths say as much
        arrays = masked_arrays(self.backend, shown, rest if flagged else None)
        places = [name if name in arrays else f"{name}_codes" for name in self.arrays]
        more = [name for name in arrays if name in names or name == "mask"]
        return {name: arrays[name] for name in (*places, *more)}


class UserMerge(UserOperator):
    """A merge of partial outputs: output and log-sum-exp."""

    operator = merge.MERGE
    arrays = ("partial_output", "partial_lse")
    features = merge.FEATURES
