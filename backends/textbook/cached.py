"""Textbook attention with a cache: one that grows by concatenation, and one of slots, which may be a
ring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from backends.declared import Declared
from backends.memory import sequences
from backends.prepared import PreparedCall
from backends.textbook.attention import attention
from backends.textbook.packed import TextbookPacked
from suite.spec.case import Case
from suite.spec.inputs import Inputs
from suite.spec.operators.cached import CACHED, FEATURES
from suite.spec.operators.scripts import (
    Action,
    Chunk,
    Crop,
    Pick,
    Reset,
    actions,
    allowed,
    capacity,
    played,
)


class TextbookCached(TextbookPacked):
    """Attention with a cache in operations that all frameworks have. A state is a pair of arrays."""

    operator = CACHED
    declared = Declared(features=FEATURES)

    def timed(self, inputs: Inputs) -> PreparedCall:
        if inputs.sizes.Lk == inputs.sizes.Lq:
            return self.prepare(inputs)
        first = slice(0, inputs.sizes.Lk - inputs.sizes.Lq)
        arguments = sequences(self.backend, inputs) | self.masks(inputs)
        old_key, old_value = (arguments[name][:, :, first] for name in ("key", "value"))
        held = self.written(self.begun(arguments), old_key, old_value, 0, arguments, inputs)
        arguments |= zip(("held_key", "held_value"), held, strict=True)
        return self.made(inputs, arguments, "timed")

    def begun(self, rest: dict[str, Any]) -> Any:
        """The state of an empty cache."""
        return None

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        """By action n: `mask_n` (B, 1, rows, keys), True attends, `distance_n` (rows, keys) if there are
        slopes, `order_n` (B,) of samples. The arrays of the features by name."""
        case, arrays = inputs.case, dict[str, np.ndarray]()
        for n, (action, positions, padding) in enumerate(self.seen(case)):
            if isinstance(action, Pick):
                arrays[f"order_{n}"] = np.array(action.samples, np.int32)
            elif isinstance(action, Chunk) and action.queries is not None:
                rows = positions[len(positions) - (action.tokens.stop - action.tokens.start) :]
                arrays[f"mask_{n}"] = allowed(case, rows, positions, padding)[:, None]
                if "alibi_slopes" in inputs.arrays:
                    arrays[f"distance_{n}"] = (rows[:, None] - positions).astype(np.float32)
        made = {name: self.backend.array(x, None) for name, x in arrays.items()}
        for name, dtype in (("sinks", inputs.dtype), ("alibi_slopes", inputs.dtype.widened)):
            if name in inputs.arrays:
                made[name] = self.backend.array(inputs.arrays[name], dtype)
        return made

    def seen(self, case: Case) -> Iterator[tuple[Action, np.ndarray, np.ndarray]]:
        """Each action, the positions of the keys that a chunk attends (its own tokens last; negative
        positions are no keys), and the padding (B,)."""
        raise NotImplementedError

    def compute(
        self, query: Any, key: Any, value: Any, rest: dict[str, Any], inputs: Inputs
    ) -> Any:
        held, answers = "held_key" in rest, []
        state = (rest["held_key"], rest["held_value"]) if held else self.begun(rest)
        for n, action in enumerate(actions(inputs.case)):
            if held and n == 0:
                continue  # the cache holds these tokens
            if isinstance(action, Chunk):
                q = None if action.queries is None else query[:, :, action.queries]
                new = key[:, :, action.tokens], value[:, :, action.tokens]
                rows, state = self.step(state, q, *new, n, rest, inputs)
                answers += [] if rows is None else [rows]
            elif state is not None:
                state = self.changed(state, action, rest.get(f"order_{n}"))
        return self.ops.concat(answers, 2)

    def step(
        self, state: Any, query: Any, key: Any, value: Any, n: int, rest: dict[str, Any],
        inputs: Inputs,
    ) -> tuple[Any, Any]:  # fmt: skip
        """The rows of the chunk that is action n, and the state after it. Without a query no rows."""
        rows = None
        if query is not None:
            k, v = self.read(state, key, value)
            rows = self.answer(query, k, v, n, rest, inputs)
        return rows, self.written(state, key, value, n, rest, inputs)

    def answer(
        self, query: Any, key: Any, value: Any, n: int, rest: dict[str, Any], inputs: Inputs
    ) -> Any:
        """The rows of one chunk."""
        ops, slopes, bias = self.ops, rest.get("alibi_slopes"), None
        if slopes is not None:
            slopes = ops.reshape(slopes, (1, inputs.sizes.H, 1, 1))
            distance = ops.like(rest[f"distance_{n}"], slopes)
            bias = ops.like(slopes * distance * ops.number(-1.0, slopes), query)
        return attention(
            ops, query, key, value, rest[f"mask_{n}"], bias, inputs.effective_scale,
            softcap=inputs.case.option("softcap"), sinks=rest.get("sinks"),
        )  # fmt: skip

    def read(self, state: Any, key: Any, value: Any) -> tuple[Any, Any]:
        """Keys and values (B, Hkv, n, .) that a chunk attends."""
        raise NotImplementedError

    def written(
        self, state: Any, key: Any, value: Any, n: int, rest: dict[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        """The state after a chunk."""
        raise NotImplementedError

    def changed(self, state: tuple[Any, Any], action: Action, order: Any) -> Any:
        """The state after an operation."""
        raise NotImplementedError


class GrowingCache(TextbookCached):
    """Keys and values (B, Hkv, n, .) grow by concatenation."""

    name = "textbook-cached"

    def seen(self, case: Case) -> Iterator[tuple[Action, np.ndarray, np.ndarray]]:
        for action, _, places, padding in played(case):
            yield action, np.arange(places.shape[1]), padding

    def read(self, state: Any, key: Any, value: Any) -> tuple[Any, Any]:
        if state is None:
            return key, value
        k, v = (self.ops.concat([old, x], 2) for old, x in zip(state, (key, value), strict=True))
        return k, v

    def written(
        self, state: Any, key: Any, value: Any, n: int, rest: dict[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        return self.read(state, key, value)

    def changed(self, state: tuple[Any, Any], action: Action, order: Any) -> Any:
        match action:
            case Crop(count=count):
                kept = state[0].shape[2] - count
                return tuple(x[:, :, :kept] for x in state) if kept else None
            case Reset():
                return None
        return tuple(self.ops.take(x, order) for x in state)


class SlotCache(TextbookCached):
    """Keys and values lie in slots (C, B, Hkv, .), position p in slot p % C.

    A chunk attends all slots and its own tokens. Stale slots are hidden, and written over by new tokens.
    """

    name = "textbook-cached-slots"

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        """Also `slots_n`, the slots of the chunk's last tokens, and the empty cache."""
        case, arrays, s = inputs.case, super().masks(inputs), inputs.sizes
        slots = capacity(case)
        for n, (action, _, places, _) in enumerate(played(case)):
            if isinstance(action, Chunk):
                count = min(action.tokens.stop - action.tokens.start, slots)
                of = np.arange(places.shape[1] - count, places.shape[1])
                arrays[f"slots_{n}"] = self.backend.array(of % slots, None)
        for name, size in (("empty_key", s.D), ("empty_value", s.Dv)):
            empty = np.zeros((slots, s.B, s.Hkv, size))
            arrays[name] = self.backend.array(empty, inputs.dtype)
        return arrays

    def seen(self, case: Case) -> Iterator[tuple[Action, np.ndarray, np.ndarray]]:
        slots = capacity(case)
        held = np.full(slots, -1)
        for action, _, places, padding in played(case):
            total = places.shape[1]
            if isinstance(action, Chunk):
                new = np.arange(total - (action.tokens.stop - action.tokens.start), total)
                yield action, np.concatenate([held, new]), padding
                held[new[-slots:] % slots] = new[-slots:]
            else:
                held = np.where(held >= total, -1, held)
                yield action, held, padding

    def begun(self, rest: dict[str, Any]) -> Any:
        return rest["empty_key"], rest["empty_value"]

    def read(self, state: Any, key: Any, value: Any) -> tuple[Any, Any]:
        ops = self.ops
        k, v = (
            ops.concat([ops.transpose(held, (1, 2, 0, 3)), x], 2)
            for held, x in zip(state, (key, value), strict=True)
        )
        return k, v

    def written(
        self, state: Any, key: Any, value: Any, n: int, rest: dict[str, Any], inputs: Inputs
    ) -> tuple[Any, Any]:
        ops, slots = self.ops, rest[f"slots_{n}"]
        first = key.shape[2] - slots.shape[0]
        tokens = (ops.transpose(x[:, :, first:], (2, 0, 1, 3)) for x in (key, value))
        k, v = (ops.put(held, slots, x) for held, x in zip(state, tokens, strict=True))
        return k, v

    def changed(self, state: tuple[Any, Any], action: Action, order: Any) -> Any:
        if not isinstance(action, Pick):
            return state
        axes = (1, 0, 2, 3)
        return tuple(
            self.ops.transpose(self.ops.take(self.ops.transpose(x, axes), order), axes)
            for x in state
        )
