"""An honest backward pass in NumPy behind the adapter protocol, one method a step.

Faults are subclasses that change a step. The forward pass is that of `attention`; weights are
recomputed as a fused kernel's backward pass recomputes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.attention import (
    Call,
    Eager,
    Fused,
    Kernel,
    rank4,
)
from attention_conformance.suite.spec.inputs import Inputs


class Differentiable(Kernel):
    """Sums in working precision, gradients rounded once, at the end."""

    elections = Kernel.elections | {
        "fully-masked-row-gradient": "nothing",
        "lse-gradient": "flows",
        "nan-in-masked-key-gradient": "blocked",
        "nan-in-masked-value-gradient": "blocked",
    }

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return replace(super().prepare(inputs), vjp=self.differentiate, jvp=self.push)

    def push(
        self, query: Rounded, key: Rounded, value: Rounded, tangents: Mapping[str, Rounded],
        **rest: Any,
    ) -> Any:  # fmt: skip
        """The output's tangent."""
        call = Call(query, key, value, **rest)
        with np.errstate(all="ignore"):
            return self.deliver(self.output_tangent(call, tangents), call)

    def output_tangent(self, call: Call, tangents: Mapping[str, Rounded]) -> np.ndarray:
        """The output's tangent for `tangents` of query, key and value, not yet rounded."""
        q, dq = (self.load(x, call) for x in (call.query, tangents["query"]))
        k, v, dk, dv = (
            self.expand(self.load(x, call), call)
            for x in (call.key, call.value, tangents["key"], tangents["value"])
        )
        scores = self.hidden_scores(q, k, call)
        weights, _ = self.split_weights(scores, call)
        v = self.visible(v, scores)
        moved = self.moved(q, k, dq, dk, call)
        moved = np.where(np.isneginf(scores), 0, self.uncapped(moved, q, k, call))
        dp = self.stored_score_gradient(weights * (moved - self.moved_mean(weights, moved)), call)
        return dp @ v + self.moved_values(weights, dv)

    def moved(self, q: Any, k: Any, dq: Any, dk: Any, call: Call) -> np.ndarray:
        product = dq @ k.swapaxes(-1, -2) + q @ dk.swapaxes(-1, -2)
        moved = self.keep(product * call.work(self.factor(call)), "scores", call)
        return self.tempered(moved, call)

    def moved_mean(self, weights: np.ndarray, moved: np.ndarray) -> np.ndarray:
        return (weights * moved).sum(-1, keepdims=True)

    def moved_values(self, weights: np.ndarray, dv: np.ndarray) -> np.ndarray:
        return weights @ dv

    def differentiate(
        self, query: Rounded, key: Rounded, value: Rounded, cotangent: Rounded,
        wrt: Sequence[str], **rest: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Gradients by argument."""
        call = Call(query, key, value, **rest)
        with np.errstate(all="ignore"):
            gradients = self.backward(call, self.received(cotangent, call), tuple(wrt))
        if query is key is value:
            gradients = {**gradients, "query": self.of_one_array(gradients)}
        return {name: None if g is None else self.deliver(g, call) for name, g in gradients.items()}

    def of_one_array(self, gradients: Mapping[str, Any]) -> Any:
        """The gradient of one array that is query, key and value."""
        return gradients["query"] + gradients["key"] + gradients["value"]

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        return self.load(cotangent, call)

    def backward(
        self, call: Call, cotangent: np.ndarray, wrt: tuple[str, ...]
    ) -> dict[str, np.ndarray | None]:
        """All gradients by argument. A cotangent (B, H, Lq) is one of the log-sum-exp, which gives those
        of query and key. Deviations read `wrt`, the names that are asked for."""
        query = self.load(call.query, call)
        key, value = (self.expand(self.load(x, call), call) for x in (call.key, call.value))
        scores = self.hidden_scores(query, key, call)
        seen = self.seen(scores)
        key, value = np.where(seen, key, 0), np.where(seen, value, 0)
        weights, sunk = self.split_weights(scores, call)
        of_lse = cotangent.ndim == 3
        if of_lse:
            ds = self.lse_score_gradient(weights, cotangent[..., None], scores)
        else:
            dp = self.weight_gradient(cotangent, value, call)
            mean = self.mean(weights, dp, cotangent, value)
            ds = self.score_gradient(weights, dp, mean)
        dt = self.stored_score_gradient(self.uncapped(ds, query, key, call), call)
        if call.logit_scale is not None:
            of_factors = self.logit_scale_gradient(dt, self.scores(query, key, call))
            dt = self.backward_tempered(dt, call)
        factor = call.work(self.factor(call))
        gradients: dict[str, np.ndarray | None] = {
            "query": self.query_gradient(dt, key, factor),
            "key": self.grouped(self.key_gradient(dt, query, factor), call),
        }
        if of_lse:
            return gradients
        gradients["value"] = self.grouped(self.value_gradient(weights, cotangent, call), call)
        if call.bias is not None:
            gradients["bias"] = self.bias_gradient(ds, call.bias.shape)
        if call.logit_scale is not None:
            gradients["logit_scale"] = of_factors
        if call.sinks is not None:
            gradients["sinks"] = self.sink_gradient(sunk, mean, call)
        return gradients

    def lse_score_gradient(
        self, weights: np.ndarray, cotangent: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        """The gradient of scores for a cotangent (B, H, Lq, 1) of their log-sum-exp."""
        return weights * cotangent

    def hidden_scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        """Scores of the backward pass, -inf for pairs that do not attend."""
        scores = self.capped(self.scores(query, key, call), call)
        return self.hide(self.backward_biased(scores, call), self.backward_allowed(call), call)

    def backward_biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return self.biased(scores, call)

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        return self.allowed(call)

    def seen(self, scores: np.ndarray) -> np.ndarray:
        """Which slots a row attends, (B, H, Lk, 1)."""
        return ~np.asarray(np.isneginf(scores).all(-2))[..., None]

    def backward_weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return self.weights(scores, call)

    def split_weights(self, scores: np.ndarray, call: Call) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the keys (B, H, Lq, Lk), and those of the sinks (B, H, Lq, 0 or 1)."""
        weights = self.backward_weights(self.sunk(scores, call), call)
        return weights[..., : call.sizes.Lk], weights[..., call.sizes.Lk :]

    def sink_gradient(self, sunk: np.ndarray, mean: np.ndarray, call: Call) -> np.ndarray:
        """(H,); the value of a sink is 0, and so is the gradient of its weight."""
        return self.stored_score_gradient(
            self.score_gradient(sunk, np.zeros_like(sunk), mean), call
        ).sum((0, 2, 3))

    def stored_score_gradient(self, dt: np.ndarray, call: Call) -> np.ndarray:
        """Gradients of scores as the products take them."""
        return self.keep(dt, "weights", call)

    def weight_gradient(self, cotangent: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        return self.keep(cotangent @ value.swapaxes(-1, -2), "scores", call)

    def mean(
        self, weights: np.ndarray, dp: np.ndarray, cotangent: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        return (weights * dp).sum(-1, keepdims=True)

    def score_gradient(self, weights: np.ndarray, dp: np.ndarray, mean: np.ndarray) -> np.ndarray:
        return weights * (dp - mean)

    def uncapped(
        self, ds: np.ndarray, query: np.ndarray, key: np.ndarray, call: Call
    ) -> np.ndarray:
        if call.softcap is None:
            return ds
        scores = self.tempered(self.scores(query, key, call), call)
        bend = np.tanh(scores / call.work(call.softcap))
        return ds * self.slope(bend)

    def backward_tempered(self, dt: np.ndarray, call: Call) -> np.ndarray:
        return self.tempered(dt, call)

    def logit_scale_gradient(self, dt: np.ndarray, product: np.ndarray) -> np.ndarray:
        """The gradient (H,) of the logit scales, for that of scores and the scores without them."""
        return np.where(dt == 0, 0, dt * product).sum((0, 2, 3))

    def slope(self, bend: np.ndarray) -> np.ndarray:
        return 1 - bend * bend

    def query_gradient(self, dt: np.ndarray, key: np.ndarray, factor: Any) -> np.ndarray:
        return factor * (dt @ key)

    def key_gradient(self, dt: np.ndarray, query: np.ndarray, factor: Any) -> np.ndarray:
        return factor * (dt.swapaxes(-1, -2) @ query)

    def value_gradient(self, weights: np.ndarray, cotangent: np.ndarray, call: Call) -> np.ndarray:
        return weights.swapaxes(-1, -2) @ cotangent

    def grouped(self, x: np.ndarray, call: Call) -> np.ndarray:
        """(B, H, Lk, .) summed over the query heads of each group."""
        return self.by_group(x, call).sum(2)

    def by_group(self, x: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        return x.reshape(s.B, s.Hkv, s.group, *x.shape[2:])

    def bias_gradient(self, ds: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        full = rank4(np.empty(shape)).shape
        axes = tuple(a for a in range(4) if full[a] == 1)
        return ds.sum(axes, keepdims=True).reshape(shape)


class DifferentiableFused(Differentiable, Fused):
    """Weights and gradients of scores narrowed before the products; D from the rounded output."""

    def mean(
        self, weights: np.ndarray, dp: np.ndarray, cotangent: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        return (cotangent * (weights @ value)).sum(-1, keepdims=True)


class DifferentiableEager(Differentiable, Eager):
    """Every product and every gradient of it stored in the case's dtype."""

    elections = Differentiable.elections | {"score-overflow": "nan"}

    def stored_score_gradient(self, dt: np.ndarray, call: Call) -> np.ndarray:
        return self.keep(dt, "scores", call)


class DifferentiableRecomputed(Differentiable):
    """Weights recomputed from the log-sum-exp of the forward pass, kept in working precision."""

    def backward_weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return np.exp(scores - self.statistics(scores, call))

    def statistics(self, scores: np.ndarray, call: Call) -> np.ndarray:
        """The log-sum-exps of rows (B, H, Lq, 1), 0 without keys."""
        lse = self.log_sum_exp(scores, call)[..., None]
        return np.where(np.isneginf(lse), 0, lse)


class DifferentiableLowest(Differentiable):
    """What is hidden has a score that absorbed it: rows without keys average the values, and their
    cotangents go on through the scores."""

    elections = Differentiable.elections | {
        "fully-masked-row": "uniform",
        "fully-masked-row-gradient": "scores",
        "lse-of-empty-row": "lowest",
        **dict.fromkeys(("nan-in-masked-key", "nan-in-masked-key-gradient"), "leaks"),
        **dict.fromkeys(("nan-in-masked-value", "nan-in-masked-value-gradient"), "leaks"),
    }

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        lowest = call.work(-0.7) * np.finfo(call.work).max
        return scores if allowed is None else np.where(allowed, scores, scores + lowest)
