"""Faults whose gradients depend on other passes, on which operands ask for one, or on one array being
passed as all three."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.state import address

FAMILY = "gradient"


class Saving(Differentiable):
    """Saves the operands of a forward pass in one place for every shape."""

    def compute(self, call: Call) -> np.ndarray:
        saved = self.__dict__.setdefault("saved", {})
        saved[call.query.shape, call.key.shape] = call
        return super().compute(call)

    def of_forward(self, call: Call) -> Call:
        """The call of the last forward pass in these shapes."""
        return self.__dict__.get("saved", {}).get((call.query.shape, call.key.shape), call)


def saved_in_static_buffers(right: Saving, call, cotangent, wrt):
    return right.backward(right.of_forward(call), cotangent, wrt)


def scale_of_last_forward_pass(right: Saving, call, cotangent, wrt):
    scale = right.of_forward(call).scale
    return right.backward(replace(call, scale=scale), cotangent, wrt)


def weights_of_last_forward_pass(right: Saving, call, cotangent, wrt):
    gradients = right.backward(call, cotangent, wrt)
    gradients["value"] = right.backward(right.of_forward(call), cotangent, wrt)["value"]
    return gradients


@fault(
    "gradient_passes",
    "backward frees or overwrites what it reads; with `retain_graph=True` it runs again",
)
class SavedOnce(Saving):
    """A second backward pass of one forward pass gives keys no gradient."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        done = self.__dict__.setdefault("done", [])
        if any(query is call.query for query in done):
            gradients["key"] = np.zeros_like(gradients["key"])
        self.done = [*done[-8:], call.query]
        return gradients


@fault("gradient_passes", "dout cached by the forward pass; take the one that backward is given")
class FirstCotangentKept(Differentiable):
    """A second backward pass of one forward pass takes the dout of the first."""

    last: tuple[Any, np.ndarray] | None = None

    def backward(self, call, cotangent, wrt):
        if self.last is not None and self.last[0] is call.query:
            cotangent = self.last[1]
        self.last = (call.query, cotangent)
        return super().backward(call, cotangent, wrt)


@fault(
    "gradient_passes",
    "`ctx.out = out` in forward; use `ctx.save_for_backward(out)`, which sees that it was changed",
)
class OutputTakenBack(Differentiable):
    """D is the sum of dout times the output that was handed out: `out += residual` changes gradients."""

    def compute(self, call: Call) -> np.ndarray:
        self.call = call
        return super().compute(call)

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        if call is self.__dict__.get("call"):
            self.__dict__.setdefault("handed", {})[address(call.query)] = answer
        return answer

    def backward(self, call, cotangent, wrt):
        self.out = self.__dict__.get("handed", {}).get(address(call.query))
        return super().backward(call, cotangent, wrt)

    def mean(
        self, weights: np.ndarray, dp: np.ndarray, cotangent: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        if self.out is None or self.out.shape != cotangent.shape:
            return super().mean(weights, dp, cotangent, value)
        D = (cotangent * self.out.values).sum(-1, keepdims=True)
        return np.asarray(D, weights.dtype)


class OneGradient(Differentiable):
    """Of one array that is query, key and value."""

    parts: tuple[str, ...] = ()

    def of_one_array(self, gradients: Mapping[str, Any]) -> Any:
        return sum(gradients[name] for name in self.parts)


def key_beside_query_forgotten(right: Differentiable, call, cotangent, wrt):
    gradients = right.backward(call, cotangent, wrt)
    if set(wrt) == {"query", "key"}:
        gradients["key"] = np.zeros_like(gradients["key"])
    return gradients


def query_beside_value_doubled(right: Differentiable, call, cotangent, wrt):
    gradients = right.backward(call, cotangent, wrt)
    if set(wrt) == {"query", "value"}:
        gradients["query"] = 2.0 * np.asarray(gradients["query"])
    return gradients


def one_of_two_gets_the_other(
    right: Differentiable, query: Rounded, key: Rounded, value: Rounded, *rest: Any, **more: Any
) -> Any:
    gradients = right.differentiate(query, key, value, *rest, **more)
    if set(more.get("wrt", ())) == {"key", "value"} and key.shape == value.shape:
        gradients["key"], gradients["value"] = gradients["value"], gradients["key"]
    return gradients


row = partial(deviation, family=FAMILY, right=Saving)

DEVIATIONS = [
    row("saved-in-static-buffers", "gradient_passes",
        "The backward pass reads the operands of the last forward pass of the same shapes.",
        "`self.q = q` in forward; use `ctx.save_for_backward(q, k, v)`",
        backward=saved_in_static_buffers),
    row("scale-of-last-forward-pass", "gradient_passes",
        "The backward pass takes the scale of the last forward pass of the same shapes.",
        "`self.scale = scale` in forward; use `ctx.scale = scale`",
        backward=scale_of_last_forward_pass),
    row("weights-of-last-forward-pass", "gradient_passes",
        "The gradient of the values takes the weights of the last forward pass of the same shapes.",
        "`self.weights = p` in forward; use `ctx.save_for_backward(p)`",
        backward=weights_of_last_forward_pass),
    row("one-array-as-query", "gradient_of_one_array",
        "One array that is query, key and value gets the gradient of the query alone.",
        "`if q is k is v: return dq`; return `dq + dk + dv`, or each by itself", right=OneGradient,
        facts={"parts": ("query",)}),
    row("one-array-as-memory", "gradient_of_one_array",
        "One array that is query, key and value gets the gradients of query and key alone.",
        "`if q is k is v: return dq + dk`; return `dq + dk + dv`, or each by itself",
        right=OneGradient, facts={"parts": ("query", "key")}),
    row("one-array-twice-as-key", "gradient_of_one_array",
        "One array that is query, key and value gets the key's gradient in place of the value's.",
        "`dq + dk + dk`; it is `dq + dk + dv`", right=OneGradient,
        facts={"parts": ("query", "key", "key")}),
    row("key-beside-query-forgotten", "gradient_alone",
        "If query and key ask for a gradient and the value does not, that of the key is zero.",
        "dk is computed only if the values ask, too; ask for `ctx.needs_input_grad[1]` alone",
        right=Differentiable, backward=key_beside_query_forgotten),
    row("query-beside-value-doubled", "gradient_alone",
        "If query and value ask for a gradient and the key does not, the query's is doubled.",
        "two branches both add dq; ask for each `ctx.needs_input_grad[i]` once",
        right=Differentiable, backward=query_beside_value_doubled),
    row("one-of-two-gets-the-other", "gradient_alone",
        "If key and value ask for a gradient and the query does not, the two are swapped.",
        "gradients that are asked for are returned without None for others; keep the order q, k, v",
        right=Differentiable, differentiate=one_of_two_gets_the_other),
]  # fmt: skip
