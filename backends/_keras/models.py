"""Ways to call a layer of Keras besides the plain call: in a functional model, with attached masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.spec.inputs import Inputs


def attached(plain: Callable[..., Any], through: str) -> Callable[..., Any]:
    """The call with `value_mask` attached to the value, and `query_mask` to the query.

    "attached again" is the second of two such calls. With "attached residual" the mask is the one that is
    left on the sum of input and output.
    """

    def call(value_mask: Any, query_mask: Any = None, **arrays: Any) -> Any:
        import keras
        from keras.src.backend import get_keras_mask, set_keras_mask

        value = arrays["value"]
        set_keras_mask(value, value_mask)
        if query_mask is not None:
            set_keras_mask(arrays["query"], query_mask)
        if through == "attached again":
            plain(**arrays)
        if through == "attached residual":
            # The sum of a layer's input and output must carry the mask to the next layer.
            output = plain(query=value, value=value, **{n: value for n in ("key",) if n in arrays})
            output = output[0] if isinstance(output, tuple) else output
            set_keras_mask(value, get_keras_mask(keras.layers.Add()([output, value])))
        return plain(**arrays)

    return call


def shown_rows(inputs: Inputs) -> np.ndarray:
    """A mask of queries (B, Lq) that hides a third of the queries, different ones in every sample."""
    shown: np.ndarray = np.indices((inputs.sizes.B, inputs.sizes.Lq)).sum(0) % 3 != 0
    return shown


def restored(layer: Any) -> Any:
    """A layer from the configuration of `layer`, as after saving and loading."""
    return type(layer).from_config(layer.get_config())


def shown(plain: Callable[..., Any]) -> Callable[..., Any]:
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


def distinct(arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays, each once, and the name of its array for every argument."""
    first: dict[int, str] = {}
    for name, array in arrays.items():
        first.setdefault(id(array), name)
    names = {name: first[id(array)] for name, array in arrays.items()}
    return {name: arrays[name] for name in first.values()}, names


def functional(
    backend: Backend,
    plain: Callable[..., Any],
    names: Mapping[str, str],
    inputs: Inputs,
    through: str,
    scores: bool = False,
) -> Callable[..., Any]:
    """A call of a functional model ("function"), or of its predict_on_batch ("predict").

    `names` maps each argument of the layer to its array. The call raises RuntimeError if the model does
    not state the shape of its output, or of its `scores`, or states another shape; the number of samples
    may be unknown.
    """

    def call(**arrays: Any) -> Any:
        import keras

        symbols = {
            name: keras.Input(tuple(array.shape[1:]), dtype=backend.dtype_name(array))
            for name, array in arrays.items()
        }
        outputs = plain(**{name: symbols[one] for name, one in names.items()})
        model = keras.Model(symbols, outputs)
        if through == "function":
            answer = model(arrays)
            stated, returned = _shapes(outputs, scores), _shapes(answer, scores)
            for said, shape in zip(stated, returned, strict=True):
                if said[0] not in (None, shape[0]) or said[1:] != shape[1:]:
                    raise RuntimeError(f"the model says shape {said}, and answers {shape}")
            return answer
        answer = model.predict_on_batch(arrays)
        if isinstance(answer, list | tuple):
            return tuple(backend.array(x, inputs.dtype) for x in answer)
        return backend.array(answer, inputs.dtype)

    return call


def _shapes(answer: Any, scores: bool) -> list[tuple[int | None, ...]]:
    """The shapes of the output and, with `scores`, of the scores if there are any."""
    several = list(answer) if isinstance(answer, list | tuple) else [answer]
    return [tuple(each.shape) for each in (several if scores else several[:1])]


def inside(layer: Any, options: Mapping[str, Any]) -> Callable[..., Any]:
    """A call of an outer layer that has no build() and calls `layer`."""
    import keras

    class Outer(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(dtype=layer.dtype_policy)
            self.inner = layer

        def call(self, query, value, key=None, value_mask=None, attention_mask=None):
            masks = {"value_mask": value_mask, "attention_mask": attention_mask}
            mask_arguments = {name: mask for name, mask in masks.items() if mask is not None}
            return self.inner(query, value, key, **mask_arguments, **options)

    return Outer()


def several_axes(layer: Any, options: Mapping[str, Any]) -> Callable[..., Any]:
    """A call of a layer with attention_axes=(1, 2), with a mask (B, Lq, Lk) if there is one."""

    def call(attention_mask: Any = None, **arrays: Any) -> Any:
        axes = {name: array[:, None] for name, array in arrays.items()}
        if attention_mask is not None:
            axes["attention_mask"] = attention_mask[:, None, :, None]
        answer = layer(**axes, **options)
        if not isinstance(answer, tuple):
            return answer[:, 0]
        output, scores = answer  # (B, 1, Lq, E), (B, H, 1, Lq, 1, Lk)
        return output[:, 0], scores[:, :, 0, :, 0]

    return call


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


def ungated(layer: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
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
            own, gate = ops.convert_to_tensor(biases), ops.sigmoid(read + GATE_BIAS)
            output = (output - own) / ops.cast(gate, output.dtype) + own
        return (output, *rest) if rest else output

    return call


UNBUILT = {"inside": inside, "several axes": several_axes}
"""Calls of a layer that is not built before the call."""
