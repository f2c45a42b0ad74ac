"""Calls of `torch.nn.functional.multi_head_attention_forward` with arguments that
`torch.nn.MultiheadAttention` never passes, layers that append a key, and tensors of a subclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall, variations
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS


def weights(p: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of the three projections (arrays of NumPy or torch) by the module's names."""
    kernels = {f"{n[0]}_proj_weight": p[f"{n}_kernel"] for n in OPERANDS}
    return {name: kernel.reshape(kernel.shape[0], -1).T for name, kernel in kernels.items()}


def biases(p: Mapping[str, Any], join: Callable[..., Any]) -> dict[str, Any]:
    """The biases of all projections by the module's names; empty without biases."""
    if "query_bias" not in p:
        return {}
    joined = join([p[f"{n}_bias"].reshape(-1) for n in OPERANDS])
    return {"in_proj_bias": joined, "out_proj.bias": p["output_bias"]}


def module_state(p: Mapping[str, Any], join: Callable[..., Any]) -> dict[str, Any]:
    """Canonical parameters (arrays of NumPy or torch) by the names of `torch.nn.MultiheadAttention`.

    The module has one weight for three projections of one width; `join` concatenates.
    """
    kernel, projections = p["output_kernel"], weights(p)
    if len({weight.shape[1] for weight in projections.values()}) == 1:
        projections = {"in_proj_weight": join(list(projections.values()))}
    mixing = {"out_proj.weight": kernel.reshape(-1, kernel.shape[-1]).T}
    return mixing | projections | biases(p, join)


def separate(
    plain: PreparedCall, layer: Any, backend: TorchEngine, inputs: Inputs, **more: Any
) -> PreparedCall:
    """A call of the function with separate weights for the projections, and the arguments `more`."""
    named = {
        name: backend.array(np.ascontiguousarray(weight), inputs.dtype)
        for name, weight in weights(inputs.parameters).items()
    }
    function = backend.torch.nn.functional.multi_head_attention_forward

    def run(query: Any, key: Any, value: Any, **arguments: Any) -> tuple[Any, Any]:
        q, k, v = (x.transpose(0, 1) for x in (query, key, value))
        output, shown = function(
            q, k, v,
            layer.embed_dim, layer.num_heads, None, layer.in_proj_bias, layer.bias_k, layer.bias_v,
            layer.add_zero_attn, 0.0, layer.out_proj.weight, layer.out_proj.bias, training=False,
            use_separate_proj_weight=True, **named, **more, **arguments,
        )  # fmt: skip
        return output.transpose(0, 1), shown if inputs.returned != "none" else None

    return PreparedCall(run, plain.arguments, LAYER_OUTPUTS)


def with_projected(
    plain: PreparedCall, layer: Any, backend: TorchEngine, inputs: Inputs
) -> PreparedCall:
    """A call of the function with projected keys and values (static_k, static_v)."""
    rows = {f"static_{n[0]}": projected(inputs, n) for n in ("key", "value")}
    static = {name: backend.array(row, inputs.dtype) for name, row in rows.items()}
    return separate(plain, layer, backend, inputs, **static)


def projected(inputs: Inputs, name: str) -> np.ndarray:
    """Projected keys or values, (B H, Lk, D or Dv)."""
    s, p = inputs.sizes, inputs.parameters
    rows = np.einsum("bkx,xhd->bhkd", getattr(inputs, name), p[f"{name}_kernel"])
    if f"{name}_bias" in p:
        rows = rows + p[f"{name}_bias"][:, None]
    return round_to(rows.reshape(s.B * s.H, s.Lk, -1), inputs.dtype)


@dataclass(frozen=True)
class Appended:
    """A problem with one more key, which the layer appends and all rows attend."""

    problem: Inputs
    flags: Mapping[str, Any]
    """Arguments of the layer's constructor."""
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The layer's parameters for the key and its value."""


def appended(inputs: Inputs) -> dict[str, Appended]:
    """Problems for layers that append a learned key and value (add_bias_kv) or zeros (add_zero_attn).

    Without biases a row of zeros is projected to zeros.
    """
    own = _with_row(inputs, -1)
    s = own.sizes
    state = {
        f"bias_{n[0]}": projected(own, n)[: s.H, -1].reshape(1, 1, -1) for n in ("key", "value")
    }
    biases = {"key_bias", "value_bias"} & set(inputs.parameters)
    unbiased = inputs.replace(**{n: np.zeros_like(inputs.parameters[n]) for n in biases})
    return {
        "bias_k and bias_v": Appended(own, {"add_bias_kv": True}, state),
        "add_zero_attn": Appended(_with_row(unbiased, 0), {"add_zero_attn": True}),
    }


def _with_row(inputs: Inputs, factor: int) -> Inputs:
    """The inputs with one more key and value in every sample, which all rows attend: the first ones of
    the first sample times `factor`."""
    changes: dict[str, Any] = {"self_attention": False}
    for name in ("key", "value"):
        rows = getattr(inputs, name)
        more = np.broadcast_to(factor * rows[0, 0], (len(rows), 1, rows.shape[-1]))
        changes[name] = np.concatenate([rows, more], 1)
    for name, array, seen in (("bias", inputs.bias, 0.0), ("mask_array", inputs.dense_mask, True)):
        if array is not None:
            every = np.broadcast_to(array, (*array.shape[:-1], inputs.sizes.Lk))
            one = np.full((*array.shape[:-1], 1), seen, array.dtype)
            changes[name] = np.concatenate([every, one], -1)
    masked = {"mask": None, "form": "dense"} if inputs.dense_mask is not None else {}
    return inputs.replace(**changes, **masked)


def refused(layer: Any, query: Any) -> dict[str, Callable[[], Any]]:
    """Calls of the function with meaningless arguments; `query` is (B, L, E)."""
    import torch

    rows = query.transpose(0, 1)
    length, samples, width = rows.shape
    heads, size = samples * layer.num_heads, width // layer.num_heads
    longer = torch.cat([rows, rows[:1]])
    apart = dict(zip(("q", "k", "v"), layer.in_proj_weight.chunk(3), strict=True))
    separate = {f"{n}_proj_weight": w for n, w in apart.items()} | {
        "use_separate_proj_weight": True
    }
    bias, static = rows.new_zeros(1, 1, width), rows.new_zeros(heads, length, size)
    changes: dict[str, dict[str, Any]] = {
        "another width": {"embed_dim_to_check": width + 1},
        "heads that do not divide the width": {"num_heads": layer.num_heads + 1},
        "query of rank 4": {"query": rows[None]},
        "key of rank 2": {"key": rows[0]},
        "more values than keys": {"value": longer},
        "separate weights, more values than keys": {"value": longer, **separate},
        "an input bias of another size": {
            "in_proj_bias": rows.new_zeros(3 * width + 3),
            **separate,
        },
        **{
            f"{n}_proj_weight of another shape": {**separate, f"{n}_proj_weight": w[1:]}
            for n, w in apart.items()
        },
        "attn_mask of more queries": {"attn_mask": rows.new_zeros(length + 1, length)},
        "attn_mask of more heads": {"attn_mask": rows.new_zeros(heads + 1, length, length)},
        "attn_mask of rank 4": {"attn_mask": rows.new_zeros(1, heads, length, length)},
        "attn_mask of whole numbers": {
            "attn_mask": torch.zeros(length, length, dtype=torch.int32, device=rows.device)
        },
        "key_padding_mask of more samples": {
            "key_padding_mask": rows.new_zeros(samples + 1, length)
        },
        "key_padding_mask of more keys": {"key_padding_mask": rows.new_zeros(samples, length + 1)},
        "bias_k alone": {"bias_k": bias},
        "bias_v alone": {"bias_v": bias},
        "bias_k beside static_k": {"bias_k": bias, "bias_v": bias, "static_k": static},
        "bias_v beside static_v": {"bias_k": bias, "bias_v": bias, "static_v": static},
        "static_k of more heads": {"static_k": rows.new_zeros(heads + 1, length, size)},
        "static_v of more heads": {"static_v": rows.new_zeros(heads + 1, length, size)},
        "static_k of another head size": {"static_k": rows.new_zeros(heads, length, size + 1)},
        "static_v of another head size": {"static_v": rows.new_zeros(heads, length, size + 1)},
        "is_causal without a mask": {"is_causal": True},
    }
    own = {
        "query": rows, "key": rows, "value": rows,
        "embed_dim_to_check": width, "num_heads": layer.num_heads,
        "in_proj_weight": layer.in_proj_weight, "in_proj_bias": layer.in_proj_bias,
        "bias_k": None, "bias_v": None, "add_zero_attn": False, "dropout_p": 0.0,
        "out_proj_weight": layer.out_proj.weight, "out_proj_bias": layer.out_proj.bias,
    }  # fmt: skip
    function = torch.nn.functional.multi_head_attention_forward
    return variations(function, own, changes)


def of_subclass(plain: PreparedCall) -> PreparedCall:
    """The call with tensors of a subclass, which torch passes to `__torch_function__`."""
    import torch

    class Tagged(torch.Tensor):
        pass

    def run(**arguments: Any) -> tuple[Any, Any]:
        tagged: dict[int, Any] = {}
        for name, array in arguments.items():
            if isinstance(array, torch.Tensor):
                arguments[name] = tagged.setdefault(id(array), array.as_subclass(Tagged))
        output, shown = plain.function(**arguments)
        return output.as_subclass(torch.Tensor), shown

    return replace(plain, function=run)
