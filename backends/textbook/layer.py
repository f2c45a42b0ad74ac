"""Operations that all frameworks have, and the base classes of textbook operators and layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.masks import LayerMasks, full
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.operators import OperatorFunction
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import NUMERICS

Numerics = str | Mapping[str, str]
"""A numerics class, or one per short dtype name."""


@dataclass(frozen=True)
class Operations:
    """The operations of textbook layers in one framework. `@`, `+`, `*`, `/` and slices are the
    framework's own.

    - softmax: over the last axis; logsumexp: over the last axis, at least in float32.
    - fill(scores, hidden, number): `number` where `hidden`.
    - hide(scores, mask): -inf or the lowest number where the mask is False.
    - concat(arrays, axis), transpose(array, axes), broadcast(array, shape).
    - take(array, indices): slices along the first axis; indices have any rank.
    - put(array, indices, values): a copy with other slices at indices (n,) of the first axis.
    - rint(array): the nearest whole number, ties to even.
    - cast(array, "float32"); like(array, other): in the dtype of `other`.
    - number(value, array): a number in the form that combines with the array.
    - counted(n, array): 0 to n - 1 in the array's dtype.
    """

    softmax: Callable[[Any], Any]
    fill: Callable[[Any, Any, float], Any]
    tanh: Callable[[Any], Any]
    total: Callable[[Any, int], Any]
    mean: Callable[[Any, int], Any]
    root: Callable[[Any], Any]
    concat: Callable[[Sequence[Any], int], Any]
    transpose: Callable[[Any, tuple[int, ...]], Any]
    reshape: Callable[[Any, tuple[int, ...]], Any]
    repeat: Callable[[Any, int, int], Any]
    take: Callable[[Any, Any], Any]
    put: Callable[[Any, Any, Any], Any]
    cos: Callable[[Any], Any]
    sin: Callable[[Any], Any]
    power: Callable[[Any, Any], Any]
    clip: Callable[[Any, float, float], Any]
    rint: Callable[[Any], Any]
    exp: Callable[[Any], Any]
    log: Callable[[Any], Any]
    largest: Callable[[Any, int], Any]
    cast: Callable[[Any, str], Any]
    number: Callable[[float, Any], Any]
    hide: Callable[[Any, Any], Any]
    broadcast: Callable[[Any, tuple[int, ...]], Any]
    logsumexp: Callable[[Any], Any]
    like: Callable[[Any, Any], Any]
    counted: Callable[[int, Any], Any]
    called: Callable[[Implementation, PreparedCall], PreparedCall] = lambda layer, call: call
    """How a call with these operations runs: unchanged, or through a compiler."""


class Textbook(Implementation):
    """A textbook layer. Hidden scores are set to -inf before the softmax."""

    declared = Declared(
        features=LAYER_FEATURES,
        refusals={
            "native-causal": "textbook code has no causal flag",
            "splits-width": "textbook code takes parameters, not a width to split",
        },
        elections={
            "fully-masked-row": "nan",
            "padded-sample": "nan",
            "minus-inf-row": "nan",
            "fully-masked-row-gradient": "nan",
            "padded-sample-gradient": "nan",
            "mask-polarity": "attends",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-value": "leaks",
        },
    )
    textbook = True
    heads_apart = False

    def __init__(self, backend: Backend, ops: Operations, numerics: Numerics) -> None:
        super().__init__(backend, declared=self.declaration(ops, numerics))
        self.ops = ops

    def declaration(self, ops: Operations, numerics: Numerics) -> Declared:
        """The layer's declaration for operations of a numerics class."""
        return self.declared.but(numerics=numerics)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend = self.backend
        arrays: dict[str, Any] = sequences(backend, inputs)
        parameters = self.laid_out(inputs)
        arrays |= {n: backend.array(a, inputs.dtype) for n, a in parameters.items()}
        hidden = self.hidden(inputs)
        if hidden is not None:
            arrays["hidden"] = backend.array(hidden, None)
        if inputs.bias is not None:
            arrays["bias"] = backend.array(full(inputs.bias, inputs), inputs.dtype)
        weighted = inputs.returned != "none"
        # The function knows only sizes and options, so calls with equal ones share one function.
        problem = replace(inputs, arrays={}, mask_array=None)

        def call(query: Any, key: Any, value: Any, **rest: Any) -> tuple[Any, Any]:
            output, weights = self.compute(query, key, value, rest, problem)
            return output, weights if weighted else None

        constants = (inputs.sizes, inputs.dtype.name, inputs.case.options)
        plain = PreparedCall(call, arrays, LAYER_OUTPUTS, constants=constants)
        return self.ops.called(self, plain)

    def laid_out(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """The canonical parameters in this layer's layout."""
        return inputs.parameters

    def hidden(self, inputs: Inputs) -> np.ndarray | None:
        """True where a pair does not attend, (B, H, Lq, Lk) or (B, Lq, Lk); None without a mask."""
        mask = LayerMasks.of(inputs, causal=False, lengths=False).rest
        if mask is None:
            return None
        if inputs.form != "raw":
            mask = full(mask, inputs) if self.heads_apart else full(mask, inputs)[:, 0]
        return ~mask

    @abstractmethod
    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        """The layer: (output, weights). `rest` holds parameters, masks and biases."""

    def softmax(self, scores: Any, hidden: Any) -> Any:
        """softmax of scores, with hidden scores set to -inf."""
        if hidden is not None:
            scores = self.ops.fill(scores, hidden, -np.inf)
        return self.ops.softmax(scores)

    def number(self, value: float, inputs: Inputs) -> Any:
        """A number in the layer's dtype, because a Python float may be converted through float32."""
        return self.backend.array(np.asarray(value), inputs.dtype)


class TextbookOperator(OperatorFunction):
    """An operator in operations that all frameworks have.

    The class of a framework's textbook attention (`numerics`) is declared, and at least `eager`: the
    scale is rounded to the dtype, which narrower classes do not allow.
    """

    textbook = True
    own_class = False
    """True if the numerics class of `declared` holds in every framework."""

    def __init__(self, backend: Backend, ops: Operations, numerics: Numerics = "eager") -> None:
        declared = self.declared
        if not self.own_class:
            classes = numerics if isinstance(numerics, Mapping) else dict.fromkeys(DTYPES, numerics)
            least = {name: max(one, "eager", key=NUMERICS.index) for name, one in classes.items()}
            declared = declared.but(numerics=least)
        super().__init__(backend, declared=declared)
        self.ops = ops

    def through(self, call: PreparedCall) -> PreparedCall:
        return self.ops.called(self, call)

    def weighted(self, query: Any, key: Any, value: Any, hidden: Any, inputs: Inputs) -> Any:
        """Plain attention of operands (..., L, D); `hidden` pairs have no weight."""
        ops, n, softcap = self.ops, len(key.shape), inputs.case.option("softcap")
        scale = ops.number(inputs.effective_scale, query)
        scores = (query @ ops.transpose(key, (*range(n - 2), n - 1, n - 2))) * scale
        if softcap is not None:
            scores = ops.tanh(scores / ops.number(softcap, query)) * ops.number(softcap, query)
        if hidden is not None:
            scores = ops.fill(scores, hidden, -np.inf)
        return ops.softmax(scores) @ value
