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

FIRST = "the case has no keys before the queries, so the cache would be empty"
"""The reason for cases without a cache."""


def packed(x: Symbol) -> Symbol:
    """Reshape (B, L, H, D) to (B, L, H D)."""
    return x.reshape((*x.shape[:2], x.shape[2] * x.shape[3]))


def of_values(query: Symbol, value: Symbol) -> tuple[int, ...]:
    """The shape of the output: the query's shape with the size of values."""
    return (*query.shape[:-1], value.shape[-1])


def check_packed(inputs: Inputs) -> None:
    """Raise ValueError if keys and values have different numbers of heads."""
    if inputs.key.ndim != 4 or inputs.key.shape[1] != inputs.value.shape[1]:
        raise ValueError("packed keys and values have one number of heads")


def in_full(mask: np.ndarray, inputs: Inputs, queries: bool = True) -> np.ndarray:
    """A mask or bias whose axis of keys and, with `queries`, axis of queries have full size."""
    *outer, Lk = mask.shape
    if queries and len(outer) and outer[-1] == 1:
        outer[-1] = inputs.sizes.Lq
    return np.broadcast_to(mask, (*outer, inputs.sizes.Lk if Lk == 1 else Lk))


def behind_a_cache(inputs: Inputs) -> Native:
    """The mask split into flags and rest, for a causal flag that is bottom-right because of a cache."""
    parts = inputs.mask.parts if inputs.mask is not None else ()
    flagged = [part for part in parts if isinstance(part, Causal) and part.bottom_right]
    if inputs.form == "dense" or not flagged:
        return Native(rest=parts)
    return Native(causal=True, rest=tuple(part for part in parts if part not in flagged))


def with_lengths(inputs: Inputs) -> Native:
    """The mask split into the flag or lengths, and the rest. With lengths the flag is bottom-right: the
    last query is aligned with the last valid key."""
    native = split_native(inputs, causal=True, lengths=True)
    return split_native(inputs, causal=True) if native.causal else native


def mask(queries: bool, call: AttentionCall) -> Any:
    """The mask or bias. The operator does not broadcast a last axis of size 1: it would mask only the
    first key. `queries`: the axis of queries must have full size, too."""
    return call.mask_or_bias(partial(in_full, inputs=call.inputs, queries=queries))


def attributes(inputs: Inputs, native: Native) -> dict[str, Any]:
    """The operator's attributes, without the numbers of heads."""
    given = {"scale": inputs.scale, "softcap": inputs.feature("softcap")}
    if native.causal:
        given["is_causal"] = 1
    if native.window is not None:
        sides = {"left_window_size": native.window.left, "right_window_size": native.window.right}
        given |= {name: -1 if size is None else size for name, size in sides.items()}
    return given


def graph_of(
    node: Callable[..., Symbol], impl: FrameworkFunction, inputs: Inputs
) -> Callable[..., Symbol]:
    """The function that records the graph of a call, given the function that records its node."""
    return partial(node, **attributes(inputs, impl.kernel.native(inputs)))


def attention(
    query: Symbol, key: Symbol, value: Symbol, mask: Symbol | None = None,
    lengths: Symbol | None = None, **attributes: Any,
) -> Symbol:  # fmt: skip
    """The operator with operands of rank 4; or with others, if the `shape` of the output is given."""
    given = {"shape": lambda: of_values(query, value)} | attributes
    output: Symbol = query.graph.add(
        "Attention", query, key, value, mask, None, None, lengths, **given
    )
    return output


def of_rank_3(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Symbol]:
    """The function that records the operator with operands (B, L, H D)."""
    check_packed(inputs)

    def node(query: Symbol, key: Symbol, value: Symbol, **rest: Any) -> Symbol:
        (B, Lq, H, _), Dv = query.shape, value.shape[3]
        output = attention(
            packed(query), packed(key), packed(value), **rest, q_num_heads=H,
            kv_num_heads=key.shape[2], shape=lambda: (B, Lq, H * Dv),
        )  # fmt: skip
        return output.reshape((B, Lq, H, Dv))

    return graph_of(node, impl, inputs)


def cached(
    query: Symbol, key: Symbol, value: Symbol, mask: Symbol | None = None, **attributes: Any
) -> Symbol:
    """The operator with the keys before the queries as past_key and past_value."""
    past = key.shape[2] - query.shape[2]
    new, cache = ([x[:, :, p] for x in (key, value)] for p in (slice(past, None), slice(past)))
    output, _, _ = query.graph.add(
        "Attention", query, *new, mask, *cache, outputs=3, shape=lambda: of_values(query, value),
        **attributes,
    )  # fmt: skip
    return output


def inexact(case: Case) -> str | None:
    """The reason why an attribute, which is float32, cannot hold an option of a float64 case, or None."""
    for name in ("scale", "softcap") if case.dtype.name == "f64" else ():
        number = case.option(name)
        if number is not None and float(np.float32(number)) != number:
            return f"the attribute {name} is float32, which cannot hold {number}"
    return None


def inexact_or_first(case: Case) -> str | None:
    """The reason of `inexact`, or for a case without keys before the queries."""
    return FIRST if case.sizes.Lk <= case.sizes.Lq else inexact(case)


def shorter_mask(
    impl: FrameworkFunction, inputs: Inputs, plain: PreparedCall
) -> dict[str, PreparedCall]:
    """A call with a mask that is too short, which must hide the keys beyond its end."""
    seen, keys = inputs.dense_mask, inputs.sizes.Lk
    if seen is None or inputs.bias is not None or inputs.form != "dense" or keys < 2:
        return {}
    problem = inputs.with_dense(mask_array=seen & (np.arange(keys) < keys - 1))
    if problem.has_empty_rows:
        return {}
    call = impl.plain(problem)
    short = np.ascontiguousarray(call.arguments["mask"][..., :-1])
    return {
        "shorter mask": replace(call, arguments=call.arguments | {"mask": short}, problem=problem)
    }


def recorded(opset: int) -> Callable[[FrameworkFunction, Inputs, PreparedCall], PreparedCall]:
    """The call as a model of an opset."""
    return lambda impl, inputs, call: impl.backend.recorded(call, opset)


def arrays(queries: bool) -> tuple[Parameter[AttentionCall], ...]:
    """The arrays of the operator besides its operands; see `mask`."""
    return (
        Parameter("mask", value=partial(mask, queries)),
        Parameter("lengths", value=AttentionCall.lengths),
    )


ATTENTION_23 = Kernel(
    "attention-23",
    "Attention",
    arrays(queries=False),
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
    unsupported=inexact,
)
"""Masks other than causal are arrays, which may broadcast."""

ATTENTION_24 = ATTENTION_23.but(
    name="attention-24",
    parameters=arrays(queries=True),
    through=recorded(24),
    divide=with_lengths,
    paths=shorter_mask,
)
"""With the number of keys of each sample as an input."""

PACKED = ATTENTION_24.but(name="attention-24-packed", calls=of_rank_3, axis_order="blhd")

CACHED = ATTENTION_24.but(
    name="attention-24-cache",
    declared=ATTENTION_23.declared.refusing(
        {"native-causal": "with a cache the causal flag is bottom-right"}
    ),
    calls=partial(graph_of, cached),
    divide=behind_a_cache,
    paths=ATTENTION_23.paths,
    unsupported=inexact_or_first,
)
"""Keys before the queries are a cache, as in decoding or a later chunk of a prompt. The causal flag is
bottom-right."""

ATTENTION_25 = ATTENTION_23.but(
    name="attention-25",
    parameters=arrays(queries=True),
    declared=ATTENTION_23.declared.taking("native-window"),
    through=recorded(25),
    divide=partial(split_native, causal=True, window=True),
)
"""With two attributes for a sliding window."""

BY_DEFINITION = (ATTENTION_23, ATTENTION_24, PACKED, CACHED)
"""Rows that both runtimes can compute by the operator's definition."""
