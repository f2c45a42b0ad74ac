"""Attention with a key-value cache, called step by step as the script of a case says."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.cached import CACHED
from attention_conformance.suite.spec.operators.scripts import (
    Contents,
    concatenate_chunks,
    play_script,
    with_other_options,
)
from attention_conformance.suite.spec.operators.steps import Chunk, Crop, Keep, Pick, Reset
from attention_conformance.suite.spec.operators.views import allowed


@dataclass(frozen=True)
class StepContext:
    """What a step of a script is about: the inputs of the case, the chunk of tokens that the step adds,
    and the contents of the cache after the step. b is the number of samples of the chunk."""

    inputs: Inputs
    chunk: Chunk
    contents: Contents

    @property
    def begins(self) -> np.ndarray:
        """The first position (b, tokens) that each token of the chunk attends, apart from a window."""
        return self.contents.begins[self.contents.newest(self.chunk)]

    @property
    def padding(self) -> np.ndarray:
        """The number of padding tokens (b,) before each sample of the chunk. Not for a case with
        documents."""
        return self.begins[:, 0]

    @property
    def total(self) -> int:
        """The number of cached tokens of the longest sample."""
        return self.contents.positions.shape[1]

    def mask(self, columns: int) -> np.ndarray:
        """Returns the mask (b, tokens, columns) of the chunk over the cached tokens; True attends.
        Columns beyond the cached tokens are False."""
        keys, tree = self.contents.positions[list(self.chunk.sample_ids)], self.chunk.tree
        mask = allowed(self.inputs.case, self.token_positions, self.begins, keys, tree)
        return np.pad(mask, ((0, 0), (0, 0), (0, columns - mask.shape[2])))

    @property
    def token_positions(self) -> np.ndarray:
        """The positions (b, tokens) of the chunk's tokens."""
        return self.contents.positions[self.contents.newest(self.chunk)]


def rolled_back(length: int, count: int) -> int:
    """Returns the number of cached tokens after a rollback of `count` of `length` tokens, for caches that
    do not count their tokens. Raises ValueError if `count` is negative or above `length`."""
    if not 0 <= count <= length:
        raise ValueError(f"a rollback of {count} tokens, and there are {length}")
    return length - count


class Scripted(Implementation):
    """A cache as an implementation. It has a method for each action of a script, which returns the state
    after the action.

    Operands, and rows (outputs of attention), have the axes of `axis_order`. If an action is about some
    samples only, the method gets their indices as `samples`, integers of the framework.
    """

    operator = CACHED

    @abstractmethod
    def init(self, inputs: Inputs, key: Any) -> Any:
        """Returns the state of an empty cache for keys with the dtype and device of `key`."""

    @abstractmethod
    def step(
        self, state: Any, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        """Returns the rows of the chunk's queries, and the state with the chunk's keys and values."""

    def fill(self, state: Any, query: Any, key: Any, value: Any, context: StepContext) -> Any:
        """Returns the state with tokens whose rows are not judged. `query` has only zeros."""
        return self.step(state, query, key, value, context)[1]

    def crop(self, state: Any, count: int, *samples: Any) -> Any:
        """Returns the state without its last `count` tokens."""
        raise NotImplementedError

    def can_rewind(self, inputs: Inputs) -> bool:
        """True if `rewound` can restore the state before a timed step."""
        windowed = inputs.case.option("left") is not None
        return self.missing(["rollback", *(["window-rollback"] * windowed)]) is None

    def rewound(self, state: Any, count: int) -> Any:
        """Returns the state without the `count` tokens of a timed step."""
        return self.crop(state, count)

    def reset(self, state: Any, *samples: Any) -> Any:
        """Returns the state without tokens."""
        raise NotImplementedError

    def keep(self, state: Any, paths: Any, count: int, *samples: Any) -> Any:
        """Returns the state in which the nodes `paths` (b, longest) replace the last `count` tokens,
        which are a tree. Shorter paths end with -1."""
        raise NotImplementedError

    def reorder(self, state: Any, samples: Any) -> Any:
        """Returns the state in which sample n has the tokens of sample `samples[n]`."""
        raise NotImplementedError

    @abstractmethod
    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        """Returns the arrays concatenated along `axis`."""

    @property
    def token_axis(self) -> int:
        """The axis of tokens in operands and rows."""
        return 2 if self.axis_order == "bhld" else 1

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """Returns the operands by name; if Lk > Lq also `earlier`, zero queries for the Lk - Lq tokens
        that fill the cache."""
        backend, s = self.backend, inputs.sizes
        operands = backend.operands(inputs, self.axis_order)
        arguments = dict(zip(("query", "key", "value"), operands, strict=True))
        if s.Lk > s.Lq:
            shape = (s.B, s.H, s.Lk - s.Lq, s.D)
            arguments["earlier"] = backend.operand(np.zeros(shape), inputs, self.axis_order)
        return arguments

    def timed(self, inputs: Inputs) -> PreparedCall:
        """Returns a call of one chunk with a filled cache. The state is rewound after every call.

        Returns the call of the whole script if the script has more chunks, or if the cache cannot be
        rewound.
        """
        s, case = inputs.sizes, inputs.case
        single = len(case.option("script")) == 1 and s.Lk > s.Lq
        if not single or case.option("used") or not self.can_rewind(inputs):
            return self.prepare(inputs)
        before, last = (
            StepContext(inputs, action, contents)
            for action, contents in play_script(case)
            if isinstance(action, Chunk)
        )
        operands = self.arguments(inputs)
        old, new = (
            {n: step.chunk.cut(operands[n], self.concat, self.token_axis) for n in ("key", "value")}
            for step in (before, last)
        )
        empty = self.init(inputs, operands["key"])
        states = [self.fill(empty, operands["earlier"], old["key"], old["value"], before)]

        def call(query: Any, key: Any, value: Any, states: list[Any]) -> Any:
            rows, state = self.step(states[0], query, key, value, last)
            states[0] = self.rewound(state, s.Lq)
            return rows

        arguments = {"query": operands["query"], **new, "states": states}
        return PreparedCall(call, arguments, axis_order=self.axis_order)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.scripted(inputs)

    def refusing(self, inputs: Inputs) -> PreparedCall:
        return self.scripted(inputs, refusing=True)

    def scripted(self, inputs: Inputs, refusing: bool = False) -> PreparedCall:
        """Returns the call that plays the script. `refusing`: see `Implementation.refusing`. With the
        option `used` the script is played with other tokens first, and the cache is reset."""
        backend, case = self.backend, inputs.case
        # The cache, not the script, must refuse malformed actions.
        script = [(inputs, *each) for each in play_script(case, lenient=True)]
        if case.option("used"):
            other_inputs, reset = with_other_options(inputs), (inputs, Reset(), script[-1][2])
            before = [(other_inputs, action, contents) for _, action, contents in script]
            script = [*before, reset, *script]

        def integers(numbers: Any) -> Any:
            return backend.array(np.array(numbers), None)

        def as_argument(samples: Any) -> tuple[Any, ...]:
            return () if samples is None else (integers(samples),)

        def call(query: Any, key: Any, value: Any, earlier: Any = None) -> Any:
            state = self.init(inputs, key)
            parts, refused = list[tuple[Chunk, Any]](), False
            for played_inputs, action, contents in script:
                match action:
                    case Crop() if refused:
                        refused = False
                    case Chunk():
                        k, v = (action.cut(x, self.concat, self.token_axis) for x in (key, value))
                        if played_inputs is not inputs:  # another sequence has other tokens
                            k, v = -k, -v
                        context = StepContext(played_inputs, action, contents)
                        if not action.has_queries:
                            state = self.fill(state, earlier, k, v, context)
                            continue
                        q = action.cut(query, self.concat, self.token_axis, queries=True)
                        try:
                            rows, state = self.step(state, q, k, v, context)
                        except Exception:
                            if not refusing:
                                raise
                            rows, refused = q, True
                        parts += [(action, rows)] if played_inputs is inputs else []
                    case Crop(count=count, samples=samples):
                        state = self.crop(state, count, *as_argument(samples))
                    case Reset(samples=samples):
                        state = self.reset(state, *as_argument(samples))
                    case Pick(samples=samples):
                        state = self.reorder(state, integers(samples))
                    case Keep(count=count, samples=samples):
                        state = self.keep(
                            state, integers(action.table), count, *as_argument(samples)
                        )
            return concatenate_chunks(parts, self.concat, self.token_axis)

        return PreparedCall(call, self.arguments(inputs), axis_order=self.axis_order)


SIGNS = ((1, 1, 1, 1), (-1, 1, -1, 1), (-1, -1, -1, -1), (1, -1, 1, -1))
"""Signs of the projections of query, key, value and rows of a layer. Steps take the tuples in turn."""


class Projected(Scripted):
    """A cache inside a layer whose projections are the identity or its negative.

    The signs of projections change between steps, as if the layer were trained. Each step also multiplies
    operands and rows by these signs, so that they cancel. A layer that keeps old parameters gives wrong
    answers.
    """

    @abstractmethod
    def project(self, state: Any, signs: Sequence[int]) -> Any:
        """Returns the state in which the projections of query, key, value and rows are the identity times
        `signs`. A layer may be changed in place."""

    @abstractmethod
    def layer_step(
        self, state: Any, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        """Returns the layer's rows for a chunk, with the signs of its projections, and the new state."""

    def step(
        self, state: Any, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        signs = SIGNS[context.total % len(SIGNS)]
        query, key, value = (
            array if sign > 0 else -array
            for array, sign in zip((query, key, value), signs[:3], strict=True)
        )
        rows, state = self.layer_step(self.project(state, signs), query, key, value, context)
        return (rows if signs[3] > 0 else -rows), state
