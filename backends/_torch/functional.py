"""`torch.nn.functional.multi_head_attention_forward` by arguments that `torch.nn.MultiheadAttention`
does not hand on by itself, and keys that the layer appends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from backends._torch.engine import TorchEngine
from backends.prepared import LAYER_OUTPUTS, PreparedCall
from suite.spec.dtypes import round_to
from suite.spec.inputs import Inputs

QKV = ("query", "key", "value")


def weights(p: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of the three projections, arrays of NumPy or torch, by the module's names."""
    kernels = {f"{n[0]}_proj_weight": p[f"{n}_kernel"] for n in QKV}
    return {name: kernel.reshape(kernel.shape[0], -1).T for name, kernel in kernels.items()}


def biases(p: Mapping[str, Any], join: Callable[..., Any]) -> dict[str, Any]:
    """The biases of all projections, where there are any, by the module's names."""
    if "query_bias" not in p:
        return {}
    joined = join([p[f"{n}_bias"].reshape(-1) for n in QKV])
    return {"in_proj_bias": joined, "out_proj.bias": p["output_bias"]}


def module_state(p: Mapping[str, Any], join: Callable[..., Any]) -> dict[str, Any]:
    """Canonical parameters, arrays of NumPy or torch, by the names of `torch.nn.MultiheadAttention`,
    which has one weight for projections of one width; `join` concatenates."""
    kernel, found = p["output_kernel"], weights(p)
    if len({weight.shape[1] for weight in found.values()}) == 1:
        found = {"in_proj_weight": join(list(found.values()))}
    mixing = {"out_proj.weight": kernel.reshape(-1, kernel.shape[-1]).T}
    return mixing | found | biases(p, join)


def calls(
    plain: PreparedCall, layer: Any, backend: TorchEngine, inputs: Inputs
) -> dict[str, PreparedCall]:
    """Calls of the function, and of the layer with more keys, that answer what the layer's own call
    `plain` does; by what they are called."""
    found = {"functional, separate weights": called(plain, layer, backend, inputs)}
    if inputs.returned == "none" and inputs.mask is None and inputs.bias is None:
        rows = {f"static_{n[0]}": projected(inputs, n) for n in ("key", "value")}
        static = {name: backend.array(row, inputs.dtype) for name, row in rows.items()}
        found["static keys and values"] = called(plain, layer, backend, inputs, **static)
        if "key_bias" not in inputs.parameters and not inputs.self_attention:
            found["add_zero_attn"] = with_zeros(plain, layer, backend, inputs)
    mask = inputs.dense_mask
    if inputs.sizes.B == 1 < inputs.sizes.Lk and (mask is None or mask.ndim == 2):
        found["last key as bias_k and bias_v"] = with_last_key_as_bias(
            plain, layer, backend, inputs
        )
    return found


def called(
    plain: PreparedCall,
    layer: Any,
    backend: TorchEngine,
    inputs: Inputs,
    zeros: bool = False,
    **more: Any,
) -> PreparedCall:
    """The function, called with a weight for each projection, and `more`; `zeros` is add_zero_attn."""
    named = {
        name: backend.array(np.ascontiguousarray(weight), inputs.dtype)
        for name, weight in weights(inputs.parameters).items()
    }
    function = backend.torch.nn.functional.multi_head_attention_forward

    def run(query: Any, key: Any, value: Any, **arguments: Any) -> tuple[Any, Any]:
        q, k, v = (x.transpose(0, 1) for x in (query, key, value))
        output, shown = function(
            q, k, v,
            layer.embed_dim, layer.num_heads, None, layer.in_proj_bias, None, None, zeros, 0.0,
            layer.out_proj.weight, layer.out_proj.bias, training=False,
            use_separate_proj_weight=True, **named, **more, **arguments,
        )  # fmt: skip
        return output.transpose(0, 1), shown if inputs.returned != "none" else None

    return PreparedCall(run, plain.arguments, LAYER_OUTPUTS)


def projected(inputs: Inputs, name: str) -> np.ndarray:
    """Keys or values, (B H, Lk, D or Dv), as the layer projects them."""
    s, p = inputs.sizes, inputs.parameters
    rows = np.einsum("bkx,xhd->bhkd", getattr(inputs, name), p[f"{name}_kernel"])
    if f"{name}_bias" in p:
        rows = rows + p[f"{name}_bias"][:, None]
    return round_to(rows.reshape(s.B * s.H, s.Lk, -1), inputs.dtype)


def with_zeros(
    plain: PreparedCall, layer: Any, backend: TorchEngine, inputs: Inputs
) -> PreparedCall:
    """add_zero_attn, whose key and value are what rows of zeros are projected to without biases."""
    rows = {n: np.pad(getattr(inputs, n), ((0, 0), (0, 1), (0, 0))) for n in ("key", "value")}
    call = called(plain, layer, backend, inputs, zeros=True)
    return replace(call, problem=inputs.replace(**rows))


def with_last_key_as_bias(
    plain: PreparedCall, layer: Any, backend: TorchEngine, inputs: Inputs
) -> PreparedCall:
    """The last key and value of one sample as what add_bias_kv appends, projected beforehand. A mask is
    of the other keys: what is appended is seen by all rows."""
    for name in ("key", "value"):
        row = projected(inputs, name)[:, -1].reshape(1, 1, -1)
        bias = backend.torch.nn.Parameter(backend.array(row, inputs.dtype))
        setattr(layer, f"bias_{name[0]}", bias)
    layer.eval()

    def run(key: Any, value: Any, **arguments: Any) -> tuple[Any, Any]:
        output, shown = layer(key=key[:, :-1], value=value[:, :-1], **arguments)
        return output, shown if inputs.returned != "none" else None

    arguments, mask = plain.arguments, inputs.dense_mask
    if mask is None:
        return PreparedCall(run, arguments, LAYER_OUTPUTS)
    seen = np.array(np.broadcast_to(mask, (*mask.shape[:-1], inputs.sizes.Lk)))
    seen[..., -1] = True
    arguments = arguments | {"attn_mask": backend.array(~seen[..., :-1], None)}
    problem = inputs.replace(mask=None, mask_array=seen, form="dense")
    return PreparedCall(run, arguments, LAYER_OUTPUTS, problem=problem)
