"""A user's cache as an implementation; see docs/operators/cached.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.binder import Binder, Parameter
from attention_conformance.backends.caching import Scripted, StepContext
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.declared import Declared, UsageError
from attention_conformance.backends.implementation import as_in_programs
from attention_conformance.backends.masks import Call
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend, own_attention
from attention_conformance.backends.user.function import UserCallable
from attention_conformance.backends.user.names import feature_argument
from attention_conformance.backends.user.operators import window_sides
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operators.cached import CACHED, CARRIED, FEATURES
from attention_conformance.suite.spec.operators.scripts import capacity, has_documents, rotation


@dataclass(frozen=True)
class CacheCall(Call):
    """The context from which the arguments of `init` and `step` of a user's cache are made.

    - `key`: keys of the case, for their dtype and device
    - `context`: the context of the step; None for `init`
    """

    key: Any
    context: Any = None

    def integers(self, numbers: Any) -> Any:
        """Returns the framework's int32 array; None for None."""
        return self.array(None if numbers is None else np.asarray(numbers, np.int32))

    @property
    def rotation_of_case(self) -> Any:
        """The rotation that the cache must apply to queries and keys, or None."""
        return rotation(self.inputs.case)


def step_bias(step: CacheCall) -> Any:
    """Returns the bias (b, H, rows, tokens) of a step, with a column for every position; None without a
    bias."""
    bias_of_case, context = step.inputs.bias, step.context
    if bias_of_case is None:
        return None
    keys = np.tile(np.arange(context.total), (len(context.chunk.starts), 1))
    return step.backend.array(context.chunk.biases(bias_of_case, keys), step.inputs.dtype)


def tree_arguments(step: CacheCall) -> tuple[Any, Any]:
    """Returns two arrays of a chunk that is a tree: the parents (n,) of its nodes, -1 for the last cached
    token; and boolean (n, n), True if the node of the row attends the node of the column. (None, None)
    for other chunks."""
    chunk = step.context.chunk
    if chunk.tree is None:
        return None, None
    paths = step.backend.array(chunk.tree.paths(chunk.count), None)
    return step.integers(chunk.tree.parents(chunk.count)), paths


INIT: tuple[Parameter[CacheCall], ...] = (
    Parameter("batch", value=lambda step: step.inputs.sizes.B),
    Parameter("capacity", value=lambda step: capacity(step.inputs.case)),
    Parameter("heads", value=lambda step: step.inputs.sizes.Hkv),
    Parameter("head_size", value=lambda step: step.inputs.sizes.D),
    Parameter("value_size", ("value-size",), lambda step: step.inputs.sizes.Dv),
    Parameter("dtype", value=lambda step: step.key.dtype),
    Parameter("device", value=lambda step: step.key.device),
    Parameter("window", value=window_sides),
)
"""The keyword parameters of `init`."""

STEP: tuple[Parameter[CacheCall], ...] = (
    Parameter("window", ("window",), window_sides),
    Parameter(
        "left_padding", ("left-padding",),
        lambda step: None if step.option("padding") is None else step.integers(step.context.padding),
    ),
    *(Parameter(one.name, (one.word,), partial(feature_argument, one)) for one in CARRIED),
    Parameter("scale", ("scale",), lambda step: step.inputs.scale),
    Parameter("bias", ("bias", "bias-with-mask"), step_bias),
    Parameter("rotary_base", ("rotary",), lambda step: getattr(step.rotation_of_case, "base", None)),
    Parameter(
        "rotary_interleaved", ("interleaved",),
        lambda step: getattr(step.rotation_of_case, "interleaved", None),
    ),
    Parameter("samples", ("subsets",), lambda step: step.integers(step.context.chunk.samples)),
    Parameter("parents", ("tree",), lambda step: tree_arguments(step)[0]),
    Parameter("tree_mask", ("tree",), lambda step: tree_arguments(step)[1]),
    Parameter(
        "document_starts", ("documents",),
        lambda step: step.integers(step.context.begins) if has_documents(step.inputs.case) else None,
    ),
    Parameter("positions", (), lambda step: step.integers(step.context.token_positions)),
)  # fmt: skip
"""The keyword parameters of `step`."""

OPERATIONS = {
    "reset": ("reset",), "crop": ("rollback", "window-rollback"), "reorder": ("reorder",),
    "keep": ("keep",),
}  # fmt: skip
"""By method of a cache: the features that need it."""

METHODS = ("init", "step", *OPERATIONS)
"""The methods of a cache. `init` and `step` are required."""


AXIS_ORDER_CASE = "sdpa/none/mha/f32/b1h1q1k1d1"
"""A case that is prepared only to read the axis order of the framework's own attention."""


class UserCached(Scripted, UserCallable):
    """A user's cache: an object, or a class that is called without arguments. With a class every call
    makes a new object.

    - `init(...)` returns a state. It gets the keywords of `INIT` that it takes. Cases with fewer slots
      than tokens are tested only if it takes `window`, or does not take `capacity`.
    - `step(state, query, key, value, ...)` returns the rows of a chunk, and the state. It gets the
      keywords of `STEP` that it takes. Arrays have the axis order of the framework's own attention.
    - `reset(state)`, `crop(state, count)`, `reorder(state, samples)` and `keep(state, paths, count)` are
      optional and return the state. If an action is about some samples, all but `reorder` also get their
      indices.
    """

    operator = CACHED

    def __init__(
        self, backend: Backend, function: Callable[..., Any], name: str, claims: Claims
    ) -> None:
        super().__init__(backend, function, name, claims)
        native = own_attention(self.backend)
        kinds = [i for i in backend.implementations() if i.textbook and i.operator is CACHED]
        if native is None or not kinds:
            raise UsageError(f"no cache is judged with {self.backend.name}; use torch, tf or jax")
        self.textbook_cache: Any = kinds[0]
        self.axis_order = native.prepare(draw(Case.parse(AXIS_ORDER_CASE))).axis_order

    def bound(self, function: Callable[..., Any], name: str) -> Binder[Any]:
        cache = self.cache_of(function)
        attributes = {name: getattr(cache, name, None) for name in METHODS}
        self.methods = {name: method for name, method in attributes.items() if callable(method)}
        lacking = [name for name in METHODS[:2] if name not in self.methods]
        if lacking:
            raise UsageError(f"{name} has no {' and no '.join(lacking)}; expected both as methods")
        self.initial = Binder.of(cache.init, f"{name}.init", INIT, ())
        self.missing_methods = {
            feature: f"the cache has no method {method}"
            for method, features in OPERATIONS.items()
            for feature in features
            if method not in self.methods
        }
        return Binder.of(cache.step, f"{name}.step", STEP, ("state", "query", "key", "value"))

    @staticmethod
    def cache_of(function: Any) -> Any:
        """Returns the user's object, or a new object of the user's class."""
        return function() if isinstance(function, type) else function

    def declaration(self, claims: Claims) -> Declared:
        refusals = {**self.binder.lacking, **self.initial.lacking, **self.missing_methods}
        if "capacity" in self.initial.taken and "window" not in self.initial.taken:
            reason = "init takes a capacity and no window"
            refusals |= {"ring": reason, "window-rollback": reason}
        return claims.declared(FEATURES, refusals=refusals)

    @as_in_programs
    def scripted(self, inputs: Inputs, refusing: bool = False) -> PreparedCall:
        return super().scripted(inputs, refusing=refusing)

    def init(self, inputs: Inputs, key: Any) -> Any:
        """Returns (the user's object, its state). All methods take and return such a pair as their
        state."""
        cache, beginning = self.cache_of(self.judged), CacheCall(self.backend, inputs, key)
        return cache, cache.init(**self.initial.bind(beginning, inputs.needs))

    def step(
        self, state: Any, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        cache, cache_state = state
        step = CacheCall(self.backend, context.inputs, key, context)
        keywords = self.binder.bind(step, context.inputs.needs)
        rows, cache_state = cache.step(cache_state, query, key, value, **keywords)
        return rows, (cache, cache_state)

    def crop(self, state: Any, count: int, *samples: Any) -> Any:
        return state[0], state[0].crop(state[1], count, *samples)

    def reset(self, state: Any, *samples: Any) -> Any:
        return state[0], state[0].reset(state[1], *samples)

    def reorder(self, state: Any, samples: Any) -> Any:
        return state[0], state[0].reorder(state[1], samples)

    def keep(self, state: Any, paths: Any, count: int, *samples: Any) -> Any:
        return state[0], state[0].keep(state[1], paths, count, *samples)

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.textbook_cache.ops.concat(arrays, axis)
