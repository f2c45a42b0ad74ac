"""Attention with a cache that is called step by step, as a script says."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.prepared import PreparedCall
from backends.protocol import Implementation
from suite.spec.inputs import Inputs
from suite.spec.operators.cached import CACHED, Chunk, Crop, Pick, Reset, played


@dataclass(frozen=True)
class Turn:
    """What a step knows besides its arrays: the inputs of the case, the left padding (B,) of its samples,
    and how many tokens a sample has with those of the step."""

    inputs: Inputs
    padding: np.ndarray
    total: int


class Scripted(Implementation):
    """A cache with methods for the actions of a script. Each of them returns the state after it.

    Operands and rows have the order of `axis_order`. Samples are the framework's integers (B,).
    """

    operator = CACHED

    @abstractmethod
    def init(self, inputs: Inputs, key: Any) -> Any:
        """The state of an empty cache for keys like `key`."""

    @abstractmethod
    def step(self, state: Any, query: Any, key: Any, value: Any, turn: Turn) -> tuple[Any, Any]:
        """The rows of a chunk, and the state."""

    def crop(self, state: Any, count: int) -> Any:
        """The state without its last tokens."""
        raise NotImplementedError

    def reset(self, state: Any) -> Any:
        """The empty state."""
        raise NotImplementedError

    def reorder(self, state: Any, samples: Any) -> Any:
        """The state whose sample n goes on with the history of sample `samples[n]`."""
        raise NotImplementedError

    @abstractmethod
    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        """The arrays as one."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, case, s = self.backend, inputs.case, inputs.sizes
        place = 2 if self.axis_order == "bhld" else 1
        operands = backend.memory.operands(inputs, self.axis_order)
        arguments = dict(zip(("query", "key", "value"), operands, strict=True))
        if s.Lk > s.Lq:
            # The queries of tokens that are in the cache before the script: nobody reads their rows.
            shape = (s.B, s.H, s.Lk - s.Lq, s.D)
            arguments["earlier"] = backend.memory.operand(np.zeros(shape), inputs, self.axis_order)
        actions = list(played(case))

        def cut(x: Any, of: slice) -> Any:
            return x[(slice(None),) * place + (of,)]

        def call(query: Any, key: Any, value: Any, earlier: Any = None) -> Any:
            states = [self.init(inputs, key) for _ in range(1 + case.option("beside"))]
            parts = []
            for action, _, places, padding in actions:
                turn = Turn(inputs, padding, places.shape[1])
                for n, state in enumerate(states):
                    match action:
                        case Chunk(tokens=tokens, queries=queries):
                            q = earlier if queries is None else cut(query, queries)
                            k, v = cut(key, tokens), cut(value, tokens)
                            if n:  # the second cache takes other tokens
                                k, v = -k, -v
                            rows, states[n] = self.step(state, q, k, v, turn)
                            parts += [rows] if n == 0 and queries is not None else []
                        case Crop(count=count):
                            states[n] = self.crop(state, count)
                        case Reset():
                            states[n] = self.reset(state)
                        case Pick(samples=samples):
                            states[n] = self.reorder(state, backend.array(np.array(samples), None))
            return self.concat(parts, place)

        return PreparedCall(call, arguments, axis_order=self.axis_order)
