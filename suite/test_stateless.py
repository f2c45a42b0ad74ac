"""Promise: an output depends only on the values of the arguments.

It does not depend on which arrays hold these values, on earlier calls (of other values, scalars, flags,
masks or sizes), or on old contents of reused buffers. Parameters of a layer are arguments, too: what a
layer makes of them when it is created is stale once training has changed them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import PreparedCall
from attention_conformance.suite.judge import elections
from attention_conformance.suite.judge.answer import Answer
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_bitwise
from attention_conformance.suite.judge.refusal import stale_deviation
from attention_conformance.suite.judge.verdict import Deviation, NotApplicable, Refused
from attention_conformance.suite.spec.catalogue import Ask, asked, plain, with_plain
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal, parse_mask
from attention_conformance.suite.spec.vocabulary import OPERANDS

CASES = (
    *plain("sdpa"),
    "sdpa/bool.bhqk/mha/{dt}/b3h3q11k17d8/dense",
    "sdpa/bool.b1qk/mha/f32/b3h3q11k17d8/bias.b1qk/dense",
    *plain("multi-head", "additive", "dot", "rotary"),
    "rotary/none/mha/f32/b2h3q17k1d16/ntk/at4097",
    *plain("packed", "paged", "cached", "latent", "quantized", "quantized-write"),
)
"""Sizes of other checks, with a mask and a bias, which kernels may cache."""

TURNS = 3
"""How often two problems of one size alternate, in arrays that may reuse memory."""


def changed(inputs: Inputs) -> Inputs:
    """The same problem with other values; rows attend as many keys as before, but other ones.

    A rotation has another base, because instances must not share tables; at far positions it has a
    shorter sequence. Packed samples are reversed.
    """
    position, first = inputs.arrays.get("position"), inputs.case.option("offset")
    if position is not None and first:
        nearer = np.floor(position / 4)
        return inputs.replace(query=-inputs.query, position=nearer, offset=first // 4)
    if position is not None:
        return inputs.replace(query=-inputs.query, position=position + 7, offset=7, base=500.0)
    if not {"query", "key"} <= inputs.arrays.keys():
        codes = inputs.operator.array_kinds.codes
        return inputs.replace(
            **{n: np.flip(x, -1) if n in codes else -x for n, x in inputs.arrays.items()}
        )
    query, key, value = -inputs.query, np.flip(inputs.key, -1), -inputs.value
    arrays = {"query": query, "key": key, "value": value}
    if inputs.operator.packing is not None:
        return inputs.replace(**arrays).select("b", range(inputs.sizes.B)[::-1])
    if inputs.self_attention:
        arrays = dict.fromkeys(arrays, np.flip(query, -1))
    if inputs.bias is not None:
        arrays["bias"] = -inputs.bias
    other = inputs.replace(**arrays)
    if inputs.form == "dense" and inputs.dense_mask is not None:
        other = other.with_dense(mask_array=np.flip(inputs.dense_mask, -1).copy())
    return other


@contextmanager
def stale(what: str) -> Iterator[None]:
    """A context for what was right before: a deviation is "stale", and its message begins with `what`."""
    try:
        yield
    except Deviation as error:
        message = f"{what}: {error.message}"
        raise Deviation("stale", message, error.measured, (what,)) from error


def expect_right(cell: Cell, answer: Answer, inputs: Inputs, what: str) -> None:
    """Judge an output that was right in a first call. Raises Deviation "stale"."""
    with stale(what):
        cell.judge(answer, inputs)


def overwritten(cell: Cell, call: PreparedCall, other: PreparedCall) -> bool:
    """Write the arrays of `other` into the arrays of `call`, a call of the same function.

    False if arrays cannot be changed, or the function itself holds some of the differing values.
    """
    backend = cell.implementation.backend
    arrays = {n: array for n, array in call.arguments.items() if backend.is_array(array)}
    return call.constants == other.constants and all(
        backend.memory.overwrite(array, other.arguments[name]) for name, array in arrays.items()
    )


def reparametrised(inputs: Inputs) -> Inputs:
    """The same problem with other parameters."""
    return inputs.replace(**{name: np.flip(array) for name, array in inputs.parameters.items()})


def held_overwritten(cell: Cell, call: PreparedCall, other: PreparedCall) -> bool:
    """Write the parameters of the layer of `other` into those of the layer of `call`; False if there are
    none, or if they cannot be changed."""
    memory = cell.implementation.backend.memory
    pairs = list(zip(call.layer_parameters, other.layer_parameters, strict=True))
    return bool(pairs) and all(memory.overwrite(*pair) for pair in pairs)


@check(with_plain(*CASES))
def test_stateless(cell: Cell) -> None:
    inputs, other = cell.inputs, changed(cell.inputs)
    cell.judge(cell.run(), inputs)
    cell.judge(cell.run(other), other)
    prepared, later = cell.prepare(inputs), cell.prepare(other)
    cell.call(prepared)
    if overwritten(cell, prepared, later):
        answer = cell.read(cell.call(prepared), other, prepared)
        expect_right(cell, answer, other, "after the arguments were changed in place")
    if prepared.layer_parameters:
        trained = reparametrised(inputs)
        prepared, later = cell.prepare(inputs), cell.prepare(trained)
        cell.call(prepared)
        if held_overwritten(cell, prepared, later):
            answer = cell.read(cell.call(prepared), trained, prepared)
            expect_right(cell, answer, trained, "after parameters were changed in place")
    del prepared, later
    for _ in range(TURNS):
        for these in (inputs, other):
            expect_right(
                cell, cell.run(these), these, "after a call with other arrays, which are gone"
            )
    if inputs.self_attention or inputs.dense_mask is not None or inputs.sizes.Lk < 2:
        return
    if inputs.operator.packing is not None:
        few = inputs.select("b", [0])
    else:
        few = inputs.select("k", slice(0, inputs.sizes.Lk // 2))
    try:
        before = cell.run(few).values.copy()
    except NotApplicable:
        return  # the number of keys is not supported
    spoilt = {n: np.full_like(inputs.arrays[n], np.nan) for n in inputs.operands}
    with suppress(Deviation, NotApplicable):  # other checks judge NaN
        cell.run(inputs.replace(**spoilt))
    answer, what = cell.run(few), "over fewer keys, after a call with NaN"
    expect_right(cell, answer, few, what)
    if cell.implementation.declared.deterministic:
        expect_bitwise(answer.values, before, "stale", what)


SCALARS = ({"scale": 0.3}, {"scale": 3.0}, {"softcap": 2.0}, {"softcap": 5.0})
"""Options that are numbers, two values of each."""

MASKS = ("causal", "win2.1", "win4.0", "pad", "bool.b1qk", "bool.bhqk", "causal+bool.qk")
"""Masks that leave every row of `REMEMBERED` a key. The last one is a flag beside an array (Lq, Lk)."""

REMEMBERED = (
    "sdpa/none/mha/{dt}/b2h4q6k11d8",
    *plain("multi-head", "additive", "dot"),
)
"""Operators with masks; of them plain attention has scalars, too."""


def variations(inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Problems that differ from `inputs` by scalars, by a mask, by both, or by one size or the dtype."""
    masks: list[dict[str, Any]] = [
        {"mask": parse_mask(token), "form": "dense" if token.startswith("bool") else "native"}
        for token in MASKS
    ]
    scalars = [change for change in SCALARS if inputs.operator.option(*change) is not None]
    both = [{**a, **b} for a, b in zip(masks, scalars, strict=False)]
    for change in (*scalars, *masks, *both):
        words = [f"{n} {getattr(change[n], 'token', change[n])}" for n in change if n != "form"]
        yield " and ".join(words), inputs.replace(**change)
    if inputs.operator.is_layer:
        return
    pairs = np.arange(inputs.sizes.Lq)[:, None] - np.arange(inputs.sizes.Lk)
    yield "causal and a bias", inputs.replace(mask=Causal(), bias=round_to(pairs / 8, inputs.dtype))
    narrow = DTYPES["bf16"]
    rounded = {name: round_to(array, narrow) for name, array in inputs.arrays.items()}
    yield "dtype", inputs.replace(dtype=narrow, **rounded)
    one = inputs.select("q", slice(0, 1))
    yield "one query", one
    yield "one query and a mask", one.replace(mask=parse_mask("bool.b1qk"), form="dense")
    sizes, rng = inputs.sizes, np.random.default_rng(inputs.seed)
    for feature in FEATURES.values():
        if feature.axes and feature.draw is not None:
            asked_for = inputs.replace(**{feature.name: True})
            dtype = asked_for.case.dtype_of(feature.name)
            array = round_to(feature.draw(sizes, rng), dtype)
            for factor in (1.0, 0.5):
                yield (
                    f"{factor} {feature.word}",
                    asked_for.replace(**{feature.name: factor * array}),
                )
    for letter in "qkdg":
        if half := inputs.letters[letter] // 2:
            yield f"axis {letter}", inputs.select(letter, slice(0, half))


def same_arrays(cell: Cell, call: PreparedCall, first: PreparedCall) -> PreparedCall:
    """The call with the arrays of an earlier call as query, key and value, if their values are equal.

    A user's layer is the instance of the earlier call.
    """
    backend, arrays = cell.implementation.backend, {}
    for name in (call.argument(name) for name in OPERANDS):
        own, earlier = call.arguments.get(name), first.arguments.get(name)
        if not (backend.is_array(own) and backend.is_array(earlier)):
            continue
        same_dtype = backend.dtype_name(own) == backend.dtype_name(earlier)
        if same_dtype and np.array_equal(backend.to_numpy(own), backend.to_numpy(earlier)):
            arrays[name] = earlier
    implementation = cell.implementation
    layer = implementation.operator.is_layer and implementation.declared.is_user_code
    function = first.function if layer else call.function
    return replace(call, function=function, arguments=call.arguments | arrays)


@check(
    asked(
        Ask(REMEMBERED[0], dtypes="float32"),
        Ask(*REMEMBERED[1:], dtypes="float32", since="standard"),
    )
)
def test_remembered(cell: Cell) -> None:
    """The same arrays with every scalar, flag and mask changed, and part of the arrays.

    Between any two variations the plain problem is asked; then the variations are asked in the reverse
    order. So each of two problems follows the other, whatever cells were judged before. A variation
    may be refused, if it is always refused.
    """
    inputs, implementation = cell.inputs, cell.implementation
    first = cell.prepare(inputs)
    calls = {"nothing": (inputs, first)}
    for what, other in variations(inputs):
        aligned = elections.aligned(other, implementation)
        with suppress(NotApplicable):
            if implementation.refuses(aligned) is None and not aligned.has_empty_rows:
                calls[what] = (aligned, same_arrays(cell, cell.prepare(aligned), first))
    if len(calls) == 1:
        raise NotApplicable("no scalar, mask, size or dtype can be changed")
    right: dict[str, np.ndarray] = {}
    refused: dict[str, Refused] = {}
    forth = [name for what in calls for name in ("nothing", what)]
    for what in (*forth, *reversed(calls)):
        problem, call = calls[what]
        try:
            answer = cell.read(cell.call(call), problem, call)
        except Refused as error:
            refused[what] = error
            continue
        if what in refused:
            raise stale_deviation(refused[what])
        if not np.array_equal(answer.values, right.get(what, np.nan)):
            text = f"with {what} changed, after calls with other options"
            expect_right(cell, answer, problem, text)
            right[what] = answer.values.copy()
    if "nothing" in refused:
        raise refused["nothing"]
