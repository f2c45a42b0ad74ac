"""A right attention kernel with backward pass and JVP in NumPy, one method a step.

Faults are subclasses that change a step. The forward pass is that of `attention`; the backward pass
recomputes the weights, as fused kernels do. Letters of gradients:

- `dp`: of the weights
- `ds`: of the scores after softcap, bias and mask, the operand of the softmax
- `dt`: of the scores before the softcap
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.attention import (
    Array,
    Call,
    Eager,
    Fused,
    Kernel,
    rank4,
)
from attention_conformance.suite.spec.inputs import Inputs


class Differentiable(Kernel):
    """Attention with derivatives in working precision; only the gradients are rounded."""

    elections = Kernel.elections | {
        "fully-masked-row-gradient": "nothing",
        "lse-gradient": "flows",
        "nan-in-masked-key-gradient": "blocked",
        "nan-in-masked-value-gradient": "blocked",
    }

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return replace(super().prepare(inputs), vjp=self.differentiate, jvp=self.pushforward)

    def pushforward(
        self, query: Rounded, key: Rounded, value: Rounded, tangents: Mapping[str, Rounded],
        **options: Any,
    ) -> Any:  # fmt: skip
        """Returns the JVP of the output for the tangents of query, key and value."""
        call = Call(query, key, value, **options)
        with np.errstate(all="ignore"):
            return self.deliver(self.output_tangent(call, tangents), call)

    def output_tangent(self, call: Call, tangents: Mapping[str, Rounded]) -> Array:
        """Returns the JVP of the output for `tangents` of query, key and value, not yet rounded."""
        q, dq = (self.load(x, call) for x in (call.query, tangents["query"]))
        k, v, dk, dv = (
            self.expand(self.load(x, call), call)
            for x in (call.key, call.value, tangents["key"], tangents["value"])
        )
        scores = self.hidden_scores(q, k, call)
        weights, _ = self.split_weights(scores, call)
        v = self.visible(v, scores)
        ds = self.softcap_backward(self.score_tangent(q, k, dq, dk, call), q, k, call)
        ds = np.where(np.isneginf(scores), 0, ds)
        dp = weights * (ds - self.mean_score_tangent(weights, ds))
        return self.stored_score_gradient(dp, call) @ v + self.value_tangent(weights, dv)

    def score_tangent(self, q: Any, k: Any, dq: Any, dk: Any, call: Call) -> Array:
        """Returns the tangent of the scores before the softcap."""
        product = dq @ k.swapaxes(-1, -2) + q @ dk.swapaxes(-1, -2)
        tangent = self.keep(product * call.work(self.factor(call)), "scores", call)
        return self.tempered(tangent, call)

    def mean_score_tangent(self, weights: Array, ds: Array) -> Array:
        """Returns the sum of p ds in each row, which the JVP of the softmax subtracts."""
        return (weights * ds).sum(-1, keepdims=True)

    def value_tangent(self, weights: Array, dv: Array) -> Array:
        return weights @ dv

    def differentiate(
        self, query: Rounded, key: Rounded, value: Rounded, cotangent: Rounded,
        wrt: Sequence[str], **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Returns the gradients by name of the argument, rounded. `wrt`: the names asked for."""
        call = Call(query, key, value, **options)
        with np.errstate(all="ignore"):
            gradients = self.backward(call, self.load_cotangent(cotangent, call), tuple(wrt))
        if query is key is value:
            gradients = {**gradients, "query": self.shared_operand_gradient(gradients)}
        return {name: None if g is None else self.deliver(g, call) for name, g in gradients.items()}

    def shared_operand_gradient(self, gradients: Mapping[str, Any]) -> Any:
        """Returns the gradient of one array that is query, key and value at once."""
        return gradients["query"] + gradients["key"] + gradients["value"]

    def load_cotangent(self, cotangent: Rounded, call: Call) -> Array:
        """Returns the cotangent in working precision."""
        return self.load(cotangent, call)

    def backward(
        self, call: Call, cotangent: Array, wrt: tuple[str, ...]
    ) -> dict[str, Array | None]:
        """Returns the gradients of all arguments by name. For a cotangent (B, H, Lq), of the log-sum-exp,
        these are gradients of query and key alone. Only deviations read `wrt`, the names asked for."""
        query = self.load(call.query, call)
        key, value = (self.expand(self.load(x, call), call) for x in (call.key, call.value))
        scores = self.hidden_scores(query, key, call)
        attended = self.attended_keys(scores)
        key, value = np.where(attended, key, 0), np.where(attended, value, 0)
        weights, sink_weights = self.split_weights(scores, call)
        is_lse = cotangent.ndim == 3
        if is_lse:
            ds = self.lse_score_gradient(weights, cotangent[..., None], scores)
        else:
            dp = self.weight_gradient(cotangent, value, call)
            mean = self.mean(weights, dp, cotangent, value)
            ds = self.score_gradient(weights, dp, mean)
        dt = self.stored_score_gradient(self.softcap_backward(ds, query, key, call), call)
        if call.logit_scale is not None:
            logit_scale_gradient = self.logit_scale_gradient(dt, self.scores(query, key, call))
            dt = self.backward_tempered(dt, call)
        factor = call.work(self.factor(call))
        gradients: dict[str, Array | None] = {
            "query": self.query_gradient(dt, key, factor),
            "key": self.sum_over_groups(self.key_gradient(dt, query, factor), call),
        }
        if is_lse:
            return gradients
        gradients["value"] = self.sum_over_groups(
            self.value_gradient(weights, cotangent, call), call
        )
        if call.bias is not None:
            gradients["bias"] = self.bias_gradient(ds, call.bias.shape)
        if call.logit_scale is not None:
            gradients["logit_scale"] = logit_scale_gradient
        if call.sinks is not None:
            gradients["sinks"] = self.sink_gradient(sink_weights, mean, call)
        return gradients

    def lse_score_gradient(self, weights: Array, cotangent: Array, scores: Array) -> Array:
        """Returns the gradient of the scores for a cotangent (B, H, Lq, 1) of the log-sum-exp."""
        return weights * cotangent

    def hidden_scores(self, query: Array, key: Array, call: Call) -> Array:
        """Returns the scores as the backward pass recomputes them, -inf for masked pairs."""
        scores = self.capped(self.scores(query, key, call), call)
        return self.hide(self.backward_biased(scores, call), self.backward_allowed(call), call)

    def backward_biased(self, scores: Array, call: Call) -> Array:
        return self.biased(scores, call)

    def backward_allowed(self, call: Call) -> Array | None:
        return self.allowed(call)

    def attended_keys(self, scores: Array) -> Array:
        """Returns, boolean (B, H, Lk, 1), the keys that at least one row attends."""
        return ~np.asarray(np.isneginf(scores).all(-2))[..., None]

    def backward_weights(self, scores: Array, call: Call) -> Array:
        return self.weights(scores, call)

    def split_weights(self, scores: Array, call: Call) -> tuple[Array, Array]:
        """Returns the weights of the keys (B, H, Lq, Lk) and of the sinks (B, H, Lq, 0 or 1)."""
        weights = self.backward_weights(self.with_sink_logits(scores, call), call)
        return weights[..., : call.sizes.Lk], weights[..., call.sizes.Lk :]

    def sink_gradient(self, sink_weights: Array, mean: Array, call: Call) -> Array:
        """Returns the gradient (H,) of the sinks. A sink has the value 0, so dp is 0 for it."""
        ds = self.score_gradient(sink_weights, np.zeros_like(sink_weights), mean)
        return self.stored_score_gradient(ds, call).sum((0, 2, 3))

    def stored_score_gradient(self, dt: Array, call: Call) -> Array:
        """Returns `dt` as operand of the products with query and key: rounded if the kernel stores it."""
        return self.keep(dt, "weights", call)

    def weight_gradient(self, cotangent: Array, value: Array, call: Call) -> Array:
        return self.keep(cotangent @ value.swapaxes(-1, -2), "scores", call)

    def mean(self, weights: Array, dp: Array, cotangent: Array, value: Array) -> Array:
        """Returns the sum of p dp in each row, which the gradient of the softmax subtracts."""
        return (weights * dp).sum(-1, keepdims=True)

    def score_gradient(self, weights: Array, dp: Array, mean: Array) -> Array:
        return weights * (dp - mean)

    def softcap_backward(self, ds: Array, query: Array, key: Array, call: Call) -> Array:
        """Returns the gradient of the scores before the softcap from the gradient `ds` after it."""
        if call.softcap is None:
            return ds
        scores = self.tempered(self.scores(query, key, call), call)
        return ds * self.softcap_slope(np.tanh(scores / call.work(call.softcap)))

    def backward_tempered(self, dt: Array, call: Call) -> Array:
        return self.tempered(dt, call)

    def logit_scale_gradient(self, dt: Array, product: Array) -> Array:
        """Returns the gradient (H,) of the logit scales. `product`: the scores before they are multiplied
        by the logit scales."""
        return np.where(dt == 0, 0, dt * product).sum((0, 2, 3))

    def softcap_slope(self, tanh: Array) -> Array:
        """Returns the derivative of the softcap from tanh(score / softcap)."""
        return 1 - tanh * tanh

    def query_gradient(self, dt: Array, key: Array, factor: Any) -> Array:
        return factor * (dt @ key)

    def key_gradient(self, dt: Array, query: Array, factor: Any) -> Array:
        return factor * (dt.swapaxes(-1, -2) @ query)

    def value_gradient(self, weights: Array, cotangent: Array, call: Call) -> Array:
        return weights.swapaxes(-1, -2) @ cotangent

    def sum_over_groups(self, x: Array, call: Call) -> Array:
        """Returns x (B, H, Lk, .) summed over the query heads of each group: (B, Hkv, Lk, .)."""
        return self.split_groups(x, call).sum(2)

    def split_groups(self, x: Array, call: Call) -> Array:
        """Returns x (B, H, ...) as (B, Hkv, group, ...)."""
        s = call.sizes
        return x.reshape(s.B, s.Hkv, s.group, *x.shape[2:])

    def bias_gradient(self, ds: Array, shape: tuple[int, ...]) -> Array:
        shape4 = rank4(np.empty(shape)).shape
        axes = tuple(a for a in range(4) if shape4[a] == 1)
        return ds.sum(axes, keepdims=True).reshape(shape)


class DifferentiableFused(Differentiable, Fused):
    """Weights and score gradients are rounded before the products; the mean comes from the output."""

    def mean(self, weights: Array, dp: Array, cotangent: Array, value: Array) -> Array:
        return (cotangent * (weights @ value)).sum(-1, keepdims=True)


class DifferentiableEager(Differentiable, Eager):
    """Every product and its gradient are rounded to the case's dtype."""

    elections = Differentiable.elections | {"score-overflow": "nan"}

    def stored_score_gradient(self, dt: Array, call: Call) -> Array:
        return self.keep(dt, "scores", call)


class DifferentiableRecomputed(Differentiable):
    """The backward pass recomputes weights from the forward log-sum-exp in working precision."""

    def backward_weights(self, scores: Array, call: Call) -> Array:
        return np.exp(scores - self.statistics(scores, call))

    def statistics(self, scores: Array, call: Call) -> Array:
        """Returns the log-sum-exp of each row, (B, H, Lq, 1); 0 for fully masked rows."""
        lse = self.log_sum_exp(scores, call)[..., None]
        return np.where(np.isneginf(lse), 0, lse)


class DifferentiableLowest(Differentiable):
    """Masking adds a very low number to scores, in which the scores are lost by rounding. Fully masked
    rows average the values, and their gradients reach the scores."""

    elections = Differentiable.elections | {
        "fully-masked-row": "uniform",
        "fully-masked-row-gradient": "scores",
        "lse-of-empty-row": "lowest",
        **dict.fromkeys(("nan-in-masked-key", "nan-in-masked-key-gradient"), "leaks"),
        **dict.fromkeys(("nan-in-masked-value", "nan-in-masked-value-gradient"), "leaks"),
    }

    def hide(self, scores: Array, allowed: Array | None, call: Call) -> Array:
        lowest = call.work(-0.7) * np.finfo(call.work).max
        return scores if allowed is None else np.where(allowed, scores, scores + lowest)
