"""PyTorch's layers: textbook code, and rows of `torch.nn.MultiheadAttention` in its three code paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._torch.attention import operations
from attention_conformance.backends._torch.encoder import ENCODER_FAST, NN_ENCODER, TextbookEncoder
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.modules import (
    MULTI_HEAD_PATH,
    batch_second,
    called,
    differentiable,
    fast,
    linear_state,
    masks,
    module_state,
    settings,
    with_state,
)
from attention_conformance.backends._torch.norms import BATCH, LAYER
from attention_conformance.backends.declared import LAYER_FEATURES, LOWEST_IN_FLOAT32, Declared
from attention_conformance.backends.layer import FrameworkLayer, Layer
from attention_conformance.backends.masks import causal_alone
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import textbooks
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD

SPLIT = "torch.nn.MultiheadAttention splits embed_dim among the heads"


def layers(backend: TorchEngine) -> list[Implementation]:
    """Returns the judged layers of PyTorch: textbook layers, and rows."""
    ops = operations(backend.torch)
    rows = (NN_MHA, WEIGHTS, FAST, QUANTIZABLE, LAYER, BATCH, NN_ENCODER, ENCODER_FAST)
    return [
        *textbooks(backend, ops, "eager"), TextbookEncoder(backend, ops, "eager"),
        *(FrameworkLayer(backend, row) for row in rows),
    ]  # fmt: skip


def construct(impl: FrameworkLayer, inputs: Inputs, kind: Any, **flags: Any) -> Any:
    """Returns a new module of class `kind`, by the arguments of `torch.nn.MultiheadAttention`; `flags`
    override them."""
    w = inputs.widths
    arguments = {
        "embed_dim": w.query, "num_heads": inputs.sizes.H, "dropout": inputs.rate,
        "bias": "query_bias" in inputs.parameters, "kdim": w.key, "vdim": w.value,
        **settings(impl, inputs),
    }  # fmt: skip
    return kind(**(arguments | flags))


def multi_head(
    impl: FrameworkLayer,
    inputs: Inputs,
    state: Mapping[str, np.ndarray] | None = None,
    **flags: Any,
) -> Any:
    """Returns the module with the inputs' parameters and those in `state`."""
    kind = impl.backend.torch.nn.MultiheadAttention
    layer = construct(impl, inputs, kind, **{"batch_first": True, **flags})
    named_parameters = module_state(inputs.parameters, np.concatenate)
    return with_state(impl, inputs, layer, named_parameters | dict(state or {}))


def masks_without_weights(impl: FrameworkLayer, inputs: Inputs, **options: Any) -> dict[str, Any]:
    """Returns the mask arguments of `modules.masks`, and need_weights=False."""
    return masks(impl, inputs, **options) | {"need_weights": False}


def masks_with_weights(impl: FrameworkLayer, inputs: Inputs, **options: Any) -> dict[str, Any]:
    """Returns the mask arguments of `modules.masks`; if the case asks for the weights of every head, also
    average_attn_weights=False."""
    weights_of_heads = {"average_attn_weights": False} if inputs.returned == "head" else {}
    return masks(impl, inputs, **options) | weights_of_heads


def paths(impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns calls in other modes, with other forms of masks, and of layers that append a key."""
    ways: dict[str, dict[str, Any]] = {"train()": {"train": True}, "no_grad": {"no_grad": True}}
    hints: dict[str, dict[str, Any]] = {}
    if causal_alone(inputs) and inputs.bias is None:
        hints = {"is_causal hint": {"changes": {"hint": True}}}
    if inputs.mask is not None or inputs.mask_array is not None:
        ways["float mask"] = {"changes": {"float_mask": True}}
    calls = {name: impl.call(inputs, **way) for name, way in (ways | hints).items()}
    if inputs.squeezed:
        return calls
    for name, (problem, flags) in with_appended_key(inputs).items():
        layer = impl.make(problem, **flags)
        longer = {name: impl.call(inputs, layer=layer)} | {
            f"{name}, {hint}": impl.call(inputs, layer=layer, **way) for hint, way in hints.items()
        }
        calls |= {n: replace(call, problem=problem) for n, call in longer.items()}
    return calls


def with_appended_key(inputs: Inputs) -> dict[str, tuple[Inputs, dict[str, Any]]]:
    """Returns by name problems with one more key, each with the flags of `multi_head` that make a layer
    append this key. All rows attend it. It is a learned key (add_bias_kv) or zeros (add_zero_attn).

    Without biases a row of zeros is projected to zeros.
    """
    longer, biases = _with_row(inputs, -1), {"key_bias", "value_bias"} & set(inputs.parameters)
    state = {f"bias_{n[0]}": _last_projected(longer, n) for n in ("key", "value")}
    unbiased = inputs.replace(**{n: np.zeros_like(inputs.parameters[n]) for n in biases})
    return {
        "bias_k and bias_v": (longer, {"add_bias_kv": True, "state": state}),
        "add_zero_attn": (_with_row(unbiased, 0), {"add_zero_attn": True}),
    }


def _last_projected(inputs: Inputs, name: str) -> np.ndarray:
    """Returns the projection (1, 1, H D) of the last key or value of the first sample."""
    p = inputs.parameters
    row = np.einsum("x,xhd->hd", getattr(inputs, name)[0, -1], p[f"{name}_kernel"])
    return round_to(row + p.get(f"{name}_bias", 0.0), inputs.dtype).reshape(1, 1, -1)


def _with_row(inputs: Inputs, factor: int) -> Inputs:
    """Returns the inputs with one more key and value in every sample, which all rows attend (see
    `with_appended_key`). They are the first ones of the first sample times `factor`; 0 makes zeros."""
    changes: dict[str, Any] = {"self_attention": False}
    for name in ("key", "value"):
        rows = getattr(inputs, name)
        appended_rows = np.broadcast_to(factor * rows[0, 0], (len(rows), 1, rows.shape[-1]))
        changes[name] = np.concatenate([rows, appended_rows], 1)
    for name, array, fill in (("bias", inputs.bias, 0.0), ("mask_array", inputs.dense_mask, True)):
        if array is not None:
            broadcast = np.broadcast_to(array, (*array.shape[:-1], inputs.sizes.Lk))
            column = np.full((*array.shape[:-1], 1), fill, array.dtype)
            changes[name] = np.concatenate([broadcast, column], -1)
    masked = {"mask": None, "form": "dense"} if inputs.dense_mask is not None else {}
    return inputs.replace(**changes, **masked)


NN_MHA = Layer(
    "nn-mha",
    MULTI_HEAD,
    multi_head,
    called,
    module_state,
    Declared(
        features=LAYER_FEATURES,
        refusals={
            "grouped-heads": "torch.nn.MultiheadAttention has as many key/value heads as query heads",
            "value-size": SPLIT,
            "head-width": SPLIT,
            "output-width": SPLIT,
            "average": "need_weights=True takes another path: nn-mha-weights",
            "weights": "need_weights=True takes another path: nn-mha-weights",
            "causal-alone": "is_causal is a hint beside a mask",
        },
        elections={
            "fully-masked-row": "zeros",
            "padded-sample": "zeros",
            "minus-inf-row": "zeros",
            "lowest-row": LOWEST_IN_FLOAT32,
            "fully-masked-row-gradient": "nothing",
            "causal-with-mask": "mask-ignored",
            "causal-alone": "raises",
            "mask-polarity": "hides",
            "nan-in-masked-key": "leaks",
            "nan-in-masked-value": "leaks",
        },
        dropout="elements",
        merges_mask_into_bias=True,
    ),
    differentiable=differentiable,
    arguments=masks_without_weights,
    paths=paths,
    wrong=({"embed_dim": 0}, {"num_heads": 0}, {"num_heads": 5}),
)
"""The layer with need_weights=False and parameters that require gradients: it calls
scaled_dot_product_attention."""

WEIGHTS = NN_MHA.but(
    name="nn-mha-weights",
    declared=NN_MHA.declared.taking("average", "weights").electing(
        {
            "fully-masked-row": "nan",
            "padded-sample": "nan",
            "minus-inf-row": "nan",
            "lowest-row": "uniform",
            "fully-masked-row-gradient": "nan",
            "causal-with-mask": "causal-ignored",
            "returned-weights": "after-dropout",
        }
    ),
    arguments=masks_with_weights,
)
"""The layer with need_weights=True: separate products and a softmax."""

FAST = NN_MHA.but(
    name="nn-mha-fast",
    called=partial(fast, MULTI_HEAD_PATH),
    declared=NN_MHA.declared.refusing(
        {
            "cross": "the fast path is for self-attention",
            "squeezed": "the fast path needs a batch axis",
            "odd-heads": "the fast path needs an even number of heads",
            "no-projection-bias": "the fast path needs biases",
            "bias": "the fast path has no float masks",
            "bias-with-mask": "the fast path has no float masks",
            "gradient": "the fast path has no gradients",
        }
    ).but(
        dropout="",
        elections={
            "fully-masked-row": "nan",
            "padded-sample": "nan",
            "causal-with-mask": "causal-ignored",
            # The finding fast-path-causal-alone.
            "causal-alone": "ignored",
            "mask-polarity": "hides",
        },
    ),
    paths=lambda impl, inputs: {},
)
"""The layer in eval() under no_grad: the fast path, `torch._native_multi_head_attention`."""


def quantizable(impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns the module before it is quantized. Its base class has parameters that it never reads."""
    from torch.ao.nn.quantizable import MultiheadAttention

    layer = construct(impl, inputs, MultiheadAttention, **flags)
    state = linear_state(inputs.parameters, np.concatenate)
    return with_state(impl, inputs, layer, state, strict=False)


QUANTIZABLE = WEIGHTS.but(
    name="ao-quantizable-mha",
    make=quantizable,
    called=lambda impl, inputs, arguments, **options: batch_second(
        impl, called(impl, inputs, arguments, **options)
    ),
    parameters=linear_state,
    differentiable=lambda impl, inputs: batch_second(impl, differentiable(impl, inputs)),
    declared=WEIGHTS.declared.refusing({"squeezed": "the class reads three axes"}).electing(
        {"causal-with-mask": "raises", "nan-in-masked-key": "blocked"}
    ),
    paths=lambda impl, inputs: {
        "batch_first=True": called(impl, inputs, impl.arguments(inputs), batch_first=True)
    },
    wrong=(),
)
"""The class that quantization puts in the place of the layer, in floating point. Its answer with
batch_first=True is the finding ao-mha-batch-first."""
