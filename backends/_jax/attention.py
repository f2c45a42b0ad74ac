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
from attention_conformance.backends.kernel import FrameworkFunction, Kernel, as_named
from attention_conformance.backends.masks import FLAGGED, AttentionCall
from attention_conformance.backends.prepared import PreparedCall, kernel_missing
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.textbook.operations import Operations, operations_of
from attention_conformance.suite.spec.inputs import Inputs

NATIVE = "jax.nn.dot_product_attention"

NO_HEADS = f"{NATIVE} divides by the number of heads"


LENGTHS = partial(AttentionCall.lengths, integers=np.int32)


def local_window_size(call: AttentionCall) -> Any:
    """(left, right), as far as the lengths where a side has no end."""
    window, sizes = call.native.window, call.inputs.sizes
    if window is None:
        return None
    far = max(sizes.Lq, sizes.Lk)
    return tuple(far if side is None else side for side in (window.left, window.right))


def operations(backend: JaxEngine) -> Operations:
    """The operations of textbook code, which is called through `jax.jit`."""
    jax, jnp = backend.jax, backend.numpy
    return operations_of(
        jnp,
        softmax=lambda x: jax.nn.softmax(x, axis=-1),
        fill=lambda x, hidden, number: jnp.where(hidden, number, x),
        # Refuses a mask with more axes than the scores, instead of broadcasting.
        hide=lambda scores, mask: jnp.where(
            jnp.broadcast_to(mask, scores.shape), scores, jnp.finfo(scores.dtype).min
        ),
        logsumexp=lambda x: jax.nn.logsumexp(
            x.astype(jnp.promote_types(x.dtype, jnp.float32)), axis=-1
        ),
        take=lambda x, indices: x[indices],
        put=lambda x, indices, values: x.at[indices].set(values),
        like=lambda x, other: x.astype(other.dtype),
        counted=lambda n, x: jnp.arange(n, dtype=x.dtype),
        concat=jnp.concatenate,
        called=backend.jitted,
    )


EAGER = TextbookAttention.declared.but(numerics="stepwise").electing(
    {"integer-mask": "cast-to-bool", "subnormal-output": FLUSHED}
)
"""The declaration of textbook attention; masked scores are the dtype's lowest number."""


def paths(
    own: FrameworkFunction, inputs: Inputs, plain: PreparedCall
) -> Mapping[str, PreparedCall]:
    """Calls with the function's own choice of a kernel, with lengths of queries, without an axis of
    samples, and with a window of one number."""
    if inputs.feature("lse"):  # the paths return only the output
        return {}
    s, numpy = inputs.sizes, own.backend.numpy
    forced = own.kernel.calls(own, inputs)
    sides = plain.arguments.get("local_window_size", (max(s.Lq, s.Lk),) * 2)

    def unbatched(**arguments: Any) -> Any:
        several = {n: a[0] if getattr(a, "ndim", 0) == 4 else a for n, a in arguments.items()}
        return forced(**several)[None]

    def windowed(local_window_size: tuple[int, int] = sides, **arguments: Any) -> Any:
        return forced(**arguments, local_window_size=local_window_size[0])

    def shorter(**arguments: Any) -> Any:
        counts = numpy.maximum(s.Lq - 1 - numpy.arange(s.B, dtype="int32"), 1)
        valid = numpy.arange(s.Lq) < counts[:, None]
        answer = forced(**arguments, query_seq_lengths=counts)
        # Rows beyond query_seq_lengths must be zeros: the sum with the full answer would show others.
        return numpy.where(valid[..., None, None], answer, answer + forced(**arguments))

    ways: dict[str, Callable[..., Any]] = {"no implementation": as_named(own, inputs)}
    if s.Lq > 1:
        ways["query_seq_lengths below Lq"] = shorter
    if s.B == 1 and "key_value_seq_lengths" not in plain.arguments:
        ways["no batch axis"] = unbatched
    if sides[0] == sides[1]:
        ways["local_window_size a number"] = windowed
    return {
        name: replace(plain, function=way, constants=(name, s.B, s.Lq, s.Lk))
        for name, way in ways.items()
    }


def of_kernel(kernel: str, own: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """The function with one of its kernels."""
    more = {"return_residual": True} if inputs.feature("lse") else {}
    return partial(as_named(own, inputs), implementation=kernel, **more)


def as_program(own: FrameworkFunction, inputs: Inputs, call: PreparedCall) -> PreparedCall:
    """The call through `jax.jit`, if calls can share a program, unless the dtype runs operation by
    operation."""
    if call.constants is None:
        return call
    return own.backend.jitted_native(own, call, inputs.dtype)


def source_of(kernel: str) -> str:
    """The function with one of its kernels as source text."""
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
    calls=partial(of_kernel, "xla"),
    source=source_of("xla"),
    through=as_program,
    neutral={"implementation": "xla", "return_residual": False},
    paths=paths,
    wrong=({"implementation": "flash"},),
)
"""XLA's kernel."""

JAX_NN_CUDNN = JAX_NN.but(
    name="jax-nn-cudnn",
    declared=JAX_NN.declared.but(dtypes=("bf16", "f16")),
    calls=partial(of_kernel, "cudnn"),
    source=source_of("cudnn"),
    # JAX refuses head sizes and lengths that cuDNN lacks.
    within=lambda backend: kernel_missing("head dim must|Unsupported seq"),
)
