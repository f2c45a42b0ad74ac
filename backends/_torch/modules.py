"""Calls of PyTorch's modules: parameters, masks, modes, and detection of fast paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import RLock
from typing import Any

import numpy as np

from attention_conformance.backends.layer import FrameworkLayer, output_and_weights
from attention_conformance.backends.masks import full, split_native
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import seeded
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS


def matrix(kernel: Any) -> Any:
    """Returns a kernel (inputs, ...) as the weight (outputs, inputs) of a linear layer."""
    return kernel.reshape(kernel.shape[0], -1).T


def output_state(p: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of the projection `out_proj` by their names."""
    kernel = p["output_kernel"]
    state = {"out_proj.weight": kernel.reshape(-1, kernel.shape[-1]).T}
    return state | ({"out_proj.bias": p["output_bias"]} if "output_bias" in p else {})


def module_state(p: Mapping[str, Any], join: Callable[..., Any]) -> dict[str, Any]:
    """Returns canonical parameters (arrays of NumPy or torch) by the names of
    `torch.nn.MultiheadAttention`.

    The module has one weight for three projections of the same width. `join` concatenates arrays.
    """
    weights = {f"{n[0]}_proj_weight": matrix(p[f"{n}_kernel"]) for n in OPERANDS}
    if len({weight.shape[1] for weight in weights.values()}) == 1:
        weights = {"in_proj_weight": join([*weights.values()])}
    if "query_bias" in p:
        weights["in_proj_bias"] = join([p[f"{n}_bias"].reshape(-1) for n in OPERANDS])
    return weights | output_state(p)


def linear_state(p: Mapping[str, Any], join: Callable[..., Any]) -> dict[str, Any]:
    """Returns canonical parameters by the names of `torch.ao.nn.quantizable.MultiheadAttention`, which
    has a linear layer for each projection."""
    names = {name: f"linear_{name[0].upper()}" for name in OPERANDS}
    weights = {f"{names[n]}.weight": matrix(p[f"{n}_kernel"]) for n in OPERANDS}
    if "query_bias" in p:
        weights |= {f"{names[n]}.bias": p[f"{n}_bias"].reshape(-1) for n in OPERANDS}
    return weights | output_state(p)


def settings(impl: FrameworkLayer, inputs: Inputs) -> dict[str, Any]:
    """Returns the device and the dtype of a module's parameters, as arguments of its constructor."""
    dtype = getattr(impl.backend.torch, inputs.dtype.long_name)
    return {"device": impl.backend.device, "dtype": dtype}


def with_state(
    impl: FrameworkLayer, inputs: Inputs, layer: Any, state: Mapping[str, Any], strict: bool = True
) -> Any:
    """Returns the layer after `load_state_dict(state)`. `strict`: raise if `state` lacks a parameter."""
    array, dtype = impl.backend.array, inputs.dtype
    arrays = {name: array(np.ascontiguousarray(a), dtype) for name, a in state.items()}
    layer.load_state_dict(arrays, strict=strict)
    return layer


def masks(
    impl: FrameworkLayer, inputs: Inputs, hint: bool = False, float_mask: bool = False
) -> dict[str, Any]:
    """Returns the arguments key_padding_mask (B, Lk) and attn_mask, in which True is masked.

    - `hint`: also pass is_causal=True, a hint that attn_mask is causal
    - `float_mask`: attn_mask has 0 and -inf

    In the form "flag" only is_causal is passed.
    """
    array = impl.backend.array
    if inputs.form == "flag":
        return {"is_causal": True}
    if inputs.form == "flag-and-mask":
        inputs, hint = inputs.replace(mask=None, form="dense"), True
    native = split_native(inputs, lengths=True)
    valid, dense = native.valid(inputs), native.dense(inputs)
    masks: dict[str, Any] = {}
    if valid is not None:
        masks["key_padding_mask"] = array(~(valid[0] if inputs.squeezed else valid), None)
    if dense is not None and inputs.form == "raw":
        return {"attn_mask": array(dense, None)}
    if inputs.bias is not None or (dense is not None and float_mask):
        added = np.zeros((1, 1)) if inputs.bias is None else inputs.bias
        if dense is not None:
            added = np.where(dense, added, -np.inf)
        masks["attn_mask"] = array(_shaped(added, inputs), inputs.dtype)
    elif dense is not None:
        masks["attn_mask"] = array(_shaped(~dense, inputs), None)
    return masks | ({"is_causal": True} if hint else {})


def _shaped(mask: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Returns the mask as (Lq, Lk) if samples and heads share it, else as (B H, Lq, Lk)."""
    s = inputs.sizes
    if mask.ndim == 2 or mask.shape[:2] == (1, 1):
        return np.ascontiguousarray(np.broadcast_to(mask, (1, 1, s.Lq, s.Lk))[0, 0])
    return full(mask, inputs).reshape(s.B * s.H, s.Lq, s.Lk).copy()


def called(
    impl: FrameworkLayer,
    inputs: Inputs,
    arguments: dict[str, Any],
    *,
    layer: Any = None,
    train: bool | None = None,
    no_grad: bool = False,
    **flags: Any,
) -> PreparedCall:
    """Returns a call of `layer`, by default of a new one made with `flags`.

    - `train`: the layer's mode, by default that of the inputs
    - `no_grad`: the call is made without gradients
    """
    import torch

    layer = impl.make(inputs, **flags) if layer is None else layer
    layer.train(inputs.training if train is None else train)

    def run(**arguments: Any) -> tuple[Any, Any]:
        with torch.set_grad_enabled(not no_grad):
            return output_and_weights(layer(**arguments), inputs)

    state = layer.state_dict(keep_vars=True).values()
    return PreparedCall(
        seeded(impl.backend, run, inputs), arguments, LAYER_OUTPUTS, operands=impl.row.operands,
        layer_parameters=tuple(array for array in state if array.is_floating_point()),
    )  # fmt: skip


def batch_second(impl: FrameworkLayer, plain: PreparedCall) -> PreparedCall:
    """Returns `plain`, a call of operands (L, B, E), as a call whose operands and output are (B, L,
    E)."""
    operands = tuple(impl.row.operands.values())

    # Dynamo traces no view of a dict from outside the function, and no call of `dict[int, Any]`.
    def run(**arguments: Any) -> tuple[Any, Any]:
        transposed: dict[int, Any] = {}  # operands that are one array stay one array
        for name in operands:
            x = arguments[name]
            arguments[name] = transposed.setdefault(id(x), x.transpose(0, 1))
        output, weights = plain.function(**arguments)
        return output.transpose(0, 1), weights

    return replace(plain, function=run)


def differentiable(impl: FrameworkLayer, inputs: Inputs) -> PreparedCall:
    """Returns the call to differentiate, in which canonical parameters are arguments, too."""
    import torch

    prepared, layer = impl.prepare(inputs), impl.make(inputs).train(inputs.training)
    learned = inputs.parameters.keys() - {*inputs.operator.array_kinds.statistics}
    p = {name: impl.backend.array(inputs.parameters[name], inputs.dtype) for name in learned}

    def run(**arguments: Any) -> tuple[Any, Any]:
        state = impl.row.parameters({name: arguments.pop(name) for name in p}, torch.cat)
        return output_and_weights(torch.func.functional_call(layer, state, (), arguments), inputs)

    return replace(prepared, function=run, arguments=prepared.arguments | p, layer_parameters=())


def fast(
    native: str, impl: FrameworkLayer, inputs: Inputs, arguments: dict[str, Any], **options: Any
) -> PreparedCall:
    """Returns the call without gradients. It raises RuntimeError unless it calls the function
    `torch.<native>`."""
    prepared = called(impl, inputs, arguments, no_grad=True, **options)

    def call(**arguments: Any) -> Any:
        answer, took_fast_path = witnessed(lambda: prepared.function(**arguments), native)
        if not took_fast_path:
            raise RuntimeError("the fast path was not taken")
        return answer

    return replace(prepared, function=call)


MULTI_HEAD_PATH = "_native_multi_head_attention"

_WITNESS = RLock()
"""Locked while a function of torch is replaced by its witness, which all threads see."""


def witnessed(function: Callable[[], Any], native: str = MULTI_HEAD_PATH) -> tuple[Any, bool]:
    """Returns the answer of a call, and True if it called `torch.<native>`, that is, took the fast path.
    While a compiler traces, no function can be replaced, so True is assumed."""
    import torch

    if torch.compiler.is_compiling():
        return function(), True  # a compiler traces no function that is replaced meanwhile
    calls = []

    def recording(*arguments: Any, **keywords: Any) -> Any:
        calls.append(True)
        return original(*arguments, **keywords)

    with _WITNESS:
        original = getattr(torch, native)
        setattr(torch, native, recording)
        try:
            answer = function()
        finally:
            setattr(torch, native, original)
    return answer, bool(calls)
