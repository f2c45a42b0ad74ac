"""The standard's operator Attention, of opset 23 to 25 (https://onnx.ai/onnx/operators/onnx__Attention.html).

query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), or packed (B, L, H D); one mask, boolean
or added to the scores; a causal flag, scale and softcap as attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.graph import Symbol
from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.declared import (
    ADDED,
    ATTENTION_FEATURES,
    INTERSECTED,
    UNFLUSHED,
    ZEROS,
    Declared,
)
from attention_conformance.backends.kernel import FrameworkFunction, Kernel
from attention_conformance.backends.masks import AttentionCall, Native, split_native
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal

NO_PAST_KEYS = "the case has no keys before the queries, so the cache would be empty"
"""The reason to refuse cases without keys before the queries."""


def packed(x: Symbol) -> Symbol:
    """Returns x (B, L, H, D), reshaped to (B, L, H D)."""
    return x.reshape((*x.shape[:2], x.shape[2] * x.shape[3]))


def output_shape(query: Symbol, value: Symbol) -> tuple[int, ...]:
    """Returns the shape of the output: the query's shape with the size of values."""
    return (*query.shape[:-1], value.shape[-1])


def check_packed(inputs: Inputs) -> None:
    """Raise ValueError if keys and values have different numbers of heads."""
    if inputs.key.ndim != 4 or inputs.key.shape[1] != inputs.value.shape[1]:
        raise ValueError("packed keys and values have one number of heads")


def in_full(mask: np.ndarray, inputs: Inputs, full_queries: bool = True) -> np.ndarray:
    """Returns the mask or bias with an axis of keys of full size; with `full_queries` also that of
    queries."""
    *outer_axes, Lk = mask.shape
    if full_queries and len(outer_axes) and outer_axes[-1] == 1:
        outer_axes[-1] = inputs.sizes.Lq
    return np.broadcast_to(mask, (*outer_axes, inputs.sizes.Lk if Lk == 1 else Lk))


def bottom_right_flag(inputs: Inputs) -> Native:
    """Returns the mask divided into the causal flag of a call with a cache, which is bottom-right, and
    the rest. A top-left mask is part of the rest."""
    parts = inputs.mask.parts if inputs.mask is not None else ()
    flagged = [part for part in parts if isinstance(part, Causal) and part.bottom_right]
    if inputs.form == "dense" or not flagged:
        return Native(dense_parts=parts)
    return Native(causal=True, dense_parts=tuple(part for part in parts if part not in flagged))


def with_lengths(inputs: Inputs) -> Native:
    """Returns the mask divided into lengths or the causal flag, and the rest. Both are never passed
    together: with lengths the flag is bottom-right, aligned with the last valid key."""
    native = split_native(inputs, causal=True, lengths=True)
    return split_native(inputs, causal=True) if native.causal else native


def mask(full_queries: bool, call: AttentionCall) -> Any:
    """Returns the mask or bias. Its last axis has full size, because the operator does not broadcast it:
    of a last axis of size 1 it would mask only the first key. `full_queries`: the axis of queries also
    has full size."""
    return call.mask_or_bias(partial(in_full, inputs=call.inputs, full_queries=full_queries))


def attributes(inputs: Inputs, native: Native) -> dict[str, Any]:
    """Returns the operator's attributes, without the numbers of heads."""
    values = {"scale": inputs.scale, "softcap": inputs.feature("softcap")}
    if native.causal:
        values["is_causal"] = 1
    if native.window is not None:
        sides = {"left_window_size": native.window.left, "right_window_size": native.window.right}
        values |= {name: -1 if size is None else size for name, size in sides.items()}
    return values


def graph_of(
    node: Callable[..., Symbol], impl: FrameworkFunction, inputs: Inputs
) -> Callable[..., Symbol]:
    """Returns the function that records the graph of a call; `node` records its node."""
    return partial(node, **attributes(inputs, impl.row.native(inputs)))


def attention(
    query: Symbol, key: Symbol, value: Symbol, mask: Symbol | None = None,
    lengths: Symbol | None = None, **attributes: Any,
) -> Symbol:  # fmt: skip
    """Record the operator. Operands have rank 4, unless `shape` computes the shape of the output. Returns
    the output."""
    keywords = {"shape": lambda: output_shape(query, value)} | attributes
    output: Symbol = query.graph.add(
        "Attention", query, key, value, mask, None, None, lengths, **keywords
    )
    return output


def packed_graph(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Symbol]:
    """Returns the function that records the operator with operands (B, L, H D)."""
    check_packed(inputs)

    def node(query: Symbol, key: Symbol, value: Symbol, **keywords: Any) -> Symbol:
        (B, Lq, H, _), Dv = query.shape, value.shape[3]
        output = attention(
            packed(query), packed(key), packed(value), **keywords, q_num_heads=H,
            kv_num_heads=key.shape[2], shape=lambda: (B, Lq, H * Dv),
        )  # fmt: skip
        return output.reshape((B, Lq, H, Dv))

    return graph_of(node, impl, inputs)


def cached(
    query: Symbol, key: Symbol, value: Symbol, mask: Symbol | None = None, **attributes: Any
) -> Symbol:
    """Record the operator, with the keys and values before the queries as past_key and past_value.
    Returns the output."""
    past_length = key.shape[2] - query.shape[2]
    new = [x[:, :, past_length:] for x in (key, value)]
    cache = [x[:, :, :past_length] for x in (key, value)]
    output, _, _ = query.graph.add(
        "Attention", query, *new, mask, *cache, outputs=3, shape=lambda: output_shape(query, value),
        **attributes,
    )  # fmt: skip
    return output


def inexact_attribute(case: Case) -> str | None:
    """Returns the reason why an attribute, which is float32, cannot have the value of a float64 case, or
    None."""
    for name in ("scale", "softcap") if case.dtype.name == "f64" else ():
        number = case.option(name)
        if number is not None and float(np.float32(number)) != number:
            return f"the attribute {name} is float32, which cannot hold {number}"
    return None


def inexact_attribute_or_no_past(case: Case) -> str | None:
    """Returns the reason of `inexact_attribute`, or `NO_PAST_KEYS`, or None."""
    return NO_PAST_KEYS if case.sizes.Lk <= case.sizes.Lq else inexact_attribute(case)


def short_mask_path(
    impl: FrameworkFunction, inputs: Inputs, plain_call: PreparedCall
) -> dict[str, PreparedCall]:
    """Returns a call whose mask is too short, which must mask the keys beyond its end; {} if there is
    none."""
    mask, keys = inputs.dense_mask, inputs.sizes.Lk
    if mask is None or inputs.bias is not None or inputs.form != "dense" or keys < 2:
        return {}
    problem = inputs.with_dense(mask_array=mask & (np.arange(keys) < keys - 1))
    if problem.has_empty_rows:
        return {}
    call = impl.plain(problem)
    short_mask = np.ascontiguousarray(call.arguments["mask"][..., :-1])
    arguments = call.arguments | {"mask": short_mask}
    return {"shorter mask": replace(call, arguments=arguments, problem=problem)}


def recorded(opset: int) -> Callable[[FrameworkFunction, Inputs, PreparedCall], PreparedCall]:
    """Returns a function that makes a call a model of this opset."""
    return lambda impl, inputs, call: impl.backend.recorded(call, opset)


def array_parameters(full_queries: bool) -> tuple[Parameter[AttentionCall], ...]:
    """Returns the parameters for the operator's mask and lengths. `full_queries`: see `mask`."""
    return (
        Parameter("mask", value=partial(mask, full_queries)),
        Parameter("lengths", value=AttentionCall.lengths),
    )


ATTENTION_23 = Kernel(
    "attention-23",
    "Attention",
    array_parameters(full_queries=False),
    Declared(
        features=ATTENTION_FEATURES,
        refusals={"native-window": "before opset 25 the operator has no window"},
        elections=ADDED
        | INTERSECTED
        | ZEROS
        | UNFLUSHED
        | {"no-keys": "raises", "integer-mask": "added"},
        merges_mask_into_bias=True,
    ),
    calls=partial(graph_of, attention),
    through=recorded(23),
    passed_as={"mask": "mask", "bias": "mask"},
    axis_order="bhld",
    divide=partial(split_native, causal=True),
    refusal=inexact_attribute,
)
"""Masks other than causal are arrays, which may broadcast."""

ATTENTION_24 = ATTENTION_23.but(
    name="attention-24",
    parameters=array_parameters(full_queries=True),
    through=recorded(24),
    divide=with_lengths,
    paths=short_mask_path,
)
"""With the number of keys of each sample as an input."""

PACKED = ATTENTION_24.but(name="attention-24-packed", calls=packed_graph, axis_order="blhd")

CACHED = ATTENTION_24.but(
    name="attention-24-cache",
    declared=ATTENTION_23.declared.refusing(
        {"native-causal": "with a cache the causal flag is bottom-right"}
    ),
    calls=partial(graph_of, cached),
    divide=bottom_right_flag,
    paths=ATTENTION_23.paths,
    refusal=inexact_attribute_or_no_past,
)
"""Keys before the queries are a cache, as in decoding or a later chunk of a prompt. The causal flag is
bottom-right."""

ATTENTION_25 = ATTENTION_23.but(
    name="attention-25",
    parameters=array_parameters(full_queries=True),
    declared=ATTENTION_23.declared.taking("native-window"),
    through=recorded(25),
    divide=partial(split_native, causal=True, window=True),
)
"""With two attributes for a sliding window."""

BY_DEFINITION = (ATTENTION_23, ATTENTION_24, PACKED, CACHED)
"""Rows that both runtimes can compute by the operator's definition."""
