"""Faults of layers: projections, heads, scale and softmax, and combinations of options."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import deviation, has_groups, memory
from attention_conformance.suite.deviations.kernels.layer import (
    Array,
    Heads,
    LayerCall,
    MultiHeadKernel,
)
from attention_conformance.suite.deviations.kernels.single import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
)
from attention_conformance.suite.deviations.layer_masks import no_causal
from attention_conformance.suite.deviations.problems import (
    Changes,
    apply_changes,
    array_problem,
    arrays_exchanged,
)
from attention_conformance.suite.spec.inputs import Inputs


def heads_split_before_projection(
    right: MultiHeadKernel, x: Array, name: str, call: LayerCall
) -> Array:
    kernel = right.kernel(name, call)
    width, heads, _ = kernel.shape
    if width % heads:
        return right.projected(x, name, call)
    is_own_slice = np.arange(width)[:, None] // (width // heads) == np.arange(heads)
    y = x @ np.where(is_own_slice[..., None], kernel, 0).reshape(width, -1)
    return right.split(right.with_bias(y, name, call), heads, call)


def packed_heads_first(right: MultiHeadKernel, call: LayerCall) -> Heads:
    q, k, v = right.heads(call)
    if not call.self_attention or call.sizes.H != call.sizes.Hkv or q.shape != v.shape:
        return q, k, v
    mixed = np.stack((q, k, v), 1).reshape(len(q), q.shape[1], 3, *q.shape[2:])
    return mixed[:, :, 0], mixed[:, :, 1], mixed[:, :, 2]


def key_bias_on_query(right: MultiHeadKernel, y: Array, name: str, call: LayerCall) -> Array:
    key = right.bias("key", call)
    if name == "query" and key is not None:
        y = y + right.expand(key.reshape(1, -1, call.sizes.D), call).reshape(-1)
    return y if name == "key" else right.with_bias(y, name, call)


def bias_before_projection(right: MultiHeadKernel, x: Array, name: str, call: LayerCall) -> Array:
    bias, kernel = right.bias(name, call), right.kernel(name, call)
    if name != "query" or bias is None or bias.shape != x.shape[-1:]:
        return right.projected(x, name, call)
    y = (x + bias) @ kernel.reshape(len(kernel), -1)
    return right.split(y, kernel.shape[1], call)


def additive_fits(call: LayerCall) -> bool:
    """Returns True if query and key have kernels of one shape."""
    p = call.parameters
    return "query_kernel" in p and p["query_kernel"].shape == p["key_kernel"].shape


def single_average_keeps_batch(right: MultiHeadKernel, query, key, value, **options):
    out, w = right.attention(query, key, value, **options)
    if w is not None and query.values.ndim == 2 and options["returned"] == "average":
        w = Rounded(w.values[None], w.fmt)
    return out, w


def concat_default_scale(right: ConcatKernel, name, call):
    number = right.scalar_parameter(name, call)
    return number / 2 if name == "scale" and "scale" not in call.parameters else number


def fresh_projections(right: MultiHeadKernel, name: str, call: LayerCall) -> Array:
    kernel = right.kernel(name, call)
    if name == "output":
        return kernel
    generator = memory(right).setdefault("generator", np.random.default_rng(0))
    return generator.standard_normal(kernel.shape).astype(kernel.dtype) / math.sqrt(len(kernel))


def exchanged_projections(inputs: Inputs) -> Changes:
    """Returns the changes that exchange kernel and bias of query and key. Raises ValueError if shapes
    differ."""
    changes = arrays_exchanged(inputs, "query_kernel", "key_kernel")
    if "query_bias" in inputs.arrays:
        changes = {**changes, **arrays_exchanged(inputs, "query_bias", "key_bias")}
    return changes


def float_mask_as_boolean(right: MultiHeadKernel, scores: Array, call: LayerCall) -> Array:
    hidden = right.biased(np.zeros_like(scores), call) > 0
    hidden &= ~hidden.all(-1, keepdims=True)
    return np.where(hidden, call.work(-np.inf), scores)


row = partial(deviation, family="layer", right=MultiHeadKernel)

DEVIATIONS = [
    row("split-without-transpose", "values",
        "Heads are split by a reshape to (B, H, L, D), without a transpose.",
        "`y.view(B, H, L, D)`; it is `y.view(B, L, H, D).transpose(1, 2)`",
        family="layout", split=lambda right, y, heads, call: y.reshape(len(y), heads, y.shape[1], -1)),
    row("split-and-merged-by-views", "values",
        "Heads are split and merged by views, without transposes of heads and rows.",
        "`y.view(B, H, L, D)`; it is `y.view(B, L, H, D).transpose(1, 2)`, and back at the end",
        family="layout", split=lambda right, y, heads, call: y.reshape(len(y), heads, y.shape[1], -1),
        merge=lambda right, attended, call: attended.reshape(call.sizes.B, call.sizes.Lq, -1)),
    row("output-projection-missing", "values",
        "The output projection, kernel and bias, is not applied.",
        "the joined heads are returned; apply `heads @ w_o + b_o`",
        when=lambda call: np.prod(call.parameters["output_kernel"].shape[:2])
            == call.parameters["output_kernel"].shape[2], output=lambda right, merged, call: merged),
    row("query-and-key-projections-exchanged", "values",
        "The projections of query and key are exchanged.",
        "`k, q, v = qkv.chunk(3, -1)`; the order is q, k, v",
        problem=partial(apply_changes, exchanged_projections)),
    row("fresh-projections", "contract",
        "Every call draws new random projections in place of the layer's own.",
        "`nn.Linear(...)` made inside `forward`; make the projections once, in `__init__`",
        kernel=fresh_projections),
    row("float-mask-as-boolean", "values",
        "A float mask is taken for a boolean one: what is positive is hidden, the rest counts 0.",
        "`attn_mask > 0` or `.bool()` hides; a float mask is added to the scores",
        family="mask", when=lambda call: call.bias is not None, biased=float_mask_as_boolean),
    row("heads-split-before-projection", "values",
        "The input is split among the heads before it is projected: a head sees only its slice.",
        "`x.view(B, L, H, E // H)` before the projection; project x whole, then split",
        projected=heads_split_before_projection),
    row("split-size-first", "values",
        "A projection is split as (D, H), so that a head gets every H-th feature.",
        "`y.view(B, L, D, H)`; heads come first: `y.view(B, L, H, D)`", family="layout",
        split=lambda right, y, heads, call: np.moveaxis(y.reshape(*y.shape[:2], -1, heads), -1, 1)),
    row("merge-without-transpose", "values",
        "Heads (B, H, Lq, Dv) are merged by a reshape, without a transpose.",
        "`out.reshape(B, Lq, H * Dv)` of (B, H, Lq, Dv); `out.transpose(1, 2)` first",
        family="layout",
        merge=lambda right, attended, call: attended.reshape(call.sizes.B, call.sizes.Lq, -1)),
    row("merge-size-first", "values",
        "Heads are merged as (Dv, H): equal features of all heads side by side.",
        "`out.permute(0, 2, 3, 1)`; heads come first: `out.permute(0, 2, 1, 3)`", family="layout",
        merge=lambda right, attended, call:
            np.moveaxis(attended, 1, -1).reshape(call.sizes.B, call.sizes.Lq, -1)),
    row("heads-merged-backwards", "values", "Heads are merged from the last to the first.",
        "`cat(heads[::-1], -1)`, or `out.flip(1)`; heads are merged in their order", family="heads",
        merge=lambda right, attended, call: right.merge(attended[:, ::-1], call)),
    row("packed-heads-first", "values",
        "A packed projection is split into heads first, then into query, key and value.",
        "`qkv.view(B, L, H, 3, D)`; it is `qkv.view(B, L, 3, H, D)`", family="layout",
        heads=packed_heads_first),
    row("key-and-value-kernels-swapped", "values",
        "Keys are projected by the kernel of values, and values by that of keys, if shapes fit.",
        "`q, v, k = qkv.chunk(3, -1)`; the order is q, k, v",
        when=lambda call:
            call.parameters["key_kernel"].shape == call.parameters["value_kernel"].shape,
        projected=lambda right, x, name, call:
            right.projected(x, {"key": "value", "value": "key"}.get(name, name), call)),
    row("values-from-keys", "values",
        "Values are projected from the key input, not from the value input, if shapes fit.",
        "`w_v(key)`; values come from their own input: `w_v(value)`",
        when=lambda call: call.key.shape == call.value.shape,
        heads=lambda right, call: right.heads(replace(call, value=call.key))),
    row("shared-kernel", "values", "Keys are projected by the kernel of queries, if shapes fit.",
        "`w_q(key)`; keys have their own projection: `w_k(key)`", problem=partial(apply_changes,
            lambda inputs: {"key_kernel": inputs.arrays["query_kernel"]}
            if inputs.arrays["query_kernel"].shape == inputs.arrays["key_kernel"].shape else {})),
    row("key-value-heads-tiled", "values",
        "Key/value heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1).",
        "`k.repeat(1, group, 1, 1)`, `h % Hkv`; use `repeat_interleave(group, dim=1)`, `h // group`",
        family="heads", expand=lambda right, x, call: np.tile(x, (1, call.sizes.group, 1, 1))),
    row("groups-from-first-head", "values",
        "With grouped heads all query heads use the first key/value head.",
        "`k[:, :1].expand(-1, H, -1, -1)`; query head h reads `k[:, h // group]`", family="heads",
        when=has_groups, expand=lambda right, x, call: np.repeat(x[:, :1], call.sizes.H, 1)),
    row("query-bias-dropped", "values", "Queries are projected without their bias.",
        "`F.linear(x, w_q)` without `b_q`; use `x @ w_q + b_q`",
        problem=array_problem("query_bias", np.zeros_like)),
    row("output-bias-dropped", "values", "The output is projected without its bias.",
        "`F.linear(heads, w_o)` without `b_o`; use `heads @ w_o + b_o`",
        problem=array_problem("output_bias", np.zeros_like)),
    row("output-bias-of-every-head", "values", "The output's bias is added once for every head.",
        "`sum(head[h] @ w_o[h] + b_o)`; add b_o once, after the sum over heads",
        problem=partial(apply_changes,
            lambda inputs: {"output_bias": inputs.arrays["output_bias"] * inputs.sizes.H})),
    row("key-bias-on-query", "values", "The bias of the keys is added to the queries instead.",
        "wrong slices of `in_proj_bias`: b_k is added to q; the order is q, k, v",
        with_bias=key_bias_on_query),
    row("bias-before-projection", "values",
        "The query's bias is added to the input, not to the projection, if it fits.",
        "`(x + b_q) @ w_q`; it is `x @ w_q + b_q`", projected=bias_before_projection),
    row("values-cut-to-key-size", "values",
        "Features of values beyond the size of the keys are zero.",
        "an output of size D a head; it has Dv features, as the values have", family="shapes",
        attend=lambda right, weights, value, call:
            right.attend(weights, value, call) * (np.arange(value.shape[-1]) < call.sizes.D)),
    row("scale-of-model", "values",
        "Scores are divided by the root of the model's width, not of the head's size.",
        "`1 / sqrt(embed_dim)`; a head has `D = embed_dim // num_heads`, so `1 / sqrt(D)`",
        family="scale", factor=lambda right, call: 1.0 / math.sqrt(call.sizes.D * call.sizes.H)),
    row("layer-scale-missing", "values", "Scores are not scaled.", "`q @ k.mT` without `/ sqrt(D)`",
        family="scale", factor=lambda right, call: 1.0),
    row("scaled-twice", "values", "Queries are scaled before the product, and the scores after it.",
        "`q = q * scale`, then `q @ k.mT * scale`; scale once", family="scale",
        factor=lambda right, call: 1.0 / call.sizes.D),
    row("scale-of-values", "values", "The scale is 1 / sqrt(Dv), not 1 / sqrt(D).",
        "`1 / sqrt(v.shape[-1])`; it is `1 / sqrt(k.shape[-1])`", family="scale",
        factor=lambda right, call: 1.0 / math.sqrt(call.sizes.Dv)),
    row("layer-bias-scaled", "values", "A float mask is added before the scores are scaled.",
        "`(q @ k.mT + attn_mask) * scale`; scale first: `q @ k.mT * scale + attn_mask`",
        family="scores", when=lambda call: call.bias is not None,
        biased=lambda right, scores, call:
            scores + (right.biased(scores, call) - scores) * call.work(right.factor(call))),
    row("layer-bias-of-first-sample", "values", "Every sample gets the float mask of the first.",
        "`attn_mask[0]` or `attn_mask[:1]` for all samples; sample b has `attn_mask[b]`",
        family="heads", when=lambda call: call.bias is not None and call.bias.values.ndim >= 4,
        biased=lambda right, scores, call:
            right.biased(scores, replace(call, bias=Rounded(call.bias.values[:1], call.fmt)))),
    row("additive-kernels-swapped", "values",
        "The kernels of query and key are exchanged, if shapes fit.",
        "`w_k(query) + w_q(key)`; it is `w_q(query) + w_k(key)`", right=AdditiveKernel,
        when=additive_fits,
        projected=lambda right, x, name, call:
            right.projected(x, {"query": "key", "key": "query"}[name], call)),
    row("single-average-keeps-batch", "values",
        "Average weights of an input without a batch axis come back with one.",
        "`weights.mean(1)` without `squeeze(0)` for inputs (L, E)", family="shapes",
        attention=single_average_keeps_batch),
    no_causal("concat-causal-ignored", "future",
        "In concat attention the causal flag has no effect.",
        '`use_causal_mask` is accepted and not used with `score_mode="concat"`',
        right=ConcatKernel),
    row("concat-default-scale", "values",
        "Concat attention without a learned scale multiplies by 1/2.",
        "a default of 0.5 for the scale; without `use_scale` it is 1", family="scale",
        right=ConcatKernel, scalar_parameter=concat_default_scale),
    no_causal("additive-causal-lost-with-projection", "values",
        "In additive attention with projected queries the causal flag has no effect.",
        "a path for projected queries that leaves out the causal mask", right=AdditiveKernel,
        when=lambda call: "query_kernel" in call.parameters),
    row("layer-needs-biases", "values", "Without biases the call fails.",
        "`self.b_q.reshape(-1)` where `b_q` is None; ask `if b_q is not None`",
        bias=lambda right, name, call:
            right.load(call.parameters[f"{name}_bias"], call).reshape(-1)),
    row("scale-of-groups", "values",
        "With grouped heads the scale is smaller by the root of Hkv / H.",
        "`D = width // Hkv` for the width of all query heads; it is `D = width // H`",
        family="scale",
        factor=lambda right, call: right.factor(call) * (call.sizes.Hkv / call.sizes.H)**0.5),
    row("batch-norm-epsilon-in-evaluation", "values",
        "Batch norm leaves out epsilon in evaluation.",
        "`rsqrt(running_var)`; it is `rsqrt(running_var + eps)`", right=BatchNormKernel,
        reciprocal=lambda right, variance, call:
            right.reciprocal(variance - (not call.training) * call.work(call.epsilon), call)),
    row("softmax-in-single", "precision",
        "The softmax of a float64 layer runs in float32, as the layer declares.",
        "`softmax(scores.float())`; float64 layers need it in float64", family="numerics",
        facts={"numerics": {"f64": "single", "f32": "exact", "bf16": "exact", "f16": "exact"}},
        weights=lambda right, scores, call:
            right.weights(scores.astype(np.float32), call).astype(call.work)),
]  # fmt: skip
