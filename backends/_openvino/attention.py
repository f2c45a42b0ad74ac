"""The operator ScaledDotProductAttention of opset 13 (its specification in OpenVINO's documentation).

query (B, H, Lq, D), key (B, H or 1, Lk, D), value (B, H or 1, Lk, Dv); one mask, boolean or added to the
scores; a causal flag, beside which the mask is ignored; a scale; a sink in every head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.declared import ATTENTION_FEATURES, Declared
from backends.masks import dense_of, feature_arrays, merged_bias, split_native
from backends.prepared import PreparedCall
from backends.protocol import Implementation
from suite.spec.case import Case
from suite.spec.catalogue import AnyCase
from suite.spec.dtypes import round_to
from suite.spec.inputs import Inputs
from suite.spec.malformed import MalformedCase
from suite.spec.vocabulary import OPERANDS

if TYPE_CHECKING:
    from backends._openvino.engine import OpenvinoBackend

OF_EMPTY_ROWS = {"f64": "uniform", "f32": "nan", "bf16": "nan", "f16": "nan"}
"""What rows without keys answer: infinity in float64 becomes the largest number of float32."""


class Sdpa(Implementation):
    """Batch and lengths are open, heads and their sizes fixed, as in a model that is served."""

    backend: OpenvinoBackend

    name = "sdpa"
    declared = Declared(
        # In 16 bits the default scale, too, is a number of the dtype.
        numerics={"f64": "single", "f32": "exact", "bf16": "eager", "f16": "eager"},
        features=(ATTENTION_FEATURES | {"sinks"}) - {"gradient-of-bias"},
        refusals={
            "softcap": "the operator has no softcap",
            "native-window": "the operator has no window",
            "gradient": "models are run, and not differentiated",
        },
        elections={
            "fully-masked-row": OF_EMPTY_ROWS,
            "minus-inf-row": OF_EMPTY_ROWS,
            "causal-alignment": "top-left",
            "causal-with-mask": "mask-ignored",
            "nan-in-masked-key": "leaks",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": "nan",
            "value-size": "accepted",
            "integer-mask": "raises",
            "subnormal-output": {"f64": "flushed", "f32": "kept", "f16": "kept"},
            "score-overflow": "finite",
        },
        merges_mask_into_bias=True,
    )
    fixed = False

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, MalformedCase) and not self.fixed:
            # The finding openvino-lost-errors.
            return "with open sizes operands that do not fit can end the process"
        if isinstance(case, Case):
            if case.sizes.Hkv not in (1, case.sizes.H):
                return "heads broadcast: keys have as many as queries, or one"
            if case.sizes.Lk == 0:
                # The finding openvino-no-keys.
                return "without keys the answer is memory that nobody wrote"
            scale = case.option("scale")
            exact = scale is None or float(round_to(np.array(scale), case.dtype)) == scale
            if case.dtype.is_half and not exact:
                return f"the scale is a number of the dtype, and {scale} is none"
        return super().unsupported(case)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        kept = self.backend.kept
        return self.prepared(inputs, lambda key, model, arrays: kept(key, model))

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        if self.fixed:
            return {}
        run, requested = self.backend.run, self.backend.requested

        def after_one_key(key: Any, model: Callable[[], Any], arrays: list[np.ndarray]) -> Any:
            request = requested(model())
            query, *rest = arrays
            run(request, [query, *(x[:, :, :1] for x in rest[:2]), *(x[..., :1] for x in rest[2:])])
            return request

        return {"after a call with one key": self.prepared(inputs, after_one_key)}

    def prepared(self, inputs: Inputs, request: Callable[..., Any]) -> PreparedCall:
        """The call, in what `request` makes of a key, a function that makes the model, and the arrays."""
        backend = self.backend
        # Beside the causal flag a mask is ignored, so that the flag is used alone.
        alone = inputs.mask is not None and len(inputs.mask.parts) == 1 and inputs.bias is None
        native = split_native(inputs, causal=alone or inputs.form == "flag-and-mask")
        query, key, value = backend.operands(inputs, "bhld")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        biased = inputs.bias is not None
        hidden = merged_bias(inputs, native.rest) if biased else dense_of(inputs, native.rest)
        if hidden is not None:
            arguments["mask"] = backend.array(hidden, inputs.dtype if biased else None)
        for name, array in feature_arrays(backend, inputs).items():
            arguments[name] = array.reshape(1, -1, 1, 1)
        scale, causal = inputs.scale, native.causal

        def call(**arguments: Any) -> Any:
            arrays = [*arguments.values()]

            def model() -> Any:
                return self.model(arguments, scale, causal)

            shapes = [(name, array.shape, array.dtype.name) for name, array in arguments.items()]
            return backend.run(request((self.name, *shapes, scale, causal), model, arrays), arrays)

        operands = {n: n for n in ("query", "key", "value", "sinks")}
        operands["bias" if biased else "mask"] = "mask"
        return PreparedCall(call, arguments, operands=operands)

    def shape(self, name: str, array: np.ndarray) -> list[int]:
        """The sizes of an array that a model fixes; -1 where it leaves them open."""
        if self.fixed:
            return list(array.shape)
        if name == "mask" or array.ndim != 4:
            return [-1] * array.ndim
        return [-1, array.shape[1], -1, array.shape[3]]

    def model(self, arrays: Mapping[str, np.ndarray], scale: float | None, causal: bool) -> Any:
        """The operator alone as a model, with the sizes and dtypes of these arrays."""
        openvino, kind = self.backend.openvino, arrays["query"].dtype
        parameters = {
            name: openvino.op.Parameter(
                self.backend.type_of(array.dtype), openvino.PartialShape(self.shape(name, array))
            )
            for name, array in arrays.items()
        }
        inputs = [parameters[name] for name in OPERANDS]
        if "sinks" in arrays and scale is None:  # they come after the scale
            scale = arrays["query"].shape[-1] ** -0.5
        if "mask" in arrays or scale is not None:
            inputs.append(parameters.get("mask") or self.backend.constant(0.0, kind))
        if scale is not None:
            inputs.append(self.backend.constant(scale, kind))
        if "sinks" in arrays:
            inputs.append(parameters["sinks"])
        node = self.backend.nodes.create("ScaledDotProductAttention", inputs, {"causal": causal})
        return openvino.Model([node], [*parameters.values()])


class SdpaFixed(Sdpa):
    """All sizes are fixed."""

    name = "sdpa-fixed"
    fixed = True
