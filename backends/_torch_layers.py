"""PyTorch's layers: textbook code, and `torch.nn.MultiheadAttention` in its three code paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from backends.base import Backend, Implementation, Prepared
from backends.layers import Layer, LayerMasks, Operations, full, operands, textbooks
from suite.spec.layers import EPSILON, LayerInputs

SPLIT = "torch.nn.MultiheadAttention splits embed_dim among the heads"


def layers(backend: Backend) -> list[Implementation]:
    """Every layer judged in PyTorch."""
    kinds = (
        MultiheadAttention, MultiheadAttentionWeights, MultiheadAttentionFast, TorchLayerNorm,
        TorchBatchNorm,
    )  # fmt: skip
    return [*textbooks(backend, _operations(), "eager"), *(kind(backend) for kind in kinds)]


def _operations() -> Operations:
    import torch

    return Operations(
        softmax=lambda x: torch.softmax(x, -1),
        fill=lambda x, hidden, number: x.masked_fill(hidden, number),
        tanh=torch.tanh,
        total=lambda x, axis: x.sum(axis),
        mean=lambda x, axis: x.mean(axis),
        root=torch.sqrt,
        concat=lambda arrays, axis: torch.cat(list(arrays), axis),
        transpose=lambda x, axes: x.permute(*axes),
        reshape=lambda x, shape: x.reshape(shape),
        repeat=lambda x, times, axis: x.repeat_interleave(times, axis),
        overflowing_fill="raises",
    )


class MultiheadAttention(Layer):
    """need_weights=False, parameters that require gradients: scaled_dot_product_attention inside."""

    name = "nn-mha"
    dropout = "elements"
    merges_mask_into_bias = True
    lacks = {
        "grouped-heads": "torch.nn.MultiheadAttention has as many key/value heads as query heads",
        "value-size": SPLIT,
        "head-width": SPLIT,
        "output-width": SPLIT,
        "average": "asked for weights it takes another path: nn-mha-weights",
        "weights": "asked for weights it takes another path: nn-mha-weights",
        "causal-alone": "is_causal is a hint beside a mask",
    }
    elections: Mapping[str, str | Mapping[str, str]] = {
        "fully-masked-row": "zeros",
        "padded-sample": "zeros",
        "minus-inf-row": "zeros",
        "fully-masked-row-gradient": "nothing",
        "causal-with-mask": "mask-ignored",
        "mask-polarity": "hides",
        "nan-in-masked-key": "leaks",
        "nan-in-masked-value": "leaks",
    }
    asks_weights = False
    without_gradients = False

    def prepare(self, inputs: LayerInputs) -> Prepared:
        return self.call(inputs)

    def call(
        self,
        inputs: LayerInputs,
        *,
        need_weights: bool | None = None,
        average: bool | None = None,
        batch_first: bool = True,
        train: bool | None = None,
        no_grad: bool | None = None,
        hint: bool = False,
        float_mask: bool = False,
    ) -> Prepared:
        """The call by any of the layer's flags; None leaves what this implementation stands for."""
        import torch

        layer = self.build(inputs, batch_first)
        layer.train(inputs.training if train is None else train)
        arguments: dict[str, Any] = operands(self.backend, inputs)
        if not batch_first and not inputs.single:
            swapped: dict[int, Any] = {}
            for name, array in arguments.items():
                arguments[name] = swapped.setdefault(id(array), array.transpose(0, 1).contiguous())
        arguments |= self.masks(inputs, hint, float_mask)
        arguments["need_weights"] = self.asks_weights if need_weights is None else need_weights
        arguments["average_attn_weights"] = (
            inputs.returned != "head" if average is None else average
        )
        quiet = self.without_gradients if no_grad is None else no_grad

        def run(**given: Any) -> tuple[Any, Any]:
            if inputs.training and inputs.rate:
                torch.manual_seed(inputs.dropout_seed)
            with torch.set_grad_enabled(not quiet):
                output, weights = layer(**given)
            if not batch_first and not inputs.single:
                output = output.transpose(0, 1)
            return output, weights if inputs.returned != "none" else None

        return Prepared(run, arguments)

    def differentiable(self, inputs: LayerInputs) -> Prepared:
        import torch

        made, layer = self.prepare(inputs), self.build(inputs)
        layer.train(inputs.training)
        own = {n: self.backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}

        def run(**given: Any) -> Any:
            parameters = {name: given.pop(name) for name in own}
            state = self.state(parameters, inputs, torch.cat)
            return torch.func.functional_call(layer, state, (), given)

        return Prepared(run, made.arguments | own)

    def build(self, inputs: LayerInputs, batch_first: bool = True) -> Any:
        """A fresh layer with the inputs' parameters."""
        import torch

        p, w = inputs.parameters, inputs.widths
        made = torch.nn.MultiheadAttention(
            w.query,
            inputs.sizes.H,
            dropout=inputs.rate,
            bias="query_bias" in p,
            kdim=w.key,
            vdim=w.value,
            batch_first=batch_first,
            device=self.backend.device,
            dtype=getattr(torch, inputs.dtype.long_name),
        )
        state = self.state(p, inputs, np.concatenate)
        made.load_state_dict(
            {n: self.backend.array(np.ascontiguousarray(a), inputs.dtype) for n, a in state.items()}
        )
        return made

    def state(self, p: Mapping[str, Any], inputs: LayerInputs, join: Callable) -> dict[str, Any]:
        """Canonical parameters, arrays of NumPy or torch, by the module's names; `join` concatenates."""
        w = inputs.widths
        kernels = [p[f"{n}_kernel"].reshape(p[f"{n}_kernel"].shape[0], -1).T for n in _QKV]
        state = {"out_proj.weight": p["output_kernel"].reshape(-1, w.output).T}
        if w.query == w.key == w.value:
            state["in_proj_weight"] = join(kernels)
        else:
            state |= {f"{n[0]}_proj_weight": k for n, k in zip(_QKV, kernels, strict=True)}
        if "query_bias" in p:
            state["in_proj_bias"] = join([p[f"{n}_bias"].reshape(-1) for n in _QKV])
            state["out_proj.bias"] = p["output_bias"]
        return state

    def masks(self, inputs: LayerInputs, hint: bool, float_mask: bool) -> dict[str, Any]:
        """key_padding_mask and attn_mask; in both True hides. The flag stands beside a mask."""
        backend = self.backend
        if inputs.form == "flag-and-mask":
            inputs, hint = replace(inputs, mask=None, form="dense"), True
        given = LayerMasks.of(inputs, causal=False)
        made: dict[str, Any] = {}
        if given.valid is not None:
            valid = given.valid[0] if inputs.single else given.valid
            made["key_padding_mask"] = backend.array(~valid, None)
        if given.rest is not None or inputs.bias is not None:
            hidden = None if given.rest is None else ~given.rest
            if inputs.form == "raw":
                return {"attn_mask": backend.array(given.rest, None)}  # type: ignore[arg-type]
            if inputs.bias is not None or float_mask:
                added = np.zeros((1, 1)) if inputs.bias is None else inputs.bias
                if hidden is not None:
                    added = np.where(hidden, -np.inf, added)
                made["attn_mask"] = backend.array(self.shaped(added, inputs), inputs.dtype)
            else:
                made["attn_mask"] = backend.array(self.shaped(hidden, inputs), None)
        if hint:
            made["is_causal"] = True
        return made

    def shaped(self, mask: Any, inputs: LayerInputs) -> np.ndarray:
        """(Lq, Lk) where samples and heads share the mask, else (B H, Lq, Lk)."""
        s = inputs.sizes
        if mask.ndim == 2 or mask.shape[:2] == (1, 1):
            return np.ascontiguousarray(np.broadcast_to(mask, (1, 1, s.Lq, s.Lk))[0, 0])
        return full(mask, inputs).reshape(s.B * s.H, s.Lq, s.Lk).copy()

    def paths(self, inputs: LayerInputs) -> Mapping[str, Prepared]:
        from suite.spec.masks import Causal

        alone = isinstance(inputs.mask, Causal) and not inputs.mask.bottom_right
        flags: dict[str, dict[str, Any]] = {
            "train()": {"train": True},
            "no_grad": {"no_grad": True},
            "no_grad, train()": {"no_grad": True, "train": True},
        }
        if not inputs.single:
            flags["batch_first=False"] = {"batch_first": False}
        if inputs.returned == "none":
            flags["need_weights"] = {"need_weights": True}
            flags["need_weights, average off"] = {"need_weights": True, "average": False}
            flags["need_weights, no_grad"] = {"need_weights": True, "no_grad": True}
        if inputs.mask is not None or inputs.mask_array is not None:
            flags["float mask"] = {"float_mask": True}
            flags["float mask, no_grad"] = {"float_mask": True, "no_grad": True}
        if alone and inputs.bias is None:
            flags["is_causal hint"] = {"hint": True}
            flags["is_causal hint, no_grad"] = {"hint": True, "no_grad": True}
            if inputs.returned == "none":
                flags["is_causal hint, need_weights"] = {"hint": True, "need_weights": True}
        return {name: self.call(inputs, **given) for name, given in flags.items()}


_QKV = ("query", "key", "value")


class MultiheadAttentionWeights(MultiheadAttention):
    """need_weights=True: separate products and a softmax."""

    name = "nn-mha-weights"
    numerics: str | Mapping[str, str] = "eager"
    asks_weights = True
    elections = dict(MultiheadAttention.elections) | {
        "fully-masked-row": "nan",
        "padded-sample": "nan",
        "minus-inf-row": "nan",
        "fully-masked-row-gradient": "nan",
        "causal-with-mask": "causal-ignored",
        "returned-weights": "after-dropout",
    }
    lacks = {
        n: why for n, why in MultiheadAttention.lacks.items() if n not in ("average", "weights")
    }


class MultiheadAttentionFast(MultiheadAttention):
    """eval() under no_grad: the fast path, `torch._native_multi_head_attention`."""

    name = "nn-mha-fast"
    without_gradients = True
    dropout = ""
    elections = {
        "fully-masked-row": "nan",
        "padded-sample": "nan",
        "causal-with-mask": "causal-ignored",
        "mask-polarity": "hides",
    }
    lacks = MultiheadAttention.lacks | {
        "cross": "the fast path is for self-attention",
        "single": "the fast path is for batches",
        "odd-heads": "the fast path needs an even number of heads",
        "no-projection-bias": "the fast path needs biases",
        "bias": "the fast path takes no float masks",
        "bias-with-mask": "the fast path takes no float masks",
        "gradient": "the fast path runs without gradients",
    }

    def call(self, inputs: LayerInputs, **flags: Any) -> Prepared:
        made = super().call(inputs, **flags)

        def forced(**given: Any) -> Any:
            answer, taken = witnessed(lambda: made.function(**given))
            if not taken:
                raise RuntimeError("the fast path was not taken")
            return answer

        return Prepared(forced, made.arguments)

    def paths(self, inputs: LayerInputs) -> Mapping[str, Prepared]:
        return {}


class TorchNorm(Layer):
    """A norm of torch: a module whose weight and bias are gain and offset."""

    names: Mapping[str, str] = {"weight": "gain", "bias": "offset"}
    """What torch calls the canonical parameters."""

    def module(self, inputs: LayerInputs) -> Any:
        """The module, in float32 and with parameters of its own."""
        raise NotImplementedError

    def turned(self, x: Any) -> Any:
        """(B, L, E) as the module takes it, and back."""
        return x

    def build(self, inputs: LayerInputs) -> Any:
        """A fresh layer with the inputs' parameters."""
        layer = self.backend.settled(self.module(inputs), inputs.dtype).train(inputs.training)
        p = inputs.parameters
        given = {n: self.backend.array(p[g], inputs.dtype) for n, g in self.names.items() if g in p}
        layer.load_state_dict(given, strict=False)
        return layer

    def prepare(self, inputs: LayerInputs) -> Prepared:
        layer = self.build(inputs)
        made = operands(self.backend, inputs)
        return Prepared(
            lambda query: (self.turned(layer(self.turned(query))), None), {"query": made["query"]}
        )

    def differentiable(self, inputs: LayerInputs) -> Prepared:
        import torch

        made, layer = self.prepare(inputs), self.build(inputs)
        names = {ours: theirs for theirs, ours in self.names.items()}
        state = dict(layer.named_parameters())
        own = {ours: state[theirs].detach() for ours, theirs in names.items() if theirs in state}

        def run(query: Any, **given: Any) -> tuple[Any, None]:
            handed = {names[ours]: array for ours, array in given.items()}
            output = torch.func.functional_call(layer, handed, (self.turned(query),))
            return self.turned(output), None

        return Prepared(run, made.arguments | own)


class TorchLayerNorm(TorchNorm):
    """`torch.nn.LayerNorm` over the last axis."""

    name = "nn-layer-norm"
    operator = "layer-norm"
    numerics = "exact"

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        if backend.device == "cpu":
            # With parameters in 16 bits native_layer_norm returns mean and root in 16 bits.
            self.narrow_statistics = ("bf16", "f16")
            # Its derivative adds row after row to gradients in 16 bits.
            self.narrow_biases = dict.fromkeys(self.narrow_statistics, ("gain", "offset"))

    def module(self, inputs: LayerInputs) -> Any:
        import torch

        width, affine = inputs.widths.query, "gain" in inputs.parameters
        return torch.nn.LayerNorm(width, eps=EPSILON, elementwise_affine=affine)


class TorchBatchNorm(TorchNorm):
    """`torch.nn.BatchNorm1d`, which takes features in the second axis."""

    name = "nn-batch-norm"
    operator = "batch-norm"
    # With parameters in 16 bits the batch's mean and variance are stored in 16 bits, too.
    numerics: str | Mapping[str, str] = {
        "f64": "exact", "f32": "exact", "bf16": "stepwise", "f16": "stepwise"
    }  # fmt: skip
    names = {**TorchNorm.names, "running_mean": "mean", "running_var": "variance"}

    def module(self, inputs: LayerInputs) -> Any:
        import torch

        affine = "gain" in inputs.parameters
        return torch.nn.BatchNorm1d(inputs.widths.query, eps=EPSILON, affine=affine)

    def turned(self, x: Any) -> Any:
        return x.transpose(1, 2)


def witnessed(function: Callable[[], Any]) -> tuple[Any, bool]:
    """What a call returns, and whether it ran torch's fast path: the native function it ends in."""
    import torch

    taken = []
    original = torch._native_multi_head_attention

    def witness(*arguments: Any, **named: Any) -> Any:
        taken.append(True)
        return original(*arguments, **named)

    torch._native_multi_head_attention = witness  # type: ignore[assignment]
    try:
        answer = function()
    finally:
        torch._native_multi_head_attention = original
    return answer, bool(taken)
