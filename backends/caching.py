"""Attention with a cache that is called step by step, as a script says."""

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
    """What a step knows besides its arrays: the inputs of the case, the chunk, and what the cache holds
    afterwards."""

    inputs: Inputs
    chunk: Chunk
    contents: Contents

    @property
    def begins(self) -> np.ndarray:
        """The first positions (b, tokens) that the chunk's tokens attend without a window."""
        return self.contents.begins[self.contents.newest(self.chunk)]

    @property
    def padding(self) -> np.ndarray:
        """The left padding (b,) of the chunk's samples, of a case without documents."""
        return self.begins[:, 0]

    @property
    def total(self) -> int:
        """The number of tokens of the longest sample."""
        return self.contents.positions.shape[1]

    def mask(self, columns: int) -> np.ndarray:
        """The mask (b, tokens, columns) over the tokens of the cache, and hidden columns behind them."""
        rows, keys = (self.rows, self.begins), self.contents.positions[list(self.chunk.own)]
        seen = allowed(self.inputs.case, *rows, keys, self.chunk.tree)
        return np.pad(seen, ((0, 0), (0, 0), (0, columns - seen.shape[2])))

    @property
    def rows(self) -> np.ndarray:
        """The positions of the chunk's tokens (b, tokens)."""
        return self.contents.positions[self.contents.newest(self.chunk)]


def rolled_back(length: int, count: int) -> int:
    """The number of tokens after a rollback of `count`, for caches whose caller counts. Raises
    ValueError."""
    if not 0 <= count <= length:
        raise ValueError(f"a rollback of {count} tokens, and there are {length}")
    return length - count


class Scripted(Implementation):
    """A cache with methods for the actions of a script. Each of them returns the state after it.

    Operands and rows have the order of `axis_order`. Samples are the framework's integers (B,).
    Operations of some samples alone have their numbers as an argument.
    """

    operator = CACHED

    @abstractmethod
    def init(self, inputs: Inputs, key: Any) -> Any:
        """The state of an empty cache for keys like `key`."""

    @abstractmethod
    def step(
        self, state: Any, query: Any, key: Any, value: Any, turn: StepContext
    ) -> tuple[Any, Any]:
        """The rows of a chunk, and the state."""

    def fill(self, state: Any, query: Any, key: Any, value: Any, turn: StepContext) -> Any:
        """The state with tokens whose rows nobody asks; the queries are zeros."""
        return self.step(state, query, key, value, turn)[1]

    def crop(self, state: Any, count: int, *samples: Any) -> Any:
        """The state without its last tokens."""
        raise NotImplementedError

    def rewinds(self, inputs: Inputs) -> bool:
        """True if `rewound` is possible."""
        windowed = inputs.case.option("left") is not None
        return self.missing(["rollback", *(["window-rollback"] * windowed)]) is None

    def rewound(self, state: Any, count: int) -> Any:
        """The state without the tokens of a step that was timed."""
        return self.crop(state, count)

    def reset(self, state: Any, *samples: Any) -> Any:
        """The empty state."""
        raise NotImplementedError

    def keep(self, state: Any, paths: Any, count: int, *samples: Any) -> Any:
        """The state with the nodes `paths` (b, longest) of its last `count` tokens, a tree. -1 stands
        behind shorter paths."""
        raise NotImplementedError

    def reorder(self, state: Any, samples: Any) -> Any:
        """The state whose sample n goes on with the history of sample `samples[n]`."""
        raise NotImplementedError

    @abstractmethod
    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        """The arrays as one."""

    @property
    def place(self) -> int:
        """The axis of tokens."""
        return 2 if self.axis_order == "bhld" else 1

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """The operands, and as `earlier` the queries of tokens that the cache has before the script."""
        memory, s = self.backend.memory, inputs.sizes
        operands = memory.operands(inputs, self.axis_order)
        arguments = dict(zip(("query", "key", "value"), operands, strict=True))
        if s.Lk > s.Lq:
            shape = (s.B, s.H, s.Lk - s.Lq, s.D)
            arguments["earlier"] = memory.operand(np.zeros(shape), inputs, self.axis_order)
        return arguments

    def timed(self, inputs: Inputs) -> PreparedCall:
        """A single chunk behind a full cache, which goes back after every call.

        Of longer scripts, and of caches that cannot go back, all is timed.
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
            {n: turn.chunk.cut(operands[n], self.concat, self.place) for n in ("key", "value")}
            for turn in (before, last)
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
        """The call that plays the script: as `prepare`, or as `refusing`."""
        backend, case = self.backend, inputs.case
        # What is malformed the cache refuses.
        script = [(inputs, *each) for each in play_script(case, lenient=True)]
        if case.option("used"):
            other, emptied = with_other_options(inputs), (inputs, Reset(), script[-1][2])
            before = [(other, action, contents) for _, action, contents in script]
            script = [*before, emptied, *script]

        def integers(numbers: Any) -> Any:
            return backend.array(np.array(numbers), None)

        def some(samples: Any) -> tuple[Any, ...]:
            return () if samples is None else (integers(samples),)

        def call(query: Any, key: Any, value: Any, earlier: Any = None) -> Any:
            state = self.init(inputs, key)
            parts, refused = list[tuple[Chunk, Any]](), False
            for given, action, contents in script:
                match action:
                    case Crop() if refused:
                        refused = False
                    case Chunk():
                        k, v = (action.cut(x, self.concat, self.place) for x in (key, value))
                        if given is not inputs:  # another sequence has other tokens
                            k, v = -k, -v
                        turn = StepContext(given, action, contents)
                        if not action.asked:
                            state = self.fill(state, earlier, k, v, turn)
                            continue
                        q = action.cut(query, self.concat, self.place, queries=True)
                        try:
                            rows, state = self.step(state, q, k, v, turn)
                        except Exception:
                            if not refusing:
                                raise
                            rows, refused = q, True
                        parts += [(action, rows)] if given is inputs else []
                    case Crop(count=count, samples=samples):
                        state = self.crop(state, count, *some(samples))
                    case Reset(samples=samples):
                        state = self.reset(state, *some(samples))
                    case Pick(samples=samples):
                        state = self.reorder(state, integers(samples))
                    case Keep(count=count, samples=samples):
                        state = self.keep(state, integers(action.table), count, *some(samples))
            return concatenate_chunks(parts, self.concat, self.place)

        return PreparedCall(call, self.arguments(inputs), axis_order=self.axis_order)


SIGNS = ((1, 1, 1, 1), (-1, 1, -1, 1), (-1, -1, -1, -1), (1, -1, 1, -1))
"""The signs of a layer's projections of query, key, value and rows, by turn."""


class Projected(Scripted):
    """A layer with projections, each the identity or its negative.

    They change between steps, as if the layer were trained. Operands and rows have the signs of their
    projections, so a layer that reads its parameters in every step computes attention over its operands.
    """

    @abstractmethod
    def project(self, state: Any, signs: Sequence[int]) -> Any:
        """The state with projections of query, key, value and rows that are the identity times `signs`;
        a layer is changed in place."""

    @abstractmethod
    def layer_step(
        self, state: Any, query: Any, key: Any, value: Any, turn: StepContext
    ) -> tuple[Any, Any]:
        """The rows of a chunk, and the state, as the layer gives them."""

    def step(
        self, state: Any, query: Any, key: Any, value: Any, turn: StepContext
    ) -> tuple[Any, Any]:
        signs = SIGNS[turn.total % len(SIGNS)]
        query, key, value = (
            array if sign > 0 else -array
            for array, sign in zip((query, key, value), signs[:3], strict=True)
        )
        rows, state = self.layer_step(self.project(state, signs), query, key, value, turn)
        return (rows if signs[3] > 0 else -rows), state
