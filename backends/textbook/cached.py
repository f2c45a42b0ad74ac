"""Textbook attention with a cache that grows by concatenation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.masks import feature_arrays
from attention_conformance.backends.memory import operand_arrays
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.attention import attention
from attention_conformance.backends.textbook.operations import TextbookOperator
from attention_conformance.backends.textbook.rotary import rotated_pairs, tables
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.cached import CACHED, FEATURES
from attention_conformance.suite.spec.operators.scripts import (
    Contents,
    actions,
    concatenate_chunks,
    play_script,
    rotation,
)
from attention_conformance.suite.spec.operators.steps import Action, Chunk, Crop, Keep, Pick, Reset
from attention_conformance.suite.spec.operators.views import allowed


class TextbookCached(TextbookOperator):
    """A cache of keys and values (B, Hkv, n, .) that grows by concatenation. All samples have one
    length."""

    name = "textbook-cached"
    operator = CACHED
    declared = Declared(
        features=FEATURES,
        refusals={"subsets": "all samples have one length"},
        elections={"nan-in-freed-slot": "blocked", "beyond-capacity": "grows"},
    )

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        return operand_arrays(self.backend, inputs) | self.arrays_of_actions(inputs)

    def timed(self, inputs: Inputs) -> PreparedCall:
        if inputs.sizes.Lk == inputs.sizes.Lq:
            return self.prepare(inputs)
        first = slice(0, inputs.sizes.Lk - inputs.sizes.Lq)
        arguments = self.arguments(inputs)
        old_key, old_value = (arguments[name][:, :, first] for name in ("key", "value"))
        old_key = self.rotated(old_key, 0, arguments, inputs)
        arguments |= {"held_key": old_key, "held_value": old_value}
        return self.made(inputs, arguments, "timed")

    def empty_state(self, arrays: Arrays) -> Any:
        """Returns the state of an empty cache. None is a state without tokens."""
        return None

    def arrays_of_actions(self, inputs: Inputs) -> dict[str, Any]:
        """Returns the arrays that actions of the script need, by name, and the features' arrays. Of
        action n:

        - `mask_n` (b, 1, rows, keys), True attends
        - `distance_n`, of the same shape, with slopes
        - `bias_n` (b, H, rows, keys), with a bias
        - `order_n` (B,), the new order of samples
        - `path_n` (B, n), the indices of tokens that a rollback of a tree keeps
        - `cosine_n` and `sine_n` (b, 1, tokens, D / 2), with a rotation
        """
        case, arrays, biases = inputs.case, dict[str, np.ndarray](), dict[str, np.ndarray]()
        angles, rotation_of_case = dict[str, np.ndarray](), rotation(case)
        for n, (action, contents, keys) in enumerate(self.played(case)):
            if isinstance(action, Pick):
                arrays[f"order_{n}"] = np.array(action.samples, np.int32)
            if isinstance(action, Keep):
                first = int(contents.lengths[0]) - len(action.paths[0])
                positions = [[*range(first), *(first + i for i in path)] for path in action.paths]
                arrays[f"path_{n}"] = np.array(positions)
            if not isinstance(action, Chunk):
                continue
            newest = contents.newest(action)
            rows = contents.positions[newest]
            if rotation_of_case is not None:
                angles[f"cosine_{n}"], angles[f"sine_{n}"] = tables(rotation_of_case, rows[:, None])
            if action.has_queries:
                mask = allowed(case, rows, contents.begins[newest], keys, action.tree)
                arrays[f"mask_{n}"] = mask[:, None]
                if inputs.bias is not None:
                    biases[f"bias_{n}"] = action.biases(inputs.bias, keys)
                if "alibi_slopes" in inputs.arrays:
                    distance = (rows[:, :, None] - keys[:, None]).astype(np.float32)
                    arrays[f"distance_{n}"] = distance[:, None]
        masks = {name: self.backend.array(x, None) for name, x in arrays.items()}
        masks |= {name: self.backend.array(x, inputs.dtype) for name, x in biases.items()}
        masks |= {name: self.backend.array(x, inputs.dtype.widened) for name, x in angles.items()}
        return masks | feature_arrays(self.backend, inputs)

    def played(self, case: Case) -> Iterator[tuple[Action, Contents, np.ndarray]]:
        """Yields for each action: the action, the contents of the cache after it, and the positions (b,
        keys) of the keys that its step attends over. The tokens of a chunk are the last keys. A negative
        position is no key."""
        for action, contents in play_script(case):
            yield action, contents, contents.positions

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        is_full, answers = "held_key" in x, []
        state = (x["held_key"], x["held_value"]) if is_full else self.empty_state(x)
        for n, action in enumerate(actions(inputs.case)):
            if is_full and n == 0:
                continue  # the cache holds these tokens
            if isinstance(action, Chunk):
                cut = partial(action.cut, concat=self.ops.concat)
                q = cut(x["query"], queries=True) if action.has_queries else None
                q, k = (self.rotated(array, n, x, inputs) for array in (q, cut(x["key"])))
                rows, state = self.step(state, q, k, cut(x["value"]), n, x, inputs)
                answers += [] if rows is None else [(action, rows)]
            elif state is not None:
                state = self.after_action(state, action, n, x)
        return concatenate_chunks(answers, self.ops.concat)

    def rotated(self, x: Any, n: int, arrays: Arrays, inputs: Inputs) -> Any:
        """Returns the queries or keys `x` of the chunk that is action n, rotated by their positions.
        Unchanged if the case has no rotation."""
        rotation_of_case, wide_dtype = rotation(inputs.case), inputs.dtype.widened.long_name
        if rotation_of_case is None or x is None:
            return x
        angles = arrays[f"cosine_{n}"], arrays[f"sine_{n}"]
        wide = rotated_pairs(self.ops, self.ops.astype(x, wide_dtype), *angles, rotation_of_case)
        return self.ops.cast_like(wide, x)

    def step(
        self, state: Any, query: Any, key: Any, value: Any, n: int, arrays: Arrays,
        inputs: Inputs,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Returns the rows of the chunk that is action n (None without a query), and the state with the
        chunk."""
        k, v = self.with_chunk(state, key, value)
        return None if query is None else self.chunk_output(query, k, v, n, arrays, inputs), (k, v)

    def chunk_output(
        self, query: Any, key: Any, value: Any, n: int, arrays: Arrays, inputs: Inputs
    ) -> Any:
        """Returns the rows (outputs) of the chunk that is action n, for all keys and values in the
        cache."""
        ops, slopes, bias = self.ops, arrays.get("alibi_slopes"), arrays.get(f"bias_{n}")
        if slopes is not None:
            slopes = ops.reshape(slopes, (1, inputs.sizes.H, 1, 1))
            distance = ops.cast_like(arrays[f"distance_{n}"], slopes)
            bias = ops.cast_like(slopes * distance * ops.number(-1.0, slopes), query)
        return attention(
            ops, query, key, value, arrays[f"mask_{n}"], bias, inputs.effective_scale,
            softcap=inputs.case.option("softcap"), sinks=arrays.get("sinks"),
        )  # fmt: skip

    def with_chunk(self, state: Any, key: Any, value: Any) -> tuple[Any, Any]:
        """Returns the state with the keys and values of a chunk."""
        if state is None:
            return key, value
        k, v = (self.ops.concat([old, x], 2) for old, x in zip(state, (key, value), strict=True))
        return k, v

    def after_action(self, state: tuple[Any, Any], action: Action, n: int, arrays: Arrays) -> Any:
        """Returns the state after action n, which is no chunk; None without tokens."""
        match action:
            case Crop(count=count):
                length = state[0].shape[2] - count
                return tuple(x[:, :, :length] for x in state) if length else None
            case Reset():
                return None
            case Keep(paths=paths):
                path = arrays[f"path_{n}"]
                return tuple(
                    self.ops.concat([self.nodes(x, path, b) for b in range(len(paths))], 0)
                    for x in state
                )
        return tuple(self.ops.take(x, arrays[f"order_{n}"]) for x in state)

    def nodes(self, x: Any, path: Any, sample: int) -> Any:
        """Returns the tokens `path[sample]` of one sample, (1, Hkv, n, .)."""
        axes = (2, 0, 1, 3)
        tokens = self.ops.permute_dims(x[sample : sample + 1], axes)
        nodes = self.ops.take(tokens, self.ops.reshape(path[sample : sample + 1], (-1,)))
        return self.ops.permute_dims(nodes, (1, 2, 0, 3))
