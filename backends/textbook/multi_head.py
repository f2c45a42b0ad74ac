"""Textbook multi-head attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends.textbook.layer import Textbook
from attention_conformance.backends.textbook.norms import layer_norm
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD


def normalised(layer: Textbook, x: Any, name: str, rest: Mapping[str, Any], inputs: Inputs) -> Any:
    """Rows (..., D) of query, key or value, normalised if there is a gain."""
    gain = rest.get(f"{name}_gain")
    return x if gain is None else layer_norm(layer, x, {"gain": gain}, inputs)


class PackedHeads(Textbook):
    """One projection for all heads, split by a reshape and a transpose, and merged in reverse."""

    name = "packed-heads"
    operator = MULTI_HEAD
    declared = Textbook.declared.taking("qk-norm", "one-head", "gate")
    heads_apart = True

    def laid_out(self, inputs: Inputs) -> dict[str, np.ndarray]:
        packed = {}
        for name, array in inputs.parameters.items():
            if name == "output_kernel":
                array = array.reshape(-1, array.shape[-1])  # (H Dv, Eo)
            elif name.endswith("kernel"):
                array = array.reshape(array.shape[0], -1)  # (E, H D)
            elif name.endswith("bias"):
                array = array.reshape(-1)
            packed[name] = array
        return packed

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        ops, s = self.ops, inputs.sizes
        alone = inputs.squeezed

        def heads(x: Any, name: str, count: int) -> Any:
            y = x @ rest[f"{name}_kernel"]
            if f"{name}_bias" in rest:
                y = y + rest[f"{name}_bias"]
            y = ops.reshape(y, (s.B, -1, count, y.shape[-1] // count))
            y = normalised(self, y, name, rest, inputs)
            return ops.transpose(y, (0, 2, 1, 3))  # (B, H, L, D)

        q, k, v = heads(query, "query", s.H), heads(key, "key", s.Hkv), heads(value, "value", s.Hkv)
        if s.H != s.Hkv:
            k, v = ops.repeat(k, s.group, 1), ops.repeat(v, s.group, 1)
        scores = q @ ops.transpose(k, (0, 1, 3, 2)) * self.number(s.D**-0.5, inputs)
        if "bias" in rest:
            scores = scores + rest["bias"]
        weights = self.softmax(scores, rest.get("hidden"))  # (B, H, Lq, Lk)
        # -1, because one program may serve calls of several lengths.
        shape = (-1, s.H * s.Dv) if alone else (s.B, -1, s.H * s.Dv)
        output = ops.reshape(ops.transpose(weights @ v, (0, 2, 1, 3)), shape)
        if "gate_kernel" in rest:
            output = output * self.gate(query, rest, inputs)
        if "output_kernel" in rest:
            output = output @ rest["output_kernel"]
        if "output_bias" in rest:
            output = output + rest["output_bias"]
        if inputs.returned == "average" or "output_kernel" not in rest:
            weights = ops.mean(weights, 1)
        return output, weights[0] if alone else weights

    def gate(self, query: Any, rest: Mapping[str, Any], inputs: Inputs) -> Any:
        """The gates (B, Lq, H Dv) of concatenated heads."""
        gate = query @ rest["gate_kernel"]
        if "gate_bias" in rest:
            gate = gate + rest["gate_bias"]
        one = self.number(1.0, inputs)
        return one / (self.ops.exp(gate * self.number(-1.0, inputs)) + one)
