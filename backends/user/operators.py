"""A user's function of an operator as an implementation; docs/operators lists its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

import numpy as np

from attention_conformance.backends.binder import Binder, Parameter
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.masks import Call, masked_arrays
from attention_conformance.backends.memory import packed_arrays
from attention_conformance.backends.operators import CALL_ARRAYS
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.backends.user.function import UserCallable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import CODES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operator import Operator
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

Keyword = Parameter[Call]
"""A keyword of a user's function of an operator."""


def rotation(call: Call) -> Rotation:
    """Returns the rotation of the case."""
    return Rotation.of(call.inputs.case, call.inputs.sizes.D)


def split_causal_part(inputs: Inputs) -> tuple[bool, Any]:
    """Returns True if a causal flag aligned at the last key can pass a part of the mask, and the other
    parts."""
    return latent.split_causal(inputs.mask, inputs.form, inputs.sizes)


def array_keyword(name: str, *features: str) -> Keyword:
    """Returns the parameter `name` of a user's function, which is passed the inputs' array of that name,
    or None if they have none. `features`: what this parameter makes possible; a function without any
    parameter for a feature lacks it, and cases that need it are unsupported."""
    return Keyword(name, features, lambda call: call.inputs.arrays.get(name))


def longest_of(name: str, lengths: str) -> Keyword:
    """Returns the parameter that is passed the largest number of the inputs' array `lengths`."""
    return Keyword(name, value=lambda call: int(call.inputs.arrays[lengths].max(initial=0)))


LONGEST = longest_of("max_seqlen_q", "query_lengths"), longest_of("max_seqlen_k", "key_lengths")

SCALES = (
    Keyword("scale", ("scale",), lambda call: call.inputs.scale),
    Keyword("softmax_scale", ("scale",), lambda call: call.inputs.scale, unless="scale"),
)
"""The scale, under the two names that libraries use."""

LAYOUT = Keyword("kv_layout", ("heads-before-slots",), lambda call: call.option("layout").upper())
"""The order of slots and heads in a page, "NHD" or "HND"."""

CAUSAL = Keyword("causal", ("causal",), lambda call: call.option("alignment") == "causal")

TILES = Keyword(
    "tile", ("scales-of-tiles",), lambda call: TILE if call.option("scales") == "pertile" else None
)
"""The number of components that share a scale; None if scales broadcast."""

ZEROS = array_keyword("key_zero", "zero-points"), array_keyword("value_zero", "zero-points")


def window_sides(call: Call) -> tuple[int, int] | None:
    """Returns (left, right), the numbers of attended keys before and after the query's position. None
    without a window."""
    left = call.option("left")
    return None if left is None else (left, 0)


def code_dtype(call: Call) -> Any:
    """Returns the framework's dtype of the case's codes, or the format's name if arrays have no
    `dtype`."""
    name = call.option("codes")
    return getattr(call.backend.array(np.zeros(1), CODES[name]), "dtype", name)


@dataclass(frozen=True)
class OperatorSignature:
    """The signature of users' functions of an operator, as a row. In the functions below, `function` is
    the `UserOperator` with this row.

    - `operator`, and the supported `features`
    - `arrays`: the names of the positional arrays; `table`: the keywords
    - `arguments(backend, inputs, keywords)`: all arrays of a call by name, the positional ones first. Of
      the others, `mask` and those that are in `keywords` are passed
    - `answer(called, arrays, keywords)`: the outputs of the user's function `called`
    - `observed(function)`: features that the function lacks by a trial call, with the reason
    - `without_flags(function, case)`: the case without the parts of the mask that the function's flags
      pass
    """

    operator: Operator
    arrays: tuple[str, ...]
    table: tuple[Keyword, ...]
    features: frozenset[str]
    arguments: Callable[..., dict[str, Any]] = lambda backend, inputs, keywords: CALL_ARRAYS[
        inputs.operator.name
    ](backend, inputs)
    answer: Callable[..., Any] = lambda called, arrays, keywords: called(*arrays, **keywords)
    observed: Callable[[UserOperator], dict[str, str]] = lambda function: {}
    without_flags: Callable[[UserOperator, Case], Case] = lambda function, case: case


class UserOperator(UserCallable):
    """A user's function of an operator. Arrays are positional, all other parameters are keywords."""

    def __init__(
        self,
        backend: Backend,
        function: Callable[..., Any],
        name: str,
        claims: Claims,
        row: OperatorSignature,
    ) -> None:
        self.row, self.operator = row, row.operator
        super().__init__(backend, function, name, claims)
        self.declared = self.declared.refusing(row.observed(self))

    def bound(self, function: Callable[..., Any], name: str) -> Binder[Call]:
        return Binder.of(function, name, self.row.table, self.row.arrays)

    def declaration(self, claims: Claims) -> Declared:
        return claims.declared(self.row.features, refusals=self.binder.lacking)

    def unsupported(self, case: AnyCase) -> str | None:
        return super().unsupported(
            self.row.without_flags(self, case) if isinstance(case, Case) else case
        )

    def call_of(self, inputs: Inputs) -> PreparedCall:
        bound = self.binder.bind(Call(self.backend, inputs), inputs.needs)
        arrays = self.row.arguments(self.backend, inputs, bound)
        positional = [*arrays][: len(self.row.arrays)]
        as_keywords = [n for n in arrays if n in {*bound, "mask"} and n not in positional]
        passed = {name: arrays[name] for name in (*positional, *as_keywords)}
        options = {name: value for name, value in bound.items() if name not in passed}

        def call(**arrays: Any) -> Any:
            places = [arrays.pop(name) for name in positional]
            return self.row.answer(self.called, places, arrays | options)

        constants = tuple((name, repr(value)) for name, value in options.items())
        return PreparedCall(call, passed, inputs.outputs, constants=constants)

    def trial_call(self, case: str) -> tuple[Inputs, np.ndarray | None]:
        """Returns the inputs of a case in the function's first dtype, and the function's answer as NumPy
        array. `case` is the id with {dt} for the dtype. The answer is None if the call raises; the cells
        report the error."""
        inputs = draw(Case.parse(case.format(dt=self.declared.dtypes[0])))
        try:
            return inputs, self.backend.to_numpy(self.prepare(inputs)())
        except Exception:
            return inputs, None


def with_int32_offsets(backend: Backend, inputs: Inputs, keywords: Any) -> dict[str, Any]:
    """Returns the arrays of packed attention, with int32 cumulative lengths as in libraries."""
    return packed_arrays(backend, inputs, ("cu_seqlens_q", "cu_seqlens_k"), np.int32)


def lacking_bottom_right(function: UserOperator) -> dict[str, str]:
    """Returns the feature "causal-bottom-right" with a reason if the causal flag is aligned at the first
    query, or if the trial call raises; else {}. Aligned at the first query, the first query of a segment
    attends only its first key."""
    if "causal" not in function.binder.taken:
        return {}
    inputs, answer = function.trial_call(
        "packed/none/mha/{dt}/b2h2q5k12d8/seg2.3x5.7/causal/integers"
    )
    expected = packed_reference(inputs)
    if answer is not None and (
        answer.shape != expected.shape or np.abs(answer - expected).max() >= 0.1
    ):
        return {}
    return {"causal-bottom-right": "its causal flag is aligned at the first query"}


def packed_reference(inputs: Inputs) -> np.ndarray:
    """Returns packed attention in float64, (Lq, H, Dv), for H = Hkv."""
    scores = np.einsum("qhd,khd->hqk", inputs.query, inputs.key) * inputs.effective_scale
    scores = np.where(packed.hidden_pairs(inputs.case), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khv->qhv", weights / weights.sum(-1, keepdims=True), inputs.value)


PACKED = OperatorSignature(
    packed.PACKED,
    ("query", "key", "value", "cu_seqlens_q", "cu_seqlens_k"),
    (
        *LONGEST,
        replace(
            CAUSAL, features=("causal", "causal-bottom-right"),
            value=lambda call: call.option("alignment") != "all",
        ),
        *SCALES,
    ),
    packed.FEATURES | {"length-arrays"},
    with_int32_offsets,
    observed=lacking_bottom_right,
)  # fmt: skip
"""Packed attention, (Lq, H, Dv). With more keys than queries `causal` is aligned at the last query,
unless a trial call shows that it is aligned at the first one."""

PAGED = OperatorSignature(
    paged_attention.PAGED,
    ("query", "key_cache", "value_cache", "cu_seqlens_q", "seqused_k", "block_table"),
    (
        *LONGEST, CAUSAL, Keyword("window_size", ("window",), window_sides),
        Keyword("softcap", ("softcap",), lambda call: call.option("softcap")), LAYOUT, *SCALES,
    ),
    paged_attention.FEATURES | {"length-arrays"},
)  # fmt: skip
"""Paged attention, (Lq, H, Dv)."""


def pools_after_write(
    called: Callable[..., Any], arrays: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Returns both pools after the user's function wrote tokens: the pools that it returns, or else the
    copies that it wrote into."""
    key, value, *pools, slots = arrays
    # The function may write into copies; frameworks without `clone` never write.
    pools = [pool.clone() if hasattr(pool, "clone") else pool for pool in pools]
    answer = called(key, value, *pools, slots, **keywords)
    return tuple(pools) if answer is None else answer


PAGED_WRITE = OperatorSignature(
    paged_write.PAGED_WRITE,
    ("key", "value", "key_cache", "value_cache", "slot_mapping"),
    (LAYOUT,),
    paged_write.FEATURES,
    answer=pools_after_write,
)
"""Writing into pages. Returns both pools, or None after writing into the pools of the call."""


QUANTIZED = OperatorSignature(
    quantized.QUANTIZED,
    ("query", "key_codes", "value_codes", "key_scale", "value_scale"),
    (
        *ZEROS, array_keyword("key", "new-tokens"), array_keyword("value", "new-tokens"),
        array_keyword("page_table", "pages"), array_keyword("key_lengths"), LAYOUT, TILES, CAUSAL,
        SCALES[0],
    ),
    quantized.FEATURES | {"length-arrays"},
)  # fmt: skip
"""Attention over codes. Returns (B, H, Lq, Dv); with new tokens also the codes of keys and of values."""

QUANTIZED_WRITE = OperatorSignature(
    quantized_write.QUANTIZED_WRITE,
    ("key", "value", "key_scale", "value_scale"),
    (
        *ZEROS,
        TILES,
        Keyword("dtype", ("e4m3-codes", "e5m2-codes"), code_dtype),
        Keyword(
            "bits", ("int4-codes",), lambda call: 4 if call.option("codes") == "int4" else None
        ),
    ),
    quantized_write.FEATURES,
)
"""Quantisation of new tokens. Returns the codes of keys and of values."""


def query_and_position(backend: Backend, inputs: Inputs, keywords: Any) -> dict[str, Any]:
    """Returns the arrays of a rotation. Positions are int32, or float32 if any is no whole number."""
    position = inputs.arrays["position"]
    number_type = np.float32 if (position % 1).any() else np.int32
    return {
        "query": backend.operand(inputs.query, inputs, "bhld"),
        "position": backend.array(position.astype(number_type), None),
    }


def lacking_pairing(function: UserOperator) -> dict[str, str]:
    """Returns the pairing that the function lacks, with the reason: "halves" or "interleaved" by a trial
    call; {} if the function has the parameter `interleaved`."""
    if "interleaved" in function.binder.taken:
        return {}
    lacking = "halves" if follows_interleaved(function) else "interleaved"
    reason = f"the function has no parameter interleaved, and its pairing is not {lacking}"
    return {lacking: reason}


def follows_interleaved(function: UserOperator) -> bool:
    """True if the function rotates pairs of neighbours (2i, 2i + 1), False for pairs of halves (i, i +
    D/2). Rotation preserves the length of a pair, so the pairing with the smaller error of lengths is the
    function's."""
    inputs, answer = function.trial_call("rotary/none/mha/{dt}/b2h3q17k1d16")
    if answer is None or answer.shape != inputs.query.shape:
        return False
    shape = answer.shape[:-1]

    def length_error(split: tuple[int, ...], axis: int) -> float:
        lengths = (np.linalg.norm(x.reshape(split), axis=axis) for x in (answer, inputs.query))
        return float(np.abs(np.subtract(*lengths)).max())

    return length_error((*shape, -1, 2), -1) < length_error((*shape, 2, -1), -2)


ROTATION = OperatorSignature(
    rotary.ROTARY,
    ("query", "position"),
    (
        Keyword("base", ("rotary-base",), lambda call: rotation(call).base),
        Keyword("interleaved", (), lambda call: rotation(call).interleaved),
        Keyword("rotary_size", ("partial-rotation",), lambda call: rotation(call).size),
        Keyword(
            "scaling", ("rotary-scaling",), lambda call: rotary.scaling_parameters(rotation(call)),
            passes_none=True,
        ),
        Keyword(
            "max_positions", ("position-table",), lambda call: rotary.table_length(call.inputs.case)
        ),
    ),
    rotary.FEATURES | {"position-table"},
    query_and_position,
    observed=lacking_pairing,
)  # fmt: skip
"""Rotation of queries. A function without the parameter `interleaved` is judged by the pairing that a
trial call shows."""


def without_causal_part(function: UserOperator, case: Case) -> Case:
    """Returns the case without the causal part of its mask if the function's flag passes it. Such a case
    needs no mask array."""
    has_causal_part, parts = latent.split_causal(case.mask, case.form, case.sizes)
    if "causal" not in function.binder.taken or not has_causal_part:
        return case
    return replace(case, mask=reduce(and_, parts) if parts else None)


def latent_arguments(
    backend: Backend, inputs: Inputs, keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the array arguments of latent attention. The mask lacks its causal part if the function has
    the parameter `causal`. No mask array is passed if `key_lengths` already masks the same keys."""
    has_causal_part, other_parts = split_causal_part(inputs)
    passes_flag = has_causal_part and "causal" in keywords
    masked = with_mask_by_position(inputs)
    has_missing_keys = masked is not inputs
    if has_missing_keys and (passes_flag or inputs.dense_mask is None):
        masked = replace(masked, mask_array=None)  # `key_lengths` masks the same keys
    return masked_arrays(backend, masked, other_parts if passes_flag else None)


LATENT = OperatorSignature(
    latent.LATENT,
    tuple(latent.AXES),
    (
        Keyword("causal", ("causal",), lambda call: split_causal_part(call.inputs)[0] or None),
        Keyword("mask", ("mask", "mask-array", "causal", "window", "padding")),
        *SCALES, array_keyword("latent_scale", "scales-of-tiles"),
        array_keyword("page_table", "pages"), array_keyword("key_lengths"),
        array_keyword("new_latent", "new-latents"), array_keyword("new_key_rope", "new-latents"),
        Keyword("return_lse", ("lse",), lambda call: "lse" in call.inputs.outputs or None),
    ),
    latent.FEATURES | latent.SERVED | {"length-arrays"},
    latent_arguments,
    without_flags=without_causal_part,
)  # fmt: skip
"""Latent attention, (B, H, Lq, Dv), with `return_lse` also the log-sum-exp, and with new tokens also both
pools. A causal flag is aligned at the last key."""

MERGE = OperatorSignature(merge.MERGE, ("partial_output", "partial_lse"), (), merge.FEATURES)
"""A merge of partial outputs. Returns output and log-sum-exp."""

SIGNATURES = {
    row.operator: row
    for row in (
        PACKED, PAGED, PAGED_WRITE, QUANTIZED, QUANTIZED_WRITE, ROTATION, LATENT, MERGE,
    )
}  # fmt: skip
"""The signatures by operator."""
