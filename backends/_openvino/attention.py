"""The operator ScaledDotProductAttention of opset 13 (its specification in OpenVINO's documentation).

query (B, H, Lq, D), key (B, H or 1, Lk, D), value (B, H or 1, Lk, Dv); one mask, boolean or added to the
scores; a causal flag, with which the mask is ignored; a scale; a sink in every head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._openvino.engine import OpenvinoEngine
from attention_conformance.backends.declared import ADDED, ATTENTION_FEATURES, ZEROS, Declared
from attention_conformance.backends.masks import feature_arrays, merged_bias, split_native
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.malformed import MalformedCase
from attention_conformance.suite.spec.vocabulary import OPERANDS

UNSAFE_SHAPES = "with dynamic sizes operands of wrong shapes can end the process"
"""The reason why malformed problems are not tested with dynamic sizes (finding openvino-lost-errors)."""

OF_EMPTY_ROWS = {"f64": "uniform", "f32": "nan", "f16": "nan"}
"""Values of fully masked rows. In float64 infinity becomes the largest float32 number. Not declared for
bfloat16: NaN on CPUs with AVX512_BF16, uniform on others."""


class Sdpa(Implementation):
    """The operator with dynamic batch and lengths, and fixed heads and head sizes, as in a served
    model."""

    backend: OpenvinoEngine

    name = "sdpa"
    declared = Declared(
        # In 16 bits the default scale is rounded to the dtype.
        numerics={"f64": "single", "f32": "exact", "bf16": "eager", "f16": "eager"},
        features=(ATTENTION_FEATURES | {"sinks"}) - {"gradient-of-bias"},
        refusals={
            "softcap": "the operator has no softcap",
            "native-window": "the operator has no window",
        },
        elections=ADDED
        | dict.fromkeys(ZEROS, OF_EMPTY_ROWS)
        | {
            "causal-alignment": "top-left",
            "causal-with-mask": "mask-ignored",
            "integer-mask": "raises",
            "subnormal-output": {"f64": "flushed", "f32": "kept", "f16": "kept"},
            "score-overflow": "finite",
        },
        merges_mask_into_bias=True,
    )
    fixed = False

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, MalformedCase) and not self.fixed:
            return UNSAFE_SHAPES
        return super().unsupported(case)

    def refusal(self, case: Case) -> str | None:
        if case.sizes.Hkv not in (1, case.sizes.H):
            return "the operator broadcasts heads: keys have as many heads as queries, or one"
        if case.sizes.Lk == 0:
            # Finding openvino-no-keys.
            return "without keys the answer is uninitialised memory"
        scale = case.option("scale")
        exact = scale is None or float(round_to(np.array(scale), case.dtype)) == scale
        if case.dtype.is_half and not exact:
            return f"the scale has the dtype of the operands, which cannot hold {scale}"
        return None

    def prepare(self, inputs: Inputs) -> PreparedCall:
        cached_request = self.backend.cached_request
        return self.prepared(inputs, lambda key, model, arrays: cached_request(key, model))

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        if self.fixed:
            return {}
        run, compiled_model = self.backend.run, self.backend.compiled_model

        def after_one_key(_: Any, model: Callable[[], Any], arrays: list[np.ndarray]) -> Any:
            request = compiled_model(model()).create_infer_request()
            query, key, value, *masks = arrays
            run(request, [query, key[:, :, :1], value[:, :, :1], *(x[..., :1] for x in masks)])
            return request

        return {"after a call with one key": self.prepared(inputs, after_one_key)}

    def prepared(self, inputs: Inputs, request_for: Callable[..., Any]) -> PreparedCall:
        """Returns the call. `request_for(key, make_model, arrays)` returns the request that runs the
        model."""
        backend = self.backend
        # The operator ignores a mask beside the causal flag, so the flag is used only alone.
        single = inputs.mask is not None and len(inputs.mask.parts) == 1 and inputs.bias is None
        native = split_native(inputs, causal=single or inputs.form == "flag-and-mask")
        query, key, value = backend.operands(inputs, "bhld")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        has_bias = inputs.bias is not None
        mask = merged_bias(inputs, native.dense_parts) if has_bias else native.dense(inputs)
        if mask is not None:
            arguments["mask"] = backend.array(mask, inputs.dtype if has_bias else None)
        for name, array in feature_arrays(backend, inputs).items():
            arguments[name] = array.reshape(1, -1, 1, 1)
        scale, causal = inputs.scale, native.causal

        def call(**arguments: Any) -> Any:
            arrays = [*arguments.values()]

            def model() -> Any:
                return self.model(arguments, scale, causal)

            shapes = [(name, array.shape, array.dtype.name) for name, array in arguments.items()]
            model_key = (self.name, *shapes, scale, causal)
            return backend.run(request_for(model_key, model, arrays), arrays)

        operands = {n: n for n in ("query", "key", "value", "sinks")}
        operands["bias" if has_bias else "mask"] = "mask"
        return PreparedCall(call, arguments, operands=operands)

    def shape(self, name: str, array: np.ndarray) -> list[int]:
        """Returns the sizes of an array in a model; -1 for dynamic sizes."""
        if self.fixed:
            return list(array.shape)
        if name == "mask" or array.ndim != 4:
            return [-1] * array.ndim
        return [-1, array.shape[1], -1, array.shape[3]]

    def model(self, arrays: Mapping[str, np.ndarray], scale: float | None, causal: bool) -> Any:
        """Returns a model of the single operator, for the sizes and dtypes of these arrays."""
        openvino, kind = self.backend.openvino, arrays["query"].dtype
        parameters = {
            name: openvino.op.Parameter(
                self.backend.type_of(array.dtype), openvino.PartialShape(self.shape(name, array))
            )
            for name, array in arrays.items()
        }
        inputs = [parameters[name] for name in OPERANDS]
        if "sinks" in arrays and scale is None:  # sinks are the input after the scale
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
    """The operator with fixed sizes."""

    name = "sdpa-fixed"
    fixed = True
