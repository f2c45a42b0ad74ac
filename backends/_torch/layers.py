"""PyTorch's layers: textbook code, and `torch.nn.MultiheadAttention` in its three code paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._torch import functional
from attention_conformance.backends._torch.encoder import Encoder, EncoderFast, TextbookEncoder
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.functional import module_state
from attention_conformance.backends._torch.masks import MULTI_HEAD_PATH, Masked, forced, load
from attention_conformance.backends._torch.norms import TorchBatchNorm, TorchLayerNorm
from attention_conformance.backends._torch.operations import operations
from attention_conformance.backends.declared import LAYER_FEATURES, LOWEST_IN_FLOAT32, Declared
from attention_conformance.backends.masks import causal_alone
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import textbooks
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD

SPLIT = "torch.nn.MultiheadAttention splits embed_dim among the heads"


def layers(backend: TorchEngine) -> list[Implementation]:
    """All layers of PyTorch that are judged."""
    kinds: tuple[type[Implementation], ...] = (
        MultiheadAttention, MultiheadAttentionWeights, MultiheadAttentionFast, TorchLayerNorm,
        TorchBatchNorm, Encoder, EncoderFast,
    )  # fmt: skip
    ops = operations(backend.torch)
    return [
        *textbooks(backend, ops, "eager"), TextbookEncoder(backend, ops, "eager"),
        *(kind(backend) for kind in kinds),
    ]  # fmt: skip


class MultiheadAttention(Masked):
    """The layer with need_weights=False and parameters that require gradients.

    This path calls scaled_dot_product_attention.
    """

    name = "nn-mha"
    operator = MULTI_HEAD
    declared = Declared(
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
    )
    asks_weights = False
    without_gradients = False

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def call(
        self,
        inputs: Inputs,
        *,
        need_weights: bool | None = None,
        average: bool | None = None,
        batch_first: bool = True,
        train: bool | None = None,
        no_grad: bool | None = None,
        hint: bool = False,
        float_mask: bool = False,
        layer: Any = None,
    ) -> PreparedCall:
        """A call of the layer with flags; None for this implementation's own value. `layer` is called if
        given, else a new layer."""
        import torch

        layer = self.build(inputs, batch_first) if layer is None else layer
        layer.train(inputs.training if train is None else train)
        arguments: dict[str, Any] = sequences(self.backend, inputs)
        if not batch_first and not inputs.squeezed:
            swapped: dict[int, Any] = {}
            for name, array in arguments.items():
                arguments[name] = swapped.setdefault(id(array), array.transpose(0, 1).contiguous())
        arguments |= self.masks(inputs, hint, float_mask)
        # As in users' code: default values are not passed.
        if not (self.asks_weights if need_weights is None else need_weights):
            arguments["need_weights"] = False
        if not (inputs.returned != "head" if average is None else average):
            arguments["average_attn_weights"] = False
        quiet = self.without_gradients if no_grad is None else no_grad

        def run(**arguments: Any) -> tuple[Any, Any]:
            with torch.set_grad_enabled(not quiet):
                output, weights = layer(**arguments)
            if not batch_first and not inputs.squeezed:
                output = output.transpose(0, 1)
            return output, weights if inputs.returned != "none" else None

        function, held = self.backend.seeded(run, inputs), tuple(layer.parameters())
        return PreparedCall(function, arguments, LAYER_OUTPUTS, held=held)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        import torch

        plain, layer = self.prepare(inputs), self.build(inputs)
        layer.train(inputs.training)
        own = {n: self.backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}

        def run(**arguments: Any) -> Any:
            parameters = {name: arguments.pop(name) for name in own}
            state = module_state(parameters, torch.cat)
            return torch.func.functional_call(layer, state, (), arguments)

        return PreparedCall(run, plain.arguments | own, LAYER_OUTPUTS)

    def build(
        self,
        inputs: Inputs,
        batch_first: bool = True,
        state: Mapping[str, np.ndarray] | None = None,
        **flags: Any,
    ) -> Any:
        """A new layer with the inputs' parameters and those in `state`; `flags` go to its constructor."""
        import torch

        p, w = inputs.parameters, inputs.widths
        layer = torch.nn.MultiheadAttention(
            w.query,
            inputs.sizes.H,
            dropout=inputs.rate,
            bias="query_bias" in p,
            kdim=w.key,
            vdim=w.value,
            batch_first=batch_first,
            device=self.backend.device,
            dtype=getattr(torch, inputs.dtype.long_name),
            **flags,
        )
        whole = module_state(p, np.concatenate) | dict(state or {})
        return load(layer, whole, self.backend, inputs.dtype)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        flags: dict[str, dict[str, Any]] = {
            "train()": {"train": True},
            "no_grad": {"no_grad": True},
            "no_grad, train()": {"no_grad": True, "train": True},
        }
        if not inputs.squeezed:
            flags["batch_first=False"] = {"batch_first": False}
        if inputs.returned == "none":
            flags["need_weights"] = {"need_weights": True}
            flags["need_weights, average off"] = {"need_weights": True, "average": False}
            flags["need_weights, no_grad"] = {"need_weights": True, "no_grad": True}
        if inputs.mask is not None or inputs.mask_array is not None:
            flags["float mask"] = {"float_mask": True}
            flags["float mask, no_grad"] = {"float_mask": True, "no_grad": True}
        flags |= {f"is_causal hint{more}": options for more, options in self.hints(inputs).items()}
        calls = {name: self.call(inputs, **options) for name, options in flags.items()}
        return calls if inputs.squeezed else calls | self.functions(inputs)

    def hints(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        """Options of calls with is_causal beside a causal mask, by what they add to a path's name; empty
        if the mask is another one."""
        if not causal_alone(inputs) or inputs.bias is not None:
            return {}
        weights = {"need_weights": True} if inputs.returned == "none" else {}
        ways = {"": {}, ", no_grad": {"no_grad": True}, ", need_weights": weights}
        return {more: {"hint": True, **way} for more, way in ways.items() if way or not more}

    def functions(self, inputs: Inputs) -> dict[str, PreparedCall]:
        """Calls of the function behind the layer, and of layers that append a key."""
        backend, plain, layer = self.backend, self.call(inputs), self.build(inputs)
        calls = {"functional, separate weights": functional.separate(plain, layer, backend, inputs)}
        if inputs.returned == "none" and inputs.dense_mask is None and inputs.bias is None:
            static = functional.with_projected(plain, layer, backend, inputs)
            calls["functional, static keys and values"] = static
        for name, more in functional.appended(inputs).items():
            problem = more.problem
            longer = self.build(problem, state=more.state, **more.flags)
            own = {
                name: self.call(inputs, layer=longer),
                f"{name}, no_grad": self.call(inputs, layer=longer, no_grad=True),
                f"functional, {name}": functional.separate(plain, longer, backend, problem),
                **{
                    f"{name}, is_causal hint{more}": self.call(inputs, layer=longer, **options)
                    for more, options in self.hints(inputs).items()
                },
            }
            calls |= {path: replace(call, problem=problem) for path, call in own.items()}
        tagged = {"layer": plain, **{n: c for n, c in calls.items() if n.startswith("functional")}}
        return calls | {f"{n}, of a subclass": functional.of_subclass(c) for n, c in tagged.items()}

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        import torch

        layer, query = self.build(inputs), sequences(self.backend, inputs)["query"]
        width, heads = layer.embed_dim, layer.num_heads
        kind = torch.nn.MultiheadAttention
        return functional.refused(layer, query) | {
            "embed_dim=0": lambda: kind(0, heads),
            "num_heads=0": lambda: kind(width, 0),
            "num_heads that do not divide embed_dim": lambda: kind(width, heads + 1),
            "queries of another dtype": lambda: layer(query.double(), query, query),
        }


class MultiheadAttentionWeights(MultiheadAttention):
    """The layer with need_weights=True: separate products and a softmax."""

    name = "nn-mha-weights"
    declared = MultiheadAttention.declared.taking("average", "weights").electing(
        {
            "fully-masked-row": "nan",
            "padded-sample": "nan",
            "minus-inf-row": "nan",
            "lowest-row": "uniform",
            "fully-masked-row-gradient": "nan",
            "causal-with-mask": "causal-ignored",
            "returned-weights": "after-dropout",
        }
    )
    asks_weights = True


class MultiheadAttentionFast(MultiheadAttention):
    """The layer in eval() under no_grad: the fast path, `torch._native_multi_head_attention`."""

    name = "nn-mha-fast"
    declared = MultiheadAttention.declared.refusing(
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
    )
    without_gradients = True

    def call(self, inputs: Inputs, **flags: Any) -> PreparedCall:
        return forced(super().call(inputs, **flags), MULTI_HEAD_PATH)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        return {}
