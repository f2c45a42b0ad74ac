"""Faults whose gradients depend on other passes, on which operands ask for one, or on one array being
passed as all three."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call
from suite.faults.kernels.gradient import Differentiable


class Saving(Differentiable):
    """Saves the operands of a forward pass in one place for every shape."""

    def compute(self, call: Call) -> np.ndarray:
        saved = self.__dict__.setdefault("saved", {})
        saved[call.query.shape, call.key.shape] = call
        return super().compute(call)

    def of_forward(self, call: Call) -> Call:
        """The call of the last forward pass in these shapes."""
        return self.__dict__.get("saved", {}).get((call.query.shape, call.key.shape), call)


@fault("gradient_passes")
class SavedInStaticBuffers(Saving):
    """The backward pass reads the operands of the last forward pass in the same shapes."""

    def backward(self, call, cotangent, wrt):
        return super().backward(self.of_forward(call), cotangent, wrt)


@fault("gradient_passes")
class ScaleOfLastForwardPass(Saving):
    """The backward pass takes the scale of the last forward pass in the same shapes."""

    def backward(self, call, cotangent, wrt):
        scale = self.of_forward(call).scale
        return super().backward(replace(call, scale=scale), cotangent, wrt)


@fault("gradient_passes")
class WeightsOfLastForwardPass(Saving):
    """The gradient of the values takes the weights of the last forward pass in the same shapes."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        gradients["value"] = super().backward(self.of_forward(call), cotangent, wrt)["value"]
        return gradients


@fault("gradient_passes")
class SavedOnce(Saving):
    """A second backward pass of one forward pass finds what it saved overwritten by the first one."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        done = self.__dict__.setdefault("done", [])
        if any(query is call.query for query in done):
            gradients["key"] = np.zeros_like(gradients["key"])
        self.done = [*done[-8:], call.query]
        return gradients


@fault("gradient_passes")
class FirstCotangentKept(Differentiable):
    """A second backward pass of one forward pass takes the cotangent of the first one."""

    last: tuple[Any, np.ndarray] | None = None

    def backward(self, call, cotangent, wrt):
        if self.last is not None and self.last[0] is call.query:
            cotangent = self.last[1]
        self.last = (call.query, cotangent)
        return super().backward(call, cotangent, wrt)


class OneGradient(Differentiable):
    """Of one array that is query, key and value."""

    parts: tuple[str, ...] = ()

    def of_one_array(self, gradients: Mapping[str, Any]) -> Any:
        return sum(gradients[name] for name in self.parts)


@fault("gradient_of_one_array")
class OneArrayAsQuery(OneGradient):
    """One array as query, key and value gets the gradient of the query alone."""

    parts = ("query",)


@fault("gradient_of_one_array")
class OneArrayAsMemory(OneGradient):
    """One array as query, key and value gets the gradients of query and key alone."""

    parts = ("query", "key")


@fault("gradient_of_one_array")
class OneArrayTwiceAsKey(OneGradient):
    """One array as query, key and value gets the gradient of the key in place of that of the value."""

    parts = ("query", "key", "key")


@fault("gradient_alone")
class KeyBesideQueryForgotten(Differentiable):
    """Where query and key ask for a gradient and the value does not, that of the key is zero."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        if set(wrt) == {"query", "key"}:
            gradients["key"] = np.zeros_like(gradients["key"])
        return gradients


@fault("gradient_alone")
class QueryBesideValueDoubled(Differentiable):
    """Where query and value ask for a gradient and the key does not, that of the query is doubled."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        if set(wrt) == {"query", "value"}:
            gradients["query"] = 2.0 * np.asarray(gradients["query"])
        return gradients


@fault("gradient_alone")
class OneOfTwoGetsTheOther(Differentiable):
    """Where key and value ask for a gradient and the query does not, the two are swapped."""

    def differentiate(
        self, query: Rounded, key: Rounded, value: Rounded, *rest: Any, **more: Any
    ) -> Any:
        gradients = super().differentiate(query, key, value, *rest, **more)
        if set(more.get("wrt", ())) == {"key", "value"} and key.shape == value.shape:
            gradients["key"], gradients["value"] = gradients["value"], gradients["key"]
        return gradients
