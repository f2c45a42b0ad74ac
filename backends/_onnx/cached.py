"""Steps with a cache as one model. Each chunk is a node, whose past keys and values are the present ones
of the node before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.contrib import HEAD_SIZES, group_query
from attention_conformance.backends._onnx.engine import OnnxEngine
from attention_conformance.backends._onnx.graph import Symbol
from attention_conformance.backends._onnx.textbook import operations
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.cached import TextbookCached
from attention_conformance.backends.textbook.rotary import tables
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.cached import FEATURES
from attention_conformance.suite.spec.operators.scripts import (
    Contents,
    actions,
    capacity,
    most_tokens,
    play_script,
    rotation,
    unwritten_slots,
)
from attention_conformance.suite.spec.operators.steps import Action, Chunk, Pick


def present_symbol(present: Symbol, past: Symbol | None, new: Symbol) -> Symbol:
    """Returns the node's output `present` as a symbol with its shape: that of past and new keys or
    values."""
    batch, heads, count, size = new.shape
    total = count + (0 if past is None else past.shape[2])
    return Symbol(new.graph, present.name, new.dtype, lambda: (batch, heads, total, size))


class PastAttention(TextbookCached):
    """The standard's operator Attention of opset 24, with past_key and past_value.

    The causal flag is bottom-right behind a cache. Windows, left padding, documents and trees are boolean
    masks, or -inf in a bias.
    """

    name = "attention-24-past"
    declared = Declared(
        features=FEATURES,
        refusals={
            "sinks": "Attention has no sinks", "alibi-slopes": "Attention has no slopes",
            "subsets": "the past of all samples has one length",
            **dict.fromkeys(("rotary", "halves", "interleaved"), "Attention rotates nothing"),
        },
        elections={"nan-in-freed-slot": "blocked", "beyond-capacity": "grows"},
    )  # fmt: skip
    textbook = False
    opset = 24

    def __init__(self, backend: OnnxEngine, declared: Declared | None = None) -> None:
        Implementation.__init__(self, backend, declared=declared)
        self.ops = replace(
            operations(backend), called=lambda layer, call: backend.recorded(call, self.opset)
        )

    def rotated(self, x: Any, n: int, arrays: dict[str, Any], inputs: Inputs) -> Any:
        return x  # the node rotates

    def mask(self, n: int, arrays: dict[str, Any]) -> Any:
        """Returns the mask of the chunk that is action n: boolean, or with a bias the bias and -inf."""
        mask, bias = arrays[f"mask_{n}"], arrays.get(f"bias_{n}")
        return mask if bias is None else self.ops.mask_scores(bias, mask)

    def step(
        self, state: Any, query: Any, key: Any, value: Any, n: int, arrays: dict[str, Any],
        inputs: Inputs,
    ) -> tuple[Any, Any]:  # fmt: skip
        if query is None:
            key = super().rotated(key, n, arrays, inputs)
            return None, self.with_chunk(state, key, value)
        outputs = self.node(state, query, key, value, n, arrays, inputs)
        past = state or (None, None)
        present = map(present_symbol, outputs[1:], past, (key, value))
        return outputs[0], tuple(present)

    def node(
        self, state: Any, query: Any, key: Any, value: Any, n: int, arrays: dict[str, Any],
        inputs: Inputs,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Returns the rows (B, H, rows, Dv), and present keys and values."""
        case, mask = inputs.case, arrays.get(f"bias_{n}")
        if {"tree", "documents", "window", "left-padding"} & {*inputs.needs}:
            mask = self.mask(n, arrays)
        rows, *present = query.graph.add(
            "Attention", query, key, value, mask, *(state or (None, None)), outputs=3,
            shape=lambda: (*query.shape[:3], value.shape[3]), is_causal=1, scale=inputs.scale,
            softcap=case.option("softcap"),
        )  # fmt: skip
        return rows, *present


class ScatterAttention(PastAttention):
    """Attention of opset 24 over slots that TensorScatter writes: the token at position p lies in slot p,
    or in a ring of C slots in slot p % C (mode "circular").

    The node Attention gets the number of written slots of each sample. If only some samples step, their
    slots are gathered before the node and scattered back after it.
    """

    name = "tensor-scatter-24"
    declared = (
        PastAttention.declared.taking("subsets")
        .refusing({"keep": "tokens stay in their slots"})
        .electing({"nan-in-freed-slot": "leaks", "beyond-capacity": "raises"})
    )

    def refusal(self, case: Case) -> str | None:
        if "ring" in case.needs:
            chunks = (
                chunk for chunk in actions(case) if isinstance(chunk, Chunk) and chunk.has_queries
            )
            if any(chunk.count + case.option("left") > capacity(case) for chunk in chunks):
                return "a chunk is written before it is attended: a ring has slots for it and the window"
        return None

    def played(self, case: Case) -> Iterator[tuple[Action, Contents, np.ndarray]]:
        slots, B = capacity(case), case.sizes.B
        positions = np.full((B, slots), -1)
        for action, contents in play_script(case):
            keys = positions
            if isinstance(action, Chunk):
                samples, token_indices = contents.newest(action)
                new_positions = contents.positions[samples, token_indices]
                keys = np.concatenate([positions[samples[:, 0]], new_positions], 1)
                positions[samples, token_indices[:, -slots:] % slots] = new_positions[:, -slots:]
            elif isinstance(action, Pick):
                positions = positions[list(action.samples)]
            positions = np.where(positions >= contents.lengths[:, None], -1, positions)
            yield action, contents, keys

    def timed(self, inputs: Inputs) -> PreparedCall:
        return self.prepare(inputs)

    def arrays_of_actions(self, inputs: Inputs) -> dict[str, Any]:
        """Returns the arrays of `TextbookCached.arrays_of_actions`, with a column for every slot, and
        unwritten slots `empty_key` and `empty_value`. By chunk n:

        - `write_n` (b,), the first slot that is written
        - `written_n` (b,), the number of written slots after the chunk
        - `own_n` (b,), the samples that step, unless all do
        """
        s, backend, arrays = inputs.sizes, self.backend, super().arrays_of_actions(inputs)
        slots = capacity(inputs.case)
        for name, size in (("empty_key", s.D), ("empty_value", s.Dv)):
            empty = unwritten_slots(inputs.case, s.B, s.Hkv, slots, size)
            arrays[name] = backend.array(empty, inputs.dtype)
        for n, (action, contents) in enumerate(play_script(inputs.case)):
            if not isinstance(action, Chunk):
                continue
            samples, indices_of_samples = contents.newest(action)
            for name in {f"mask_{n}", f"bias_{n}"} & {*arrays}:
                old, new = np.split(arrays[name], [slots], 3)
                for sample, indices in enumerate(indices_of_samples):
                    old[sample, ..., indices % slots] = np.moveaxis(new[sample], -1, 0)
                arrays[name] = old
            lengths = contents.lengths[samples[:, 0]]
            arrays[f"write_{n}"] = backend.array(lengths - min(action.count, slots), None)
            arrays[f"written_{n}"] = backend.array(np.minimum(lengths, slots), None)
            if action.samples is not None:
                arrays[f"own_{n}"] = backend.array(samples[:, 0], None)
        return arrays

    def empty_state(self, arrays: dict[str, Any]) -> Any:
        return arrays["empty_key"], arrays["empty_value"]

    def step(
        self, state: Any, query: Any, key: Any, value: Any, n: int, arrays: dict[str, Any],
        inputs: Inputs,
    ) -> tuple[Any, Any]:  # fmt: skip
        samples, slots = arrays.get(f"own_{n}"), capacity(inputs.case)
        mode = "circular" if "ring" in inputs.needs else None

        def write_slots(all_slots: Any, new: Any) -> Any:
            """Returns the slots (b, Hkv, C, D) of the samples that step, after the new keys or values
            (b, Hkv, L, D) of the chunk are written."""
            slots_of_samples = all_slots if samples is None else self.ops.take(all_slots, samples)
            # Only a chunk without queries may have more tokens than slots: the last ones are written.
            newest = new if query is not None else new[:, :, max(new.shape[2] - slots, 0) :]
            return new.graph.add(
                "TensorScatter",
                slots_of_samples,
                newest,
                arrays[f"write_{n}"],
                shape=lambda: slots_of_samples.shape,
                mode=mode,
            )

        key, value = (write_slots(*pair) for pair in zip(state, (key, value), strict=True))
        updates = () if samples is None else zip(state, (key, value), strict=True)
        state = tuple(self.ops.put(old, samples, new) for old, new in updates) or (key, value)
        if query is None:
            return None, state
        rows = query.graph.add(
            "Attention", query, key, value, self.mask(n, arrays), None, None, arrays[f"written_{n}"],
            shape=lambda: (*query.shape[:3], value.shape[3]), scale=inputs.scale,
            softcap=inputs.case.option("softcap"),
        )  # fmt: skip
        return rows, state

    def after_action(self, state: tuple[Any, Any], action: Action, n: int, arrays: Arrays) -> Any:
        return super().after_action(state, action, n, arrays) if isinstance(action, Pick) else state


class PastGroupQuery(PastAttention):
    """ONNX Runtime's GroupQueryAttention with past_key and past_value, and its own windows, softcap and
    sinks."""

    name = "ms-group-query-past"
    declared = Declared(
        numerics="exact",
        dtypes=("f32", "f16"),
        features=FEATURES,
        refusals={
            "alibi-slopes": "GroupQueryAttention has no slopes",
            "left-padding": "GroupQueryAttention takes lengths of samples, which are padded at the end",
            "value-size": "GroupQueryAttention has values of the keys' size",
            "subsets": "the past of all samples has one length",
            **dict.fromkeys(("bias", "bias-with-mask"), "not passed by this adapter"),
            **dict.fromkeys(("tree", "keep", "documents"), "GroupQueryAttention has no mask"),
        },
        limits=Limits(head_sizes=HEAD_SIZES),
        elections=PastAttention.declared.elections,
    )

    def refusal(self, case: Case) -> str | None:
        if "rotary" in case.needs:
            if case.sizes.D % 16:
                return "a rotation is of a multiple of 16 components"
            if case.dtype.is_half:
                return "sine and cosine are stored in the dtype of the case"
        return None

    def arrays_of_actions(self, inputs: Inputs) -> dict[str, Any]:
        """Returns the arrays of `TextbookCached.arrays_of_actions`; with a rotation also `cosine` and
        `sine` (tokens, D / 2) of all positions."""
        arrays, rotary = super().arrays_of_actions(inputs), rotation(inputs.case)
        if rotary is not None:
            cosine, sine = tables(rotary, np.arange(most_tokens(inputs.case)))
            arrays["cosine"] = self.backend.array(cosine, inputs.dtype)
            arrays["sine"] = self.backend.array(sine, inputs.dtype)
        return arrays

    def node(
        self, state: Any, query: Any, key: Any, value: Any, n: int, arrays: dict[str, Any],
        inputs: Inputs,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        case, (B, _, L, _), graph = inputs.case, query.shape, query.graph
        tokens = L + (0 if state is None else state[0].shape[2])
        left = case.option("left")
        attributes = {
            "scale": inputs.scale, "softcap": case.option("softcap"),
            "local_window_size": None if left is None else left + 1,
        }  # fmt: skip
        rotary = rotation(case)
        if rotary is not None:
            attributes |= {"do_rotary": 1, "rotary_interleaved": int(rotary.interleaved)}
        query, *new = (x.transpose((0, 2, 1, 3)) for x in (query, key, value))
        last, total = graph.constant([tokens - 1] * B, "int32"), graph.constant([tokens], "int32")
        chunks = None if state is None else graph.constant([L] * B, "int32")
        rows, key, value = group_query(
            query, new, state or (None, None), last, total, sinks=arrays.get("sinks"), chunks=chunks,
            table=(arrays.get("cosine"), arrays.get("sine")), **attributes,
        )  # fmt: skip
        return rows.transpose((0, 2, 1, 3)), key, value
