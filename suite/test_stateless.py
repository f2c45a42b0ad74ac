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
from attention_conformance.suite.judge.verdict import NotApplicable, Refused, WrongAnswer
from attention_conformance.suite.spec.catalogue import (
    Ask,
    cases_of,
    plain_patterns,
    with_plain_cases,
)
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal, parse_mask
from attention_conformance.suite.spec.vocabulary import OPERANDS

CASES = (
    *plain_patterns("sdpa"),
    "sdpa/bool.bhqk/mha/{dt}/b3h3q11k17d8/dense",
    "sdpa/bool.b1qk/mha/f32/b3h3q11k17d8/bias.b1qk/dense",
    *plain_patterns("multi-head", "additive", "dot", "rotary"),
    "rotary/none/mha/f32/b2h3q17k1d16/ntk/at4097",
    *plain_patterns("packed", "paged", "cached", "latent", "quantized", "quantized-write"),
    # samples that have equal numbers of queries, and other numbers of keys
    "packed/none/mha/f32/b3h4q9k24d8/seg3.3.3x5.12.7",
)
"""Sizes of other checks, with a mask and a bias, which kernels may cache."""

TURNS = 3
"""How often two problems of one size alternate, in arrays that may reuse memory."""


def with_other_values(inputs: Inputs) -> Inputs:
    """Returns the problem with other values in the same shapes. Rows attend as many keys as before, but
    other ones.

    A rotation has another base, because instances must not share tables; at far positions it has a
    shorter sequence. Packed samples are reversed.
    """
    position, offset = inputs.arrays.get("position"), inputs.case.option("offset")
    if position is not None and offset:
        nearer = np.floor(position / 4)
        return inputs.replace(query=-inputs.query, position=nearer, offset=offset // 4)
    if position is not None:
        return inputs.replace(query=-inputs.query, position=position + 7, offset=7, base=500.0)
    if not {"query", "key"} <= inputs.arrays.keys():
        codes = inputs.operator.array_kinds.codes
        changed = {n: np.flip(x, -1) if n in codes else -x for n, x in inputs.arrays.items()}
        return inputs.replace(**changed)
    query, key, value = -inputs.query, np.flip(inputs.key, -1), -inputs.value
    arrays = {"query": query, "key": key, "value": value}
    if inputs.operator.packing is not None:
        return inputs.replace(**arrays).select("b", range(inputs.sizes.B)[::-1])
    if inputs.self_attention:
        arrays = dict.fromkeys(arrays, np.flip(query, -1))
    if inputs.bias is not None:
        arrays["bias"] = -inputs.bias
    result = inputs.replace(**arrays)
    if inputs.form == "dense" and inputs.dense_mask is not None:
        result = result.with_dense(mask_array=np.flip(inputs.dense_mask, -1).copy())
    return result


@contextmanager
def as_stale(what: str) -> Iterator[None]:
    """A context in which every WrongAnswer becomes one of the kind "stale", with `what` before its
    message. It is for answers that were right before."""
    try:
        yield
    except WrongAnswer as error:
        message = f"{what}: {error.message}"
        raise WrongAnswer("stale", message, error.measured, (what,)) from error


def expect_still_right(cell: Cell, answer: Answer, inputs: Inputs, what: str) -> None:
    """Judge an output whose first call was right. Raises WrongAnswer "stale"."""
    with as_stale(what):
        cell.judge(answer, inputs)


def overwrite_arguments(cell: Cell, call: PreparedCall, other: PreparedCall) -> bool:
    """Write the arrays of `other` into the arrays of `call`, a call of the same function.

    Returns False if arrays cannot be changed, or if the function itself holds differing values.
    """
    backend = cell.implementation.backend
    arrays = {n: array for n, array in call.arguments.items() if backend.is_array(array)}
    return call.constants == other.constants and all(
        backend.overwrite(array, other.arguments[name]) for name, array in arrays.items()
    )


def with_other_parameters(inputs: Inputs) -> Inputs:
    """Returns the same problem with other parameters."""
    return inputs.replace(**{name: np.flip(array) for name, array in inputs.parameters.items()})


def overwrite_parameters(cell: Cell, call: PreparedCall, other: PreparedCall) -> bool:
    """Write the layer's parameters of `other` into those of `call`. Returns False if there are none, or
    if they cannot be changed."""
    backend = cell.implementation.backend
    pairs = list(zip(call.layer_parameters, other.layer_parameters, strict=True))
    return bool(pairs) and all(backend.overwrite(*pair) for pair in pairs)


@check(with_plain_cases(*CASES))
def test_stateless(cell: Cell) -> None:
    inputs, changed = cell.inputs, with_other_values(cell.inputs)
    cell.judge(cell.run(), inputs)
    cell.judge(cell.run(changed), changed)
    prepared, later = cell.prepare(inputs), cell.prepare(changed)
    cell.call(prepared)
    if overwrite_arguments(cell, prepared, later):
        answer = cell.read(cell.call(prepared), changed, prepared)
        expect_still_right(cell, answer, changed, "after the arguments were changed in place")
    if prepared.layer_parameters:
        retrained = with_other_parameters(inputs)
        prepared, later = cell.prepare(inputs), cell.prepare(retrained)
        cell.call(prepared)
        if overwrite_parameters(cell, prepared, later):
            answer = cell.read(cell.call(prepared), retrained, prepared)
            expect_still_right(cell, answer, retrained, "after parameters were changed in place")
    del prepared, later
    for _ in range(TURNS):
        for problem in (inputs, changed):
            expect_still_right(
                cell, cell.run(problem), problem, "after a call with other arrays, which are gone"
            )
    if inputs.self_attention or inputs.dense_mask is not None or inputs.sizes.Lk < 2:
        return
    if inputs.operator.packing is not None:
        shorter = inputs.select("b", [0])
    else:
        shorter = inputs.select("k", slice(0, inputs.sizes.Lk // 2))
    try:
        before = cell.run(shorter).values.copy()
    except NotApplicable:
        return  # the number of keys is not supported
    nan_arrays = {n: np.full_like(inputs.arrays[n], np.nan) for n in inputs.operands}
    with suppress(WrongAnswer, NotApplicable):  # other checks judge NaN
        cell.run(inputs.replace(**nan_arrays))
    answer, what = cell.run(shorter), "over fewer keys, after a call with NaN"
    expect_still_right(cell, answer, shorter, what)
    if cell.implementation.declared.deterministic:
        expect_bitwise(answer.values, before, "stale", what)


SCALARS = ({"scale": 0.3}, {"scale": 3.0}, {"softcap": 2.0}, {"softcap": 5.0})
"""Options that are numbers, two values of each."""

MASKS = ("causal", "win2.1", "win4.0", "pad", "bool.b1qk", "bool.bhqk", "causal+bool.qk")
"""Masks that leave every row of `VARIED` a key. The last one is a flag beside an array (Lq, Lk)."""

VARIED = (
    "sdpa/none/mha/{dt}/b2h4q6k11d8",
    *plain_patterns("multi-head", "additive", "dot"),
)
"""Operators with masks. Only plain attention has scalars, too."""


def variations(inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Yields descriptions and inputs that differ by scalars, by a mask, by both, or by one size or the
    dtype."""
    masks: list[dict[str, Any]] = [
        {"mask": parse_mask(token), "form": "dense" if token.startswith("bool") else "native"}
        for token in MASKS
    ]
    scalars = [change for change in SCALARS if inputs.operator.option(*change) is not None]
    masks_and_scalars = [{**a, **b} for a, b in zip(masks, scalars, strict=False)]
    for change in (*scalars, *masks, *masks_and_scalars):
        words = [f"{n} {getattr(change[n], 'token', change[n])}" for n in change if n != "form"]
        yield " and ".join(words), inputs.replace(**change)
    yield "other lengths", inputs.replace(mask=parse_mask("pad"), seed=inputs.seed + 1)
    if inputs.operator.is_layer:
        return
    distances = np.arange(inputs.sizes.Lq)[:, None] - np.arange(inputs.sizes.Lk)
    bias = round_to(distances / 8, inputs.dtype)
    yield "causal and a bias", inputs.replace(mask=Causal(), bias=bias)
    narrow = DTYPES["bf16"]
    rounded = {name: round_to(array, narrow) for name, array in inputs.arrays.items()}
    yield "dtype", inputs.replace(dtype=narrow, **rounded)
    one_query = inputs.select("q", slice(0, 1))
    yield "one query", one_query
    yield "one query and a mask", one_query.replace(mask=parse_mask("bool.b1qk"), form="dense")
    sizes, rng = inputs.sizes, np.random.default_rng(inputs.seed)
    for feature in FEATURES.values():
        if feature.axes and feature.draw is not None:
            with_feature = inputs.replace(**{feature.name: True})
            dtype = with_feature.case.dtype_of(feature.name)
            array = round_to(feature.draw(sizes, rng), dtype)
            for factor in (1.0, 0.5):
                yield (
                    f"{factor} {feature.word}",
                    with_feature.replace(**{feature.name: factor * array}),
                )
    for letter in "qkdg":
        if half := inputs.letters[letter] // 2:
            yield f"axis {letter}", inputs.select(letter, slice(0, half))


def with_earlier_arrays(cell: Cell, call: PreparedCall, first: PreparedCall) -> PreparedCall:
    """Returns the call with the arrays of the call `first` for query, key and value whose values are
    equal.

    A user's layer is the instance of the call `first`.
    """
    backend, arrays = cell.implementation.backend, {}
    for name in (call.argument(name) for name in OPERANDS):
        array, earlier = call.arguments.get(name), first.arguments.get(name)
        if not (backend.is_array(array) and backend.is_array(earlier)):
            continue
        same_dtype = backend.dtype_name(array) == backend.dtype_name(earlier)
        if same_dtype and np.array_equal(backend.to_numpy(array), backend.to_numpy(earlier)):
            arrays[name] = earlier
    implementation = cell.implementation
    is_user_layer = implementation.operator.is_layer and implementation.declared.is_user_code
    function = first.function if is_user_layer else call.function
    return replace(call, function=function, arguments=call.arguments | arrays)


@check(
    cases_of(
        Ask(VARIED[0], dtypes="float32"),
        Ask(*VARIED[1:], dtypes="float32", since="standard"),
    )
)
def test_remembered(cell: Cell) -> None:
    """The same arrays with every scalar, flag and mask changed, and part of the arrays.

    Between any two variations the unchanged problem is called; then the variations are called in the
    reverse order. So each of two problems follows the other, whatever cells were judged before. A
    variation may be refused, if it is always refused.
    """
    inputs, implementation = cell.inputs, cell.implementation
    first = cell.prepare(inputs)
    calls = {"nothing": (inputs, first)}
    for what, variation in variations(inputs):
        aligned = elections.with_flag_mask(variation, implementation)
        with suppress(NotApplicable):
            if implementation.refuses(aligned) is None and not aligned.has_empty_rows:
                calls[what] = (aligned, with_earlier_arrays(cell, cell.prepare(aligned), first))
    if len(calls) == 1:
        raise NotApplicable("no scalar, mask, size or dtype can be changed")
    right_values: dict[str, np.ndarray] = {}
    refused: dict[str, Refused] = {}
    forward = [name for what in calls for name in ("nothing", what)]
    for what in (*forward, *reversed(calls)):
        problem, call = calls[what]
        try:
            answer = cell.read(cell.call(call), problem, call)
        except Refused as error:
            refused[what] = error
            continue
        if what in refused:
            raise stale_deviation(refused[what])
        if not np.array_equal(answer.values, right_values.get(what, np.nan)):
            text = f"with {what} changed, after calls with other options"
            expect_still_right(cell, answer, problem, text)
            right_values[what] = answer.values.copy()
    if "nothing" in refused:
        raise refused["nothing"]
