"""Scaled dot-product attention in JAX: textbook code, and `jax.nn.dot_product_attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._jax.engine import FLUSHED, JaxEngine
from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.declared import (
    ATTENTION_FEATURES,
    INTERSECTED,
    LOWEST_FILL,
    LOWEST_IN_FLOAT32,
    SINGLE_FUSED,
    Declared,
)
from attention_conformance.backends.kernel import FrameworkFunction, Kernel, function_of_row
from attention_conformance.backends.masks import FLAGGED, AttentionCall
from attention_conformance.backends.prepared import PreparedCall, kernel_missing
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.textbook.operations import Operations, operations_of
from attention_conformance.suite.spec.inputs import Inputs

NATIVE = "jax.nn.dot_product_attention"

NO_HEADS = f"{NATIVE} divides by the number of heads"

LENGTHS = partial(AttentionCall.lengths, integers=np.int32)


def local_window_size(call: AttentionCall) -> Any:
    """Returns the window (left, right) in keys; a side without limit gets the larger of Lq and Lk. None
    without a window."""
    window, sizes = call.native.window, call.inputs.sizes
    if window is None:
        return None
    longest = max(sizes.Lq, sizes.Lk)
    return tuple(longest if keys is None else keys for keys in (window.left, window.right))


def operations(backend: JaxEngine) -> Operations:
    """Returns the operations of textbook code, which is called through `jax.jit`."""
    jax, jnp = backend.jax, backend.numpy
    return operations_of(
        jnp,
        softmax=lambda x: jax.nn.softmax(x, axis=-1),
        fill=lambda x, hidden, number: jnp.where(hidden, number, x),
        # Refuses a mask with more axes than the scores, instead of broadcasting.
        mask_scores=lambda scores, mask: jnp.where(
            jnp.broadcast_to(mask, scores.shape), scores, jnp.finfo(scores.dtype).min
        ),
        logsumexp=lambda x: jax.nn.logsumexp(
            x.astype(jnp.promote_types(x.dtype, jnp.float32)), axis=-1
        ),
        take=lambda x, indices: x[indices],
        put=lambda x, indices, values: x.at[indices].set(values),
        cast_like=lambda x, other: x.astype(other.dtype),
        arange_like=lambda n, x: jnp.arange(n, dtype=x.dtype),
        concat=jnp.concatenate,
        called=backend.jitted,
    )


EAGER = TextbookAttention.declared.but(numerics="stepwise").electing(
    {"integer-mask": "cast-to-bool", "subnormal-output": FLUSHED}
)
"""The declaration of textbook attention; masked scores are the dtype's lowest number."""


def paths(
    impl: FrameworkFunction, inputs: Inputs, plain_call: PreparedCall
) -> Mapping[str, PreparedCall]:
    """Returns calls in which the function chooses its kernel, with lengths of queries, without a batch
    axis, and with a window of one number."""
    if inputs.feature("lse"):  # the paths return only the output
        return {}
    s, jnp = inputs.sizes, impl.backend.numpy
    function = impl.row.calls(impl, inputs)
    window = plain_call.arguments.get("local_window_size", (max(s.Lq, s.Lk),) * 2)

    def without_batch(**arguments: Any) -> Any:
        arrays = {n: a[0] if getattr(a, "ndim", 0) == 4 else a for n, a in arguments.items()}
        return function(**arrays)[None]

    def with_window_number(local_window_size: tuple[int, int] = window, **arguments: Any) -> Any:
        return function(**arguments, local_window_size=local_window_size[0])

    def with_query_lengths(**arguments: Any) -> Any:
        lengths = jnp.maximum(s.Lq - 1 - jnp.arange(s.B, dtype="int32"), 1)
        valid = jnp.arange(s.Lq) < lengths[:, None]
        answer = function(**arguments, query_seq_lengths=lengths)
        # Rows beyond query_seq_lengths must be zeros: the sum with the full answer would show others.
        return jnp.where(valid[..., None, None], answer, answer + function(**arguments))

    functions: dict[str, Callable[..., Any]] = {"no implementation": function_of_row(impl, inputs)}
    if s.Lq > 1:
        functions["query_seq_lengths below Lq"] = with_query_lengths
    if s.B == 1 and "key_value_seq_lengths" not in plain_call.arguments:
        functions["no batch axis"] = without_batch
    if window[0] == window[1]:
        functions["local_window_size a number"] = with_window_number
    return {
        name: replace(plain_call, function=changed_function, constants=(name, s.B, s.Lq, s.Lk))
        for name, changed_function in functions.items()
    }


def with_kernel(kernel: str, impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """Returns the function, called with `implementation=kernel`."""
    options = {"return_residual": True} if inputs.feature("lse") else {}
    return partial(function_of_row(impl, inputs), implementation=kernel, **options)


def through_jit(impl: FrameworkFunction, inputs: Inputs, call: PreparedCall) -> PreparedCall:
    """Returns the call through `jax.jit`. Returns the call unchanged if it has no constants, by which
    calls share a program, or if its dtype is in `stepwise_dtypes`."""
    if call.constants is None:
        return call
    return impl.backend.jitted_native(impl, call, inputs.dtype)


def source_of(kernel: str) -> str:
    """Returns the source text of the function with `implementation=kernel`."""
    function = f"partial({NATIVE}, implementation={kernel!r})"
    return f"from functools import partial\n\nfunction = {function}"


JAX_NN = Kernel(
    "jax-nn",
    NATIVE,
    (
        *FLAGGED,
        Parameter("query_seq_lengths"),
        Parameter("key_value_seq_lengths", ("padding",), LENGTHS),
        Parameter("local_window_size", ("window", "native-window"), local_window_size),
    ),
    Declared(
        numerics=SINGLE_FUSED,
        features=ATTENTION_FEATURES | {"lse"},
        refusals={
            "softcap": "jax.nn.dot_product_attention has no softcap",
            "value-size": "jax.nn.dot_product_attention requires values of the keys' shape",
            "sinks": "jax.nn.dot_product_attention has no sinks",
            "no-heads": NO_HEADS,
        },
        elections=LOWEST_FILL
        | INTERSECTED
        | {
            "lowest-row": LOWEST_IN_FLOAT32 | {"f64": "nan"},
            # The log-sum-exp has the dtype of the keys.
            "lse-of-empty-row": {
                "f64": "lowest",
                "f32": "lowest",
                "bf16": "lowest",
                "f16": "minus-inf",
            },
            # The finding lse-without-gradient.
            "lse-gradient": "nothing",
            "value-size": "raises",
            "subnormal-output": FLUSHED,
            "score-overflow": "finite",
        },
    ),
    calls=partial(with_kernel, "xla"),
    source=source_of("xla"),
    through=through_jit,
    neutral={"implementation": "xla", "return_residual": False},
    paths=paths,
    wrong=({"implementation": "flash"},),
)
"""XLA's kernel."""

JAX_NN_CUDNN = JAX_NN.but(
    name="jax-nn-cudnn",
    declared=JAX_NN.declared.but(dtypes=("bf16", "f16")),
    calls=partial(with_kernel, "cudnn"),
    source=source_of("cudnn"),
    # JAX refuses head sizes and lengths that cuDNN lacks.
    within=lambda backend: kernel_missing("head dim must|Unsupported seq"),
)
