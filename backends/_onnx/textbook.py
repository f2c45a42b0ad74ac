"""What textbooks write, in the operators of ONNX: attention, and the layers of `backends.textbook`."""

from __future__ import annotations

import numpy as np

from backends._onnx.engine import OnnxEngine
from backends._onnx.graph import concatenated
from backends.declared import ATTENTION_FEATURES, Declared
from backends.masks import dense_arguments
from backends.prepared import PreparedCall, attention_call
from backends.protocol import Implementation
from backends.textbook import Numerics, Operations, textbooks
from suite.spec.inputs import Inputs


class Eager(Implementation):
    """MatMul, Softmax, MatMul; hidden scores are -inf."""

    backend: OnnxEngine

    name = "eager"
    declared = Declared(
        features=ATTENTION_FEATURES | {"sinks", "lse"},
        refusals={
            "native-causal": "textbook code has no causal flag",
            "native-window": "textbook code has no window",
        },
        elections={
            "fully-masked-row": "nan",
            "minus-inf-row": "nan",
            "no-keys": "zeros",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": "nan",
            "value-size": "accepted",
            "subnormal-output": "kept",
        },
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        scale, softcap, lse = (
            inputs.effective_scale,
            inputs.feature("softcap"),
            inputs.feature("lse"),
        )
        wide = inputs.dtype.widened.long_name

        def attention(query, key, value, mask, bias, sinks=None):
            if key.shape[1] != query.shape[1]:
                groups = query.shape[1] // key.shape[1]
                key = key.repeated(groups, 1)  # (B, H, Lk, D)
                value = value.repeated(groups, 1)
            scores = query @ key.transpose((0, 1, 3, 2)) * scale  # (B, H, Lq, Lk)
            if softcap is not None:
                scores = (scores / softcap).same("Tanh") * softcap
            if bias is not None:
                scores = scores + bias
            if mask is not None:
                scores = scores.where(mask, -np.inf)
            if sinks is not None:  # one more logit a head, whose value is 0
                sinks = sinks.reshape((1, -1, 1, 1)).expanded((*scores.shape[:-1], 1))
                logits = concatenated([scores, sinks], -1)  # (B, H, Lq, Lk + 1)
                weights = logits.same("Softmax", axis=-1)[..., :-1]
            else:
                weights = scores.same("Softmax", axis=-1)
            output = weights @ value  # (B, H, Lq, Dv)
            return (output, scores.cast(wide).reduced("ReduceLogSumExp", -1)) if lse else output

        plain = attention_call(attention, dense_arguments(self.backend, inputs), lse)
        return self.backend.recorded(plain)


def layers(backend: OnnxEngine, numerics: Numerics) -> list[Implementation]:
    """Every textbook layer as a graph, in the numerics class that the operators have."""
    return textbooks(backend, operations(backend), numerics)


def operations(backend: OnnxEngine) -> Operations:
    """How ONNX spells what textbook layers are written in."""

    def called(layer: Implementation, call: PreparedCall) -> PreparedCall:
        return backend.recorded(call)

    return Operations(
        softmax=lambda x: x.same("Softmax", axis=-1),
        fill=lambda x, hidden, number: x.where(hidden.same("Not"), number),
        tanh=lambda x: x.same("Tanh"),
        total=lambda x, axis: x.reduced("ReduceSum", axis),
        mean=lambda x, axis: x.reduced("ReduceMean", axis),
        root=lambda x: x.same("Sqrt"),
        concat=concatenated,
        transpose=lambda x, axes: x.transpose(axes),
        reshape=lambda x, shape: x.reshape(shape),
        repeat=lambda x, times, axis: x.repeated(times, axis),
        cos=lambda x: x.same("Cos"),
        sin=lambda x: x.same("Sin"),
        # Frequencies hang on no input: they are constants, computed as the graph is recorded.
        power=np.power,
        clip=np.clip,
        exp=lambda x: x.same("Exp"),
        log=lambda x: x.same("Log"),
        largest=lambda x, axis: x.reduced("ReduceMax", axis),
        cast=lambda x, dtype: x.cast(backend.kind(dtype)),
        overflowing_fill="nan",
        called=called,
    )
