"""Ways of calling a layer of Keras besides the plain one: in a functional model, with attached masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from backends.protocol import Backend
from suite.spec.inputs import Inputs


def attached(plain: Callable[..., Any], through: str) -> Callable[..., Any]:
    """The call with `value_mask` attached to the value ("attached"), as the second of two such calls
    ("attached again"), or as the mask that is left on the sum of input and output ("attached
    residual"); a `query_mask` is attached to the query."""

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
            # The mask that the sum of a layer's input and output carries to the next layer.
            output = plain(query=value, value=value, **{n: value for n in ("key",) if n in arrays})
            output = output[0] if isinstance(output, tuple) else output
            set_keras_mask(value, get_keras_mask(keras.layers.Add()([output, value])))
        return plain(**arrays)

    return call


def shown_rows(inputs: Inputs) -> np.ndarray:
    """A mask of queries (B, Lq) that hides a third of them, others in every sample."""
    shown: np.ndarray = np.indices((inputs.sizes.B, inputs.sizes.Lq)).sum(0) % 3 != 0
    return shown


def restored(layer: Any) -> Any:
    """The layer that the configuration of `layer` makes: as one is saved and loaded."""
    return type(layer).from_config(layer.get_config())


def shown(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The call with a `query_mask`, which makes rows of the output zero, and the plain call's rows in
    their place: added, so that a row that is not zero is seen."""

    def call(query_mask: Any, **arrays: Any) -> Any:
        from keras import ops

        masked, whole = plain(query_mask=query_mask, **arrays), plain(**arrays)
        if not isinstance(masked, tuple):
            return ops.where(query_mask[..., None], masked, masked + whole)
        output, scores = masked
        return ops.where(query_mask[..., None], output, output + whole[0]), scores

    return call


def distinct(arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays, each once, and for every name that of its array."""
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
    """The call of a model that takes the arrays ("function"), or its predict_on_batch ("predict");
    `names` says for every argument of the layer which array it is. Raises RuntimeError where the model
    says that its output, or its `scores`, have another shape than what it answers, or does not say it,
    but for the number of samples."""

    def call(**arrays: Any) -> Any:
        import keras

        symbols = {
            name: keras.Input(tuple(array.shape[1:]), dtype=backend.dtype_name(array))
            for name, array in arrays.items()
        }
        answer = plain(**{name: symbols[one] for name, one in names.items()})
        model = keras.Model(symbols, answer)
        if through != "predict":
            symbols_out, answer = answer, model(arrays)
            for said, shape in zip(
                _shapes(symbols_out, scores), _shapes(answer, scores), strict=True
            ):
                if said[0] not in (None, shape[0]) or said[1:] != shape[1:]:
                    raise RuntimeError(f"the model says shape {said}, and answers {shape}")
            return answer
        answer = model.predict_on_batch(arrays)
        if isinstance(answer, list | tuple):
            return tuple(backend.array(x, inputs.dtype) for x in answer)
        return backend.array(answer, inputs.dtype)

    return call


def _shapes(answer: Any, scores: bool) -> list[tuple[int | None, ...]]:
    """Those of the output, and of `scores` where these are asked for and there are any."""
    several = list(answer) if isinstance(answer, list | tuple) else [answer]
    return [tuple(each.shape) for each in (several if scores else several[:1])]


def inside(layer: Any, options: Mapping[str, Any]) -> Callable[..., Any]:
    """The call of a layer without a build() of its own that calls `layer`."""
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
    """The call of a layer with attention_axes=(1, 2), of arrays, and a mask (B, Lq, Lk) where there is
    one."""

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
    """How a gate reads queries (width,), alike for all that it opens."""
    return np.cos(np.arange(1.0, width + 1)) / np.sqrt(width)


def set_gate(dense: Any) -> None:
    """Have a layer's gate read its queries."""
    kernel, bias = dense.kernel, dense.bias
    values = gate_kernel(kernel.shape[0])[:, None, None]
    kernel.assign(np.broadcast_to(values, kernel.shape))
    if bias is not None:
        bias.assign(np.full(bias.shape, GATE_BIAS))


def ungated(layer: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a layer whose gate `set_gate` has set, and what comes out as if it were open: every
    head of a query has one gate, whose number is divided by again."""

    def call(**arrays: Any) -> Any:
        from keras import ops

        answer, query = plain(**arrays), arrays["query"]
        kernel = ops.convert_to_tensor(gate_kernel(query.shape[-1])[:, None], dtype=query.dtype)
        biases = layer._output_dense.bias
        # Not by matmul, which torch's engine computes in float32 for float64.
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
"""Ways of calling a layer that is not built before."""
