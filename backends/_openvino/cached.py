"""Attention over keys and values that the model keeps: the operator ScaledDotProductAttention behind
ReadValue and Assign, as in exported language models.

The CPU plugin fuses these operators. Every request has a state of its own. The input `samples` says
whose history every sample goes on with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.backends._openvino.attention import LOST
from attention_conformance.backends._openvino.engine import OpenvinoEngine
from attention_conformance.backends.caching import Scripted, StepContext, rolled_back
from attention_conformance.backends.declared import Declared
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.malformed import MalformedCase
from attention_conformance.suite.spec.operators.cached import FEATURES


@dataclass(frozen=True)
class Request:
    """A request, the order of its samples at the next step, and the number of tokens of each of them."""

    request: Any
    order: np.ndarray
    count: int = 0

    @classmethod
    def of(cls, request: Any, samples: int, count: int = 0) -> Request:
        """A request whose samples go on with their own histories."""
        return cls(request, np.arange(samples, dtype=np.int32), count)


class Stateful(Scripted):
    """The operator behind two variables in the dtype of keys and values.

    Masks are boolean, or added to the scores with a bias. Grouped heads are repeated behind the
    variables. Rollbacks and kept paths set the variables.
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
            return LOST
        return super().unsupported(case)

    def init(self, inputs: Inputs, key: Any) -> Request:
        s, kind, backend = inputs.sizes, key.dtype, self.backend
        more = {"sinks": "sinks" in inputs.arrays, "biased": inputs.bias is not None}
        compiled = backend.kept_model(
            (self.name, s.H, s.Hkv, s.D, s.Dv, kind.name, inputs.scale, *more.values()),
            lambda: self.model(inputs, kind, **more),
            KV_CACHE_PRECISION=backend.type_of(kind),
        )
        return Request.of(compiled.create_infer_request(), s.B)

    def model(self, inputs: Inputs, kind: np.dtype, sinks: bool, biased: bool) -> Any:
        """A model of query, key, value, samples, mask and sinks, with dynamic batch and lengths."""
        from openvino import opset13 as op
        from openvino.op.util import Variable, VariableInfo

        ov, s, dtype = self.backend.openvino, inputs.sizes, self.backend.type_of(kind)
        zero, writes = self.backend.constant(0.0, kind), list[Any]()
        first = op.constant(np.int64(0))
        query, key, value = (
            op.parameter([-1, heads, -1, size], dtype)
            for heads, size in ((s.H, s.D), (s.Hkv, s.D), (s.Hkv, s.Dv))
        )
        samples = op.parameter([-1], ov.Type.i32)
        mask = op.parameter([-1] * 4, dtype if biased else ov.Type.boolean)

        def remembered(new: Any, name: str, size: int) -> Any:
            info = VariableInfo()
            info.variable_id, info.data_type = name, dtype
            info.data_shape = ov.PartialShape([-1, s.Hkv, -1, size])
            variable = Variable(info)
            batch = op.gather(op.shape_of(new), op.constant(np.array([0])), first)
            empty = op.concat([batch, op.constant(np.array([s.Hkv, 0, size]))], 0)
            old = op.gather(ov.op.read_value(op.broadcast(zero, empty), variable), samples, first)
            whole = op.concat([old, new], 2)
            writes.append(ov.op.assign(whole, variable))
            if s.group == 1:
                return whole
            apart = op.unsqueeze(whole, op.constant(np.int64(2)))
            groups = op.constant(np.array([1, 1, s.group, 1, 1]))
            repeated = op.broadcast(apart, groups, broadcast_spec="BIDIRECTIONAL")
            return op.reshape(repeated, op.constant(np.array([0, s.H, -1, size])), True)

        operands = [query, remembered(key, "key", s.D), remembered(value, "value", s.Dv), mask]
        parameters = [query, key, value, samples, mask]
        if sinks or inputs.scale is not None:
            operands.append(self.backend.constant(inputs.effective_scale, kind))
        if sinks:
            parameters.append(op.parameter([1, s.H, 1, 1], dtype))
            operands.append(parameters[-1])
        node = self.backend.nodes.create("ScaledDotProductAttention", operands, {"causal": False})
        return ov.Model([op.result(node)], writes, parameters)

    def step(
        self, state: Request, query: Any, key: Any, value: Any, turn: StepContext
    ) -> tuple[Any, Any]:
        inputs, backend = turn.inputs, self.backend
        mask = turn.mask(turn.total)[:, None]
        if inputs.bias is not None:
            bias = turn.chunk.biases(inputs.bias, turn.contents.positions)
            mask = backend.array(np.where(mask, bias, -np.inf), inputs.dtype)
        sinks = inputs.arrays.get("sinks")
        more = [] if sinks is None else [backend.array(sinks.reshape(1, -1, 1, 1), inputs.dtype)]
        rows = backend.run(state.request, [query, key, value, state.order, mask, *more])
        return rows, Request.of(state.request, len(state.order), state.count + key.shape[2])

    def changed(self, state: Request, tokens: np.ndarray) -> Request:
        """The state with the tokens (B, n) of its variables."""
        for variable in state.request.query_state():
            tensor = variable.state
            array = np.array(tensor.data)[state.order]
            chosen = np.take_along_axis(array, tokens[:, None, :, None], 2)
            variable.state = self.backend.openvino.Tensor(chosen, chosen.shape, tensor.element_type)
        return Request.of(state.request, *tokens.shape)

    def crop(self, state: Request, count: int, *samples: Any) -> Request:
        tokens = np.arange(rolled_back(state.count, count))
        return self.changed(state, np.tile(tokens, (len(state.order), 1)))

    def reset(self, state: Request, *samples: Any) -> Request:
        state.request.reset_state()
        return Request.of(state.request, len(state.order))

    def keep(self, state: Request, paths: Any, count: int, *samples: Any) -> Request:
        before = state.count - count
        first = np.tile(np.arange(before), (len(paths), 1))
        return self.changed(state, np.concatenate([first, before + paths], 1))

    def reorder(self, state: Request, samples: Any) -> Request:
        return replace(state, order=state.order[samples])

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return np.concatenate(list(arrays), axis)
