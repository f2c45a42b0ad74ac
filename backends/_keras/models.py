"""Ways to call a layer of Keras besides the plain call: in a functional model, with attached masks.

A way takes the implementation, the inputs, the layer and its plain call, and returns another call with
the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_conformance.backends.layer import FrameworkLayer
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD

Call = Callable[..., Any]
Way = Callable[[FrameworkLayer, Inputs, Any, Call], Call]


def attached(impl: FrameworkLayer, inputs: Inputs, layer: Any, plain: Call) -> Call:
    """The call with `value_mask` attached to the value, and `query_mask` to the query."""

    def call(value_mask: Any, query_mask: Any = None, **arrays: Any) -> Any:
        from keras.src.backend import set_keras_mask

        set_keras_mask(arrays["value"], value_mask)
        if query_mask is not None:
            set_keras_mask(arrays["query"], query_mask)
        return plain(**arrays)

    return call


def attached_again(impl: FrameworkLayer, inputs: Inputs, layer: Any, plain: Call) -> Call:
    """The second of two calls with one attached mask."""
    return attached(impl, inputs, layer, lambda **arrays: (plain(**arrays), plain(**arrays))[1])


def hidden_rows(impl: FrameworkLayer, inputs: Inputs, layer: Any, plain: Call) -> Call:
    """The call with a `query_mask`, which must make hidden rows zero.

    The plain call's rows are added to hidden rows, so that a row other than zero shows.
    """

    def call(query_mask: Any, **arrays: Any) -> Any:
        from keras import ops

        masked, whole = plain(query_mask=query_mask, **arrays), plain(**arrays)
        if not isinstance(masked, tuple):
            return ops.where(query_mask[..., None], masked, masked + whole)
        output, scores = masked
        return ops.where(query_mask[..., None], output, output + whole[0]), scores

    return call


def shown_rows(inputs: Inputs) -> np.ndarray:
    """A mask of queries (B, Lq) that hides a third of the queries, different ones in every sample."""
    shown: np.ndarray = np.indices((inputs.sizes.B, inputs.sizes.Lq)).sum(0) % 3 != 0
    return shown


def functional(impl: Implementation, inputs: Inputs, layer: Any, plain: Call) -> Call:
    """A call of a functional model, with an input for each array. Raises RuntimeError if the model states
    another shape than it answers; the number of samples may be unknown.

    MultiHeadAttention states a wrong shape of scores (finding keras-scores-shape).
    """

    def call(**arrays: Any) -> Any:
        import keras

        first: dict[int, str] = {}
        names = {name: first.setdefault(id(array), name) for name, array in arrays.items()}
        symbols = {
            name: keras.Input(
                tuple(arrays[name].shape[1:]), dtype=impl.backend.dtype_name(arrays[name])
            )
            for name in first.values()
        }
        stated = plain(**{name: symbols[one] for name, one in names.items()})
        answer = keras.Model(symbols, stated)({name: arrays[name] for name in symbols})
        pairs = list(zip(_several(stated), _several(answer), strict=True))
        for said, got in pairs[:1] if impl.operator is MULTI_HEAD else pairs:
            if said.shape[0] not in (None, got.shape[0]) or said.shape[1:] != got.shape[1:]:
                raise RuntimeError(f"the model says shape {said.shape}, and answers {got.shape}")
        return answer

    return call


def _several(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, list | tuple) else [answer]


GATE_BIAS = 0.25


def gate_kernel(width: int) -> np.ndarray:
    """The kernel (width,) with which a gate reads queries, the same for all outputs."""
    return np.cos(np.arange(1.0, width + 1)) / np.sqrt(width)


def set_gate(dense: Any) -> None:
    """Set the kernel of a layer's gate to `gate_kernel`."""
    kernel, bias = dense.kernel, dense.bias
    values = gate_kernel(kernel.shape[0])[:, None, None]
    kernel.assign(np.broadcast_to(values, kernel.shape))
    if bias is not None:
        bias.assign(np.full(bias.shape, GATE_BIAS))


def ungated(impl: FrameworkLayer, inputs: Inputs, layer: Any, plain: Call) -> Call:
    """A call of a layer with the gate of `set_gate`, whose output is divided by the gate again.

    All heads of a query have the same gate.
    """

    def call(**arrays: Any) -> Any:
        from keras import ops

        answer, query = plain(**arrays), arrays["query"]
        kernel = ops.convert_to_tensor(gate_kernel(query.shape[-1])[:, None], dtype=query.dtype)
        biases = layer._output_dense.bias
        # Not matmul: on torch Keras computes it in float32 for float64.
        read = ops.einsum("...e,eo->...o", query, kernel)
        output, *rest = answer if isinstance(answer, tuple) else (answer,)
        if biases is None:
            output = output / ops.cast(ops.sigmoid(read), output.dtype)
        else:
            own_bias, gate = ops.convert_to_tensor(biases), ops.sigmoid(read + GATE_BIAS)
            output = (output - own_bias) / ops.cast(gate, output.dtype) + own_bias
        return (output, *rest) if rest else output

    return call
