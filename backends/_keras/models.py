"""Other ways to call a layer of Keras than directly: in a functional model, and with attached masks.

A way gets the implementation, the inputs, the layer, and the direct call `plain_call`. It returns another
call with the same arguments.
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


def with_masks(impl: FrameworkLayer, inputs: Inputs, layer: Any, plain_call: Call) -> Call:
    """Returns the call with `value_mask` attached to the value, and `query_mask` to the query."""

    def call(value_mask: Any, query_mask: Any = None, **arrays: Any) -> Any:
        from keras.src.backend import set_keras_mask

        set_keras_mask(arrays["value"], value_mask)
        if query_mask is not None:
            set_keras_mask(arrays["query"], query_mask)
        return plain_call(**arrays)

    return call


def with_masks_twice(impl: FrameworkLayer, inputs: Inputs, layer: Any, plain_call: Call) -> Call:
    """Returns a call that calls the layer twice with one attached mask, and returns the second answer."""
    return with_masks(
        impl, inputs, layer, lambda **arrays: (plain_call(**arrays), plain_call(**arrays))[1]
    )


def with_query_mask(impl: FrameworkLayer, inputs: Inputs, layer: Any, plain_call: Call) -> Call:
    """Returns the call with a `query_mask`, which must make masked rows zero.

    The unmasked answer is added to masked rows. If these are zero, the sum is the unmasked answer.
    """

    def call(query_mask: Any, **arrays: Any) -> Any:
        from keras import ops

        masked_answer = plain_call(query_mask=query_mask, **arrays)
        full_answer = plain_call(**arrays)
        if not isinstance(masked_answer, tuple):
            return ops.where(query_mask[..., None], masked_answer, masked_answer + full_answer)
        output, scores = masked_answer
        return ops.where(query_mask[..., None], output, output + full_answer[0]), scores

    return call


def alternating_query_mask(inputs: Inputs) -> np.ndarray:
    """Returns a mask of queries (B, Lq) that is False for a third of the queries, different ones in every
    sample."""
    query_mask: np.ndarray = np.indices((inputs.sizes.B, inputs.sizes.Lq)).sum(0) % 3 != 0
    return query_mask


def in_model(impl: Implementation, inputs: Inputs, layer: Any, plain_call: Call) -> Call:
    """Returns a call of a functional model, with an input for each array. The call raises RuntimeError if
    an output has another shape than the model states; the stated number of samples may be unknown.

    Of MultiHeadAttention only the output is compared: it states a wrong shape of its second output, the
    scores (finding keras-scores-shape).
    """

    def call(**arrays: Any) -> Any:
        import keras

        name_of_array: dict[int, str] = {}
        names = {name: name_of_array.setdefault(id(array), name) for name, array in arrays.items()}
        symbols = {
            name: keras.Input(
                tuple(arrays[name].shape[1:]), dtype=impl.backend.dtype_name(arrays[name])
            )
            for name in name_of_array.values()
        }
        model_outputs = plain_call(**{name: symbols[first] for name, first in names.items()})
        answer = keras.Model(symbols, model_outputs)({name: arrays[name] for name in symbols})
        compared = list(zip(_as_list(model_outputs), _as_list(answer), strict=True))
        for symbol, array in compared[:1] if impl.operator is MULTI_HEAD else compared:
            stated, shape = symbol.shape, array.shape
            if stated[0] not in (None, shape[0]) or stated[1:] != shape[1:]:
                raise RuntimeError(f"the model says shape {stated}, and answers {shape}")
        return answer

    return call


def _as_list(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, list | tuple) else [answer]


GATE_BIAS = 0.25


def gate_kernel(width: int) -> np.ndarray:
    """Returns the kernel (width,) of a gate for each output. The gate is sigmoid(query @ kernel +
    bias)."""
    return np.cos(np.arange(1.0, width + 1)) / np.sqrt(width)


def set_gate(dense: Any) -> None:
    """Set the kernel of a gate to `gate_kernel`, and its bias, if it has one, to `GATE_BIAS`."""
    kernel, bias = dense.kernel, dense.bias
    values = gate_kernel(kernel.shape[0])[:, None, None]
    kernel.assign(np.broadcast_to(values, kernel.shape))
    if bias is not None:
        bias.assign(np.full(bias.shape, GATE_BIAS))


def divided_by_gate(impl: FrameworkLayer, inputs: Inputs, layer: Any, plain_call: Call) -> Call:
    """Returns a call of a layer with the gate of `set_gate`, whose output is divided by the gate again.

    All heads of a query have the same gate.
    """

    def call(**arrays: Any) -> Any:
        from keras import ops

        answer, query = plain_call(**arrays), arrays["query"]
        kernel = ops.convert_to_tensor(gate_kernel(query.shape[-1])[:, None], dtype=query.dtype)
        bias = layer._output_dense.bias
        # Not matmul: on torch Keras computes it in float32 for float64.
        gate_logits = ops.einsum("...e,eo->...o", query, kernel)
        output, *weights = answer if isinstance(answer, tuple) else (answer,)
        if bias is None:
            output = output / ops.cast(ops.sigmoid(gate_logits), output.dtype)
        else:
            output_bias, gate = ops.convert_to_tensor(bias), ops.sigmoid(gate_logits + GATE_BIAS)
            output = (output - output_bias) / ops.cast(gate, output.dtype) + output_bias
        return (output, *weights) if weights else output

    return call
