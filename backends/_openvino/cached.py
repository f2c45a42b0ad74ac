"""Attention over keys and values that the model stores: the operator ScaledDotProductAttention after
ReadValue and Assign, as in exported language models.

The CPU plugin fuses these operators. Every request has its own state. The input `samples` has for each
sample the index of the sample whose history it continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.backends._openvino.attention import UNSAFE_SHAPES
from attention_conformance.backends._openvino.engine import OpenvinoEngine
from attention_conformance.backends.caching import Scripted, StepContext, rolled_back
from attention_conformance.backends.declared import Declared
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.malformed import MalformedCase
from attention_conformance.suite.spec.operators.cached import FEATURES


@dataclass(frozen=True)
class Request:
    """A request, the order of its samples at the next step, and the number of tokens of each sample."""

    request: Any
    order: np.ndarray
    count: int = 0

    @classmethod
    def of(cls, request: Any, samples: int, count: int = 0) -> Request:
        """Returns a request whose samples continue their own history."""
        return cls(request, np.arange(samples, dtype=np.int32), count)


class Stateful(Scripted):
    """The operator after two variables in the dtype of keys and values.

    Masks are boolean; with a bias they are merged into it. Grouped heads are repeated after the
    variables. Rollbacks and `keep` set the variables.
    """

    backend: OpenvinoEngine

    name = "sdpa-stateful"
    declared = Declared(
        numerics={"f32": "exact", "bf16": "eager", "f16": "eager"},
        features=FEATURES,
        refusals={
            "softcap": "the operator has no softcap",
            "alibi-slopes": "the operator has no slopes",
            **dict.fromkeys(("rotary", "halves", "interleaved"), "the operator rotates nothing"),
            "subsets": "the variables of all samples have one length",
        },
        dtypes=("f32", "bf16", "f16"),  # the plugin cannot set variables of float64
        elections={"beyond-capacity": "grows"},
    )

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, MalformedCase) and case.name != "rollback-beyond-length":
            return UNSAFE_SHAPES
        return super().unsupported(case)

    def init(self, inputs: Inputs, key: Any) -> Request:
        s, dtype, backend = inputs.sizes, key.dtype, self.backend
        flags = {"sinks": "sinks" in inputs.arrays, "biased": inputs.bias is not None}
        compiled = backend.cached_model(
            (self.name, s.H, s.Hkv, s.D, s.Dv, dtype.name, inputs.scale, *flags.values()),
            lambda: self.model(inputs, dtype, **flags),
            KV_CACHE_PRECISION=backend.type_of(dtype),
        )
        return Request.of(compiled.create_infer_request(), s.B)

    def model(self, inputs: Inputs, numpy_dtype: np.dtype, sinks: bool, biased: bool) -> Any:
        """Returns a model of query, key, value, samples, mask and sinks, with dynamic batch and
        lengths."""
        from openvino import opset13 as op
        from openvino.op.util import Variable, VariableInfo

        ov, s, dtype = self.backend.openvino, inputs.sizes, self.backend.type_of(numpy_dtype)
        zero, assignments = self.backend.constant(0.0, numpy_dtype), list[Any]()
        batch_axis = op.constant(np.int64(0))
        query, key, value = (
            op.parameter([-1, heads, -1, size], dtype)
            for heads, size in ((s.H, s.D), (s.Hkv, s.D), (s.Hkv, s.Dv))
        )
        samples = op.parameter([-1], ov.Type.i32)
        mask = op.parameter([-1] * 4, dtype if biased else ov.Type.boolean)

        def past_and_new(new: Any, name: str, size: int) -> Any:
            """Append new tokens to a variable. Returns all tokens, with the heads of queries."""
            info = VariableInfo()
            info.variable_id, info.data_type = name, dtype
            info.data_shape = ov.PartialShape([-1, s.Hkv, -1, size])
            variable = Variable(info)
            batch = op.gather(op.shape_of(new), op.constant(np.array([0])), batch_axis)
            empty = op.concat([batch, op.constant(np.array([s.Hkv, 0, size]))], 0)
            past = ov.op.read_value(op.broadcast(zero, empty), variable)
            past = op.gather(past, samples, batch_axis)
            all_tokens = op.concat([past, new], 2)
            assignments.append(ov.op.assign(all_tokens, variable))
            if s.group == 1:
                return all_tokens
            with_group_axis = op.unsqueeze(all_tokens, op.constant(np.int64(2)))
            groups = op.constant(np.array([1, 1, s.group, 1, 1]))
            repeated = op.broadcast(with_group_axis, groups, broadcast_spec="BIDIRECTIONAL")
            return op.reshape(repeated, op.constant(np.array([0, s.H, -1, size])), True)

        operands = [query, past_and_new(key, "key", s.D), past_and_new(value, "value", s.Dv), mask]
        parameters = [query, key, value, samples, mask]
        if sinks or inputs.scale is not None:
            operands.append(self.backend.constant(inputs.effective_scale, numpy_dtype))
        if sinks:
            parameters.append(op.parameter([1, s.H, 1, 1], dtype))
            operands.append(parameters[-1])
        node = self.backend.nodes.create("ScaledDotProductAttention", operands, {"causal": False})
        return ov.Model([op.result(node)], assignments, parameters)

    def step(
        self, state: Request, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        inputs, backend = context.inputs, self.backend
        mask = context.mask(context.total)[:, None]
        if inputs.bias is not None:
            bias = context.chunk.biases(inputs.bias, context.contents.positions)
            mask = backend.array(np.where(mask, bias, -np.inf), inputs.dtype)
        sinks = inputs.arrays.get("sinks")
        arrays = [query, key, value, state.order, mask]
        if sinks is not None:
            arrays.append(backend.array(sinks.reshape(1, -1, 1, 1), inputs.dtype))
        rows = backend.run(state.request, arrays)
        return rows, Request.of(state.request, len(state.order), state.count + key.shape[2])

    def with_tokens(self, state: Request, tokens: np.ndarray) -> Request:
        """Keep in the request's variables only the tokens with indices `tokens` (B, n). Returns the new
        state."""
        for variable in state.request.query_state():
            tensor = variable.state
            array = np.array(tensor.data)[state.order]
            values = np.take_along_axis(array, tokens[:, None, :, None], 2)
            variable.state = self.backend.openvino.Tensor(values, values.shape, tensor.element_type)
        return Request.of(state.request, *tokens.shape)

    def crop(self, state: Request, count: int, *samples: Any) -> Request:
        tokens = np.arange(rolled_back(state.count, count))
        return self.with_tokens(state, np.tile(tokens, (len(state.order), 1)))

    def reset(self, state: Request, *samples: Any) -> Request:
        state.request.reset_state()
        return Request.of(state.request, len(state.order))

    def keep(self, state: Request, paths: Any, count: int, *samples: Any) -> Request:
        earlier = state.count - count
        earlier_tokens = np.tile(np.arange(earlier), (len(paths), 1))
        return self.with_tokens(state, np.concatenate([earlier_tokens, earlier + paths], 1))

    def reorder(self, state: Request, samples: Any) -> Request:
        return replace(state, order=state.order[samples])

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return np.concatenate(list(arrays), axis)
