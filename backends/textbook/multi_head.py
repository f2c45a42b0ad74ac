"""Textbook multi-head attention: packed, head by head, and for one sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends.textbook.layer import Textbook
from attention_conformance.backends.textbook.norms import layer_norm
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD

PER_HEAD = ("query_bias", "key_bias", "value_bias")
"""Parameters (heads, size)."""


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


class PerHead(Textbook):
    """A list of projections, one per head, whose outputs are concatenated.

    Parameters and masks of head h are separate arguments, as "query_kernel.h".
    """

    name = "per-head"
    operator = MULTI_HEAD
    declared = PackedHeads.declared.refusing(
        {
            "raw-mask": "takes a mask for every head",
            "one-head": "takes several heads and an output projection",
            "gate": "has no gate",
        }
    )
    heads_apart = True

    def laid_out(self, inputs: Inputs) -> dict[str, np.ndarray]:
        apart = {}
        for name, array in inputs.parameters.items():
            if name == "output_kernel":
                apart[name] = array.reshape(-1, array.shape[-1])  # (H Dv, Eo)
            elif name in PER_HEAD or name.endswith("kernel"):
                heads = array if name in PER_HEAD else array.swapaxes(0, 1)
                apart |= {f"{name}.{h}": np.ascontiguousarray(x) for h, x in enumerate(heads)}
            else:
                apart[name] = array
        return apart

    def pairs(self, name: str, array: np.ndarray, inputs: Inputs) -> dict[str, np.ndarray]:
        heads = array[0] if inputs.squeezed else array.swapaxes(0, 1)
        return {f"{name}.{h}": np.ascontiguousarray(x) for h, x in enumerate(heads)}

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        ops, s = self.ops, inputs.sizes
        factor = self.number(s.D**-0.5, inputs)
        outputs, all_weights = [], []
        for h in range(s.H):
            g = h // s.group
            # (B, L, D) or (L, D)
            q, k, v = (
                normalised(self, self.projected(x, rest, name, head), name, rest, inputs)
                for x, name, head in ((query, "query", h), (key, "key", g), (value, "value", g))
            )
            swapped = (0, 2, 1) if len(k.shape) == 3 else (1, 0)
            scores = q @ ops.transpose(k, swapped) * factor
            if f"bias.{h}" in rest:
                scores = scores + rest[f"bias.{h}"]
            weights = self.softmax(scores, rest.get(f"hidden.{h}"))
            outputs.append(weights @ v)
            all_weights.append(weights)
        output = ops.concat(outputs, -1) @ rest["output_kernel"]
        if "output_bias" in rest:
            output = output + rest["output_bias"]
        axis = len(output.shape) - 2
        stacked = ops.concat(
            [ops.reshape(w, (*w.shape[:axis], 1, *w.shape[axis:])) for w in all_weights], axis
        )
        if inputs.returned == "average":
            return output, ops.mean(stacked, axis)
        return output, stacked

    def projected(self, x: Any, rest: Mapping[str, Any], name: str, head: int) -> Any:
        y = x @ rest[f"{name}_kernel.{head}"]
        bias = rest.get(f"{name}_bias.{head}")
        return y if bias is None else y + bias


class SingleSample(PerHead):
    """The form of most tutorials: one sample (L, width), a loop over the heads, concat."""

    name = "single-sample"
    declared = PerHead.declared.refusing({"batch": "takes one sample without a batch axis"})

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        if len(query.shape) != 2:
            raise ValueError(f"takes one sample (L, width), got {tuple(query.shape)}")
        return super().compute(query, key, value, rest, inputs)
