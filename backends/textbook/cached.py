"""Textbook attention with a cache: one that grows by concatenation, and one of slots, which may be a
ring."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.masks import feature_arrays
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.attention import attention
from attention_conformance.backends.textbook.packed import TextbookPacked
from attention_conformance.backends.textbook.rotary import tables, turned
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import CODES, DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.cached import CACHED, FEATURES
from attention_conformance.suite.spec.operators.scripts import (
    Contents,
    actions,
    capacity,
    joined,
    played,
    rotation,
    unwritten,
)
from attention_conformance.suite.spec.operators.steps import Action, Chunk, Crop, Keep, Pick, Reset
from attention_conformance.suite.spec.operators.views import allowed


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
        old_key = self.rotated(old_key, 0, arguments, inputs)
        held = self.written(self.begun(arguments), old_key, old_value, 0, arguments, inputs)
        arguments |= zip(("held_key", "held_value"), held, strict=True)
        return self.made(inputs, arguments, "timed")

    def begun(self, rest: Arrays) -> Any:
        """The state of an empty cache."""
        return None

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        """By action n: `mask_n` (b, 1, rows, keys), True attends; `distance_n` of the same shape if there
        are slopes; `bias_n` (b, H, rows, keys); `order_n` (B,) of samples; `cosine_n` and `sine_n` (b, 1,
        tokens, D / 2) of a rotation. The arrays of the features by name."""
        case, arrays, biases = inputs.case, dict[str, np.ndarray](), dict[str, np.ndarray]()
        pairs, turn = dict[str, np.ndarray](), rotation(case)
        for n, (action, held, keys) in enumerate(self.seen(case)):
            if isinstance(action, Pick):
                arrays[f"order_{n}"] = np.array(action.samples, np.int32)
            if not isinstance(action, Chunk):
                continue
            newest = held.newest(action)
            rows = held.positions[newest]
            if turn is not None:
                pairs[f"cosine_{n}"], pairs[f"sine_{n}"] = tables(turn, rows[:, None])
            if action.asked:
                mask = allowed(case, rows, held.begins[newest], keys, action.tree)
                arrays[f"mask_{n}"] = mask[:, None]
                if inputs.bias is not None:
                    biases[f"bias_{n}"] = action.biases(inputs.bias, keys)
                if "alibi_slopes" in inputs.arrays:
                    distance = (rows[:, :, None] - keys[:, None]).astype(np.float32)
                    arrays[f"distance_{n}"] = distance[:, None]
        made = {name: self.backend.array(x, None) for name, x in arrays.items()}
        made |= {name: self.backend.array(x, inputs.dtype) for name, x in biases.items()}
        made |= {name: self.backend.array(x, inputs.dtype.widened) for name, x in pairs.items()}
        return made | feature_arrays(self.backend, inputs)

    def seen(self, case: Case) -> Iterator[tuple[Action, Contents, np.ndarray]]:
        """Each action, what the cache holds after it, and the positions (b, keys) of keys that a chunk
        sees. The chunk's tokens are the last keys. Negative positions are no keys."""
        raise NotImplementedError

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        held, answers = "held_key" in x, []
        state = (x["held_key"], x["held_value"]) if held else self.begun(x)
        for n, action in enumerate(actions(inputs.case)):
            if held and n == 0:
                continue  # the cache holds these tokens
            if isinstance(action, Chunk):
                cut = partial(action.cut, concat=self.ops.concat)
                q = cut(x["query"], queries=True) if action.asked else None
                q, k = (self.rotated(of, n, x, inputs) for of in (q, cut(x["key"])))
                rows, state = self.step(state, q, k, cut(x["value"]), n, x, inputs)
                answers += [] if rows is None else [(action, rows)]
            elif state is not None:
                state = self.changed(state, action, n, x)
        return joined(answers, self.ops.concat)

    def rotated(self, x: Any, n: int, rest: Arrays, inputs: Inputs) -> Any:
        """Queries or keys of the chunk that is action n, rotated by their positions; as they are without
        a rotation."""
        turn, wide = rotation(inputs.case), inputs.dtype.widened.long_name
        if turn is None or x is None:
            return x
        tables = rest[f"cosine_{n}"], rest[f"sine_{n}"]
        return self.ops.like(turned(self.ops, self.ops.cast(x, wide), *tables, turn), x)

    def step(
        self, state: Any, query: Any, key: Any, value: Any, n: int, rest: Arrays,
        inputs: Inputs,
    ) -> tuple[Any, Any]:  # fmt: skip
        """The rows of the chunk that is action n, and the state after it. Without a query no rows."""
        rows = None
        if query is not None:
            k, v = self.read(state, key, value, n, rest)
            rows = self.answer(query, k, v, n, rest, inputs)
        return rows, self.written(state, key, value, n, rest, inputs)

    def answer(self, query: Any, key: Any, value: Any, n: int, rest: Arrays, inputs: Inputs) -> Any:
        """The rows of one chunk."""
        ops, slopes, bias = self.ops, rest.get("alibi_slopes"), rest.get(f"bias_{n}")
        if slopes is not None:
            slopes = ops.reshape(slopes, (1, inputs.sizes.H, 1, 1))
            distance = ops.like(rest[f"distance_{n}"], slopes)
            bias = ops.like(slopes * distance * ops.number(-1.0, slopes), query)
        return attention(
            ops, query, key, value, rest[f"mask_{n}"], bias, inputs.effective_scale,
            softcap=inputs.case.option("softcap"), sinks=rest.get("sinks"),
        )  # fmt: skip

    def read(self, state: Any, key: Any, value: Any, n: int, rest: Arrays) -> tuple[Any, Any]:
        """Keys and values (b, Hkv, n, .) that a chunk attends."""
        raise NotImplementedError

    def written(
        self, state: Any, key: Any, value: Any, n: int, rest: Arrays, inputs: Inputs
    ) -> tuple[Any, Any]:
        """The state after a chunk."""
        raise NotImplementedError

    def changed(self, state: tuple[Any, Any], action: Action, n: int, rest: Arrays) -> Any:
        """The state after an operation."""
        raise NotImplementedError


class GrowingCache(TextbookCached):
    """Keys and values (B, Hkv, n, .) grow by concatenation. All samples have one length."""

    name = "textbook-cached"
    declared = TextbookCached.declared.refusing(
        {"subsets": "all samples have one length"}
    ).electing({"nan-in-freed-slot": "blocked", "beyond-capacity": "grows"})

    def seen(self, case: Case) -> Iterator[tuple[Action, Contents, np.ndarray]]:
        for action, held in played(case):
            yield action, held, held.positions

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        """Also `path_n`, the tokens (B, n) that are kept."""
        arrays = super().masks(inputs)
        for n, (action, held) in enumerate(played(inputs.case)):
            if isinstance(action, Keep):
                first = int(held.lengths[0]) - len(action.paths[0])
                kept = [[*range(first), *(first + i for i in path)] for path in action.paths]
                arrays[f"path_{n}"] = self.backend.array(np.array(kept), None)
        return arrays

    def read(self, state: Any, key: Any, value: Any, n: int, rest: Arrays) -> tuple[Any, Any]:
        if state is None:
            return key, value
        k, v = (self.ops.concat([old, x], 2) for old, x in zip(state, (key, value), strict=True))
        return k, v

    def written(
        self, state: Any, key: Any, value: Any, n: int, rest: Arrays, inputs: Inputs
    ) -> tuple[Any, Any]:
        return self.read(state, key, value, n, rest)

    def changed(self, state: tuple[Any, Any], action: Action, n: int, rest: Arrays) -> Any:
        match action:
            case Crop(count=count):
                kept = state[0].shape[2] - count
                return tuple(x[:, :, :kept] for x in state) if kept else None
            case Reset():
                return None
            case Keep(paths=paths):
                path = rest[f"path_{n}"]
                return tuple(
                    self.ops.concat([self.nodes(x, path, b) for b in range(len(paths))], 0)
                    for x in state
                )
        return tuple(self.ops.take(x, rest[f"order_{n}"]) for x in state)

    def nodes(self, x: Any, path: Any, sample: int) -> Any:
        """The tokens `path[sample]` of one sample, (1, Hkv, n, .)."""
        axes = (2, 0, 1, 3)
        tokens = self.ops.transpose(x[sample : sample + 1], axes)
        taken = self.ops.take(tokens, self.ops.reshape(path[sample : sample + 1], (-1,)))
        return self.ops.transpose(taken, (1, 2, 0, 3))


class CodedCache(GrowingCache):
    """Keys and values become int8 codes when they arrive. A token of a head has the scale of its largest
    component."""

    name = "textbook-cached-codes"
    declared = GrowingCache.declared.but(
        rounding=DeclaredRounding(codes=dict.fromkeys(DTYPES, "int8"))
    )

    @property
    def later(self) -> frozenset[str]:
        """As of all textbook code, and float32, too."""
        others = super().later
        return others | {"f32"} if others else others

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        names = ("key", "value", *(name for name in x if name.startswith("held")))
        return super().compute(x | {n: self.kept(x[n], inputs) for n in names}, inputs)

    def kept(self, x: Any, inputs: Inputs) -> Any:
        """Keys or values as their codes give them back."""
        ops, last = self.ops, CODES["int8"].max
        wide = ops.cast(x, inputs.dtype.widened.long_name)
        size = ops.largest(ops.concat([wide, wide * ops.number(-1.0, wide)], 3), 3)
        size = ops.clip(size, 2.0**-100, 2.0**100)  # a token may be 0
        scale = ops.reshape(size, (*x.shape[:3], 1)) / last
        codes = ops.cast(ops.rint(ops.clip(wide / scale, -last, last)), "int8")
        return ops.like(ops.like(codes, scale) * scale, x)


class SlotCache(TextbookCached):
    """Keys and values lie in slots (B C, Hkv, .), position p of sample b in slot b C + p % C.

    A chunk attends all slots of its samples and its own tokens. Stale slots are hidden, and written over
    by new tokens.
    """

    name = "textbook-cached-slots"
    second_way = True
    declared = TextbookCached.declared.electing(
        {"nan-in-freed-slot": "leaks", "beyond-capacity": "ring"}
    )

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        """Also the empty cache.

        - For a chunk `slots_n`, the slots of its last tokens, and `own_n`, all slots of its samples if
          other samples do not step.
        - For a path that is kept `from_n` and `slots_n`, its old and new slots.
        """
        case, arrays, s = inputs.case, super().masks(inputs), inputs.sizes
        slots, found = capacity(case), dict[str, Any]()
        first = np.arange(s.B) * slots
        for n, (action, held) in enumerate(played(case)):
            if isinstance(action, Chunk):
                own, of = held.newest(action)
                found[f"slots_{n}"] = first[own] + of[:, -slots:] % slots
                if action.samples is not None:
                    found[f"own_{n}"] = first[own] + np.arange(slots)
            elif isinstance(action, Pick):
                found[f"order_{n}"] = first[list(action.samples)][:, None] + np.arange(slots)
            elif isinstance(action, Keep):
                moved = [
                    first[b] + (held.lengths[b] - len(path) + np.array([node, place])) % slots
                    for b, path in zip(action.own, action.paths, strict=True)
                    for place, node in enumerate(path)
                ]
                old, new = np.array(moved, int).reshape(-1, 2).T
                found |= {f"from_{n}": old, f"slots_{n}": new}
        for name, places in found.items():
            arrays[name] = self.backend.array(places.ravel(), None)
        for name, size in (("empty_key", s.D), ("empty_value", s.Dv)):
            empty = unwritten(case, s.B * slots, s.Hkv, size)
            arrays[name] = self.backend.array(empty, inputs.dtype)
        return arrays

    def seen(self, case: Case) -> Iterator[tuple[Action, Contents, np.ndarray]]:
        slots, B = capacity(case), case.sizes.B
        kept = np.full((B, slots), -1)
        for action, held in played(case):
            keys = kept
            if isinstance(action, Chunk):
                own, of = held.newest(action)
                new = held.positions[own, of]
                keys = np.concatenate([kept[own[:, 0]], new], 1)
                kept[own, of[:, -slots:] % slots] = new[:, -slots:]
            elif isinstance(action, Pick):
                kept = kept[list(action.samples)]
            elif isinstance(action, Keep):
                for b, path in zip(action.own, action.paths, strict=True):
                    first = held.lengths[b] - len(path)
                    nodes = np.arange(first, first + action.count) % slots
                    kept[b, nodes] = -1
                    kept[b, nodes[: len(path)]] = held.positions[b, first:][: len(path)]
            kept = np.where(kept >= held.lengths[:, None], -1, kept)
            yield action, held, keys

    def begun(self, rest: Arrays) -> Any:
        return rest["empty_key"], rest["empty_value"]

    def read(self, state: Any, key: Any, value: Any, n: int, rest: Arrays) -> tuple[Any, Any]:
        ops, own = self.ops, rest.get(f"own_{n}")

        def slots(held: Any, new: Any) -> Any:
            taken = held if own is None else ops.take(held, own)
            taken = ops.reshape(taken, (new.shape[0], -1, new.shape[1], new.shape[3]))
            return ops.transpose(taken, (0, 2, 1, 3))

        k, v = (
            ops.concat([slots(held, x), x], 2) for held, x in zip(state, (key, value), strict=True)
        )
        return k, v

    def written(
        self, state: Any, key: Any, value: Any, n: int, rest: Arrays, inputs: Inputs
    ) -> tuple[Any, Any]:
        ops, slots = self.ops, rest[f"slots_{n}"]
        first = key.shape[2] - slots.shape[0] // key.shape[0]
        tokens = (ops.transpose(x[:, :, first:], (0, 2, 1, 3)) for x in (key, value))
        rows = (ops.reshape(x, (-1, x.shape[2], x.shape[3])) for x in tokens)
        k, v = (ops.put(held, slots, x) for held, x in zip(state, rows, strict=True))
        return k, v

    def changed(self, state: tuple[Any, Any], action: Action, n: int, rest: Arrays) -> Any:
        match action:
            case Pick():
                return tuple(self.ops.take(x, rest[f"order_{n}"]) for x in state)
            case Keep():
                old, new = rest[f"from_{n}"], rest[f"slots_{n}"]
                return tuple(self.ops.put(x, new, self.ops.take(x, old)) for x in state)
        return state
