"""Attention with a key-value cache that is called step by step, as the script of a case says."""

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
    """The context of a step: the inputs of the case, the chunk of tokens that the step adds, and the
    contents of the cache after the step. b is the number of samples of the chunk."""

    inputs: Inputs
    chunk: Chunk
    contents: Contents

    @property
    def begins(self) -> np.ndarray:
        """The first position (b, tokens) that each token of the chunk attends without a window."""
        return self.contents.begins[self.contents.newest(self.chunk)]

    @property
    def padding(self) -> np.ndarray:
        """The left padding (b,) of the chunk's samples; only for a case without documents."""
        return self.begins[:, 0]

    @property
    def total(self) -> int:
        """The number of tokens of the longest sample."""
        return self.contents.positions.shape[1]

    def mask(self, columns: int) -> np.ndarray:
        """The mask (b, tokens, columns) over the tokens of the cache; columns behind them are hidden."""
        keys, tree = self.contents.positions[list(self.chunk.sample_ids)], self.chunk.tree
        mask = allowed(self.inputs.case, self.rows, self.begins, keys, tree)
        return np.pad(mask, ((0, 0), (0, 0), (0, columns - mask.shape[2])))

    @property
    def rows(self) -> np.ndarray:
        """The positions of the chunk's tokens (b, tokens)."""
        return self.contents.positions[self.contents.newest(self.chunk)]


def rolled_back(length: int, count: int) -> int:
    """The number of cached tokens after a rollback of `count` tokens. Raises ValueError for more tokens
    than there are. For caches that do not count their tokens themselves."""
    if not 0 <= count <= length:
        raise ValueError(f"a rollback of {count} tokens, and there are {length}")
    return length - count


class Scripted(Implementation):
    """A cache with a method for each action of a script, which returns the state after the action.

    Operands and rows (outputs of attention) have the order of `axis_order`. An action on some samples
    alone gets their indices as `samples`, the framework's integers.
    """

    operator = CACHED

    @abstractmethod
    def init(self, inputs: Inputs, key: Any) -> Any:
        """The state of an empty cache for keys like `key`."""

    @abstractmethod
    def step(
        self, state: Any, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        """The rows of the chunk's queries, and the state with the chunk's keys and values."""

    def fill(self, state: Any, query: Any, key: Any, value: Any, context: StepContext) -> Any:
        """The state with tokens whose rows are not judged; the queries are zeros."""
        return self.step(state, query, key, value, context)[1]

    def crop(self, state: Any, count: int, *samples: Any) -> Any:
        """The state without its last `count` tokens."""
        raise NotImplementedError

    def rewinds(self, inputs: Inputs) -> bool:
        """True if `rewound` can restore the state before a timed step."""
        windowed = inputs.case.option("left") is not None
        return self.missing(["rollback", *(["window-rollback"] * windowed)]) is None

    def rewound(self, state: Any, count: int) -> Any:
        """The state without the `count` tokens of a timed step."""
        return self.crop(state, count)

    def reset(self, state: Any, *samples: Any) -> Any:
        """The state without tokens."""
        raise NotImplementedError

    def keep(self, state: Any, paths: Any, count: int, *samples: Any) -> Any:
        """The state in which the last `count` tokens, a tree, are replaced by its nodes `paths` (b,
        longest). Shorter paths end with -1."""
        raise NotImplementedError

    def reorder(self, state: Any, samples: Any) -> Any:
        """The state whose sample n has the tokens of sample `samples[n]`."""
        raise NotImplementedError

    @abstractmethod
    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        """The arrays concatenated along `axis`."""

    @property
    def place(self) -> int:
        """The axis of tokens in operands and rows."""
        return 2 if self.axis_order == "bhld" else 1

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """The operands, and as `earlier` zero queries of the Lk - Lq tokens that fill the cache."""
        backend, s = self.backend, inputs.sizes
        operands = backend.operands(inputs, self.axis_order)
        arguments = dict(zip(("query", "key", "value"), operands, strict=True))
        if s.Lk > s.Lq:
            shape = (s.B, s.H, s.Lk - s.Lq, s.D)
            arguments["earlier"] = backend.operand(np.zeros(shape), inputs, self.axis_order)
        return arguments

    def timed(self, inputs: Inputs) -> PreparedCall:
        """The call of a single chunk behind a filled cache, whose state is rewound after every call.

        The whole script is timed if it is longer, or if the cache cannot be rewound.
        """
        s, case = inputs.sizes, inputs.case
        single = len(case.option("script")) == 1 and s.Lk > s.Lq
        if not single or case.option("used") or not self.rewinds(inputs):
            return self.prepare(inputs)
        before, last = (
            StepContext(inputs, action, contents)
            for action, contents in play_script(case)
            if isinstance(action, Chunk)
        )
        operands = self.arguments(inputs)
        old, new = (
            {n: step.chunk.cut(operands[n], self.concat, self.place) for n in ("key", "value")}
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
        """The call that plays the script; `refusing`: see `Implementation.refusing`. With the option
        `used` the script is played with other tokens first, and the cache is reset."""
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
                        k, v = (action.cut(x, self.concat, self.place) for x in (key, value))
                        if played_inputs is not inputs:  # another sequence has other tokens
                            k, v = -k, -v
                        context = StepContext(played_inputs, action, contents)
                        if not action.has_queries:
                            state = self.fill(state, earlier, k, v, context)
                            continue
                        q = action.cut(query, self.concat, self.place, queries=True)
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
            return concatenate_chunks(parts, self.concat, self.place)

        return PreparedCall(call, self.arguments(inputs), axis_order=self.axis_order)


SIGNS = ((1, 1, 1, 1), (-1, 1, -1, 1), (-1, -1, -1, -1), (1, -1, 1, -1))
"""Signs of a layer's projections of query, key, value and rows. Steps use the tuples in turn."""


class Projected(Scripted):
    """A cache inside a layer with projections, each the identity or its negative.

    Signs of projections change between steps, as if the layer were trained. Each step multiplies operands
    and rows by the same signs, which then cancel. A layer that keeps old parameters gives wrong answers.
    """

    @abstractmethod
    def project(self, state: Any, signs: Sequence[int]) -> Any:
        """The state with projections of query, key, value and rows that are the identity times `signs`;
        a layer is changed in place."""

    @abstractmethod
    def layer_step(
        self, state: Any, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        """The layer's rows of a chunk, with the signs of its projections, and the state."""

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
