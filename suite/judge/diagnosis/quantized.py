"""Attention over codes, and writing of codes: other scales, zero points and formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from attention_conformance.suite.judge.diagnosis.in_pages import of_pages
from attention_conformance.suite.judge.diagnosis.instrument import softmax
from attention_conformance.suite.judge.diagnosis.layers import Another, Guess, made, of_scale
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, Code, DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import gathered, put, slots
from attention_conformance.suite.spec.operators.quantized import (
    KINDS,
    allowed,
    axes_of,
    broadcast,
    dequantized,
    newest,
    scale_axes,
)
from attention_conformance.suite.spec.operators.tiles import TILE, TILES, untiled

Change = Callable[[Inputs, str], np.ndarray]
"""Another array in place of one, by the array's name."""


def other(inputs: Inputs, kind: str, change: Change, names: tuple[str, ...] = KINDS) -> Inputs:
    """The inputs with other scales, zero points or codes (`kind`) of keys and values. Raises ValueError
    if there are none, or of another shape."""
    arrays = {}
    for name in names:
        array = f"{name}_{kind}"
        if array not in inputs.arrays:
            raise ValueError(f"there is no {array}")
        arrays[array] = change(inputs, array)
        if arrays[array].shape != inputs.arrays[array].shape:
            raise ValueError(f"{array} has another shape")
    return inputs.replace(**arrays)


def along(letter: str, how: Callable[[np.ndarray, int], np.ndarray]) -> Change:
    """A change along an axis of the scales. It raises ValueError if the scales lack the axis."""

    def change(inputs: Inputs, name: str) -> np.ndarray:
        return how(inputs.arrays[name], scale_axes(inputs.case)[name].index(letter))

    return change


def first(x: np.ndarray, axis: int) -> np.ndarray:
    return np.broadcast_to(x.take([0], axis), x.shape)


def later(x: np.ndarray, axis: int) -> np.ndarray:
    return np.roll(x, -1, axis)


def before(x: np.ndarray, axis: int) -> np.ndarray:
    return np.roll(x, 1, axis)


def of_tiles(how: Callable[[np.ndarray, int], np.ndarray]) -> Change:
    """A change along the tiles of 128 components."""

    def change(inputs: Inputs, name: str) -> np.ndarray:
        return along(TILES[axes_of(name.partition("_")[0])[-1]], how)(inputs, name)

    return change


def next_component(inputs: Inputs, name: str) -> np.ndarray:
    """The scales of the next component. Raises ValueError if scales have no components."""
    return along(axes_of(name.partition("_")[0])[-1], later)(inputs, name)


def of_scales(inputs: Inputs) -> tuple[Guess, ...]:
    """Scales and zero points of other keys and values."""
    arrays = inputs.arrays

    def exchanged(_: Inputs, name: str) -> np.ndarray:
        other = arrays[("value" if name.startswith("key") else "key") + name[name.index("_") :]]
        return other[..., : arrays[name].shape[-1]] if other.ndim else other

    def power(n: float) -> Change:
        return lambda _, name: arrays[name] ** n

    def narrow(_: Inputs, name: str) -> np.ndarray:
        return round_to(arrays[name], DTYPES["bf16"])

    of: tuple[tuple[str, Change, tuple[str, ...], str], ...] = (
        ("Values have the scales of keys.", exchanged, KINDS[1:], "`k_scale` for both"),
        ("Keys have the scales of values.", exchanged, KINDS[:1], "`v_scale` for both"),
        ("The scales of keys and values are exchanged.", exchanged, KINDS, "the order of arguments"),
        ("The scales of values are not used.", power(0), KINDS[1:], "`v_scale` that is not read"),
        ("The scales of keys are not used.", power(0), KINDS[:1], "`k_scale` that is not read"),
        ("Scales are not used.", power(0), KINDS, ""),
        *(
            (f"{name.capitalize()}s have {whose}.", change, (name,), hint)
            for name in KINDS
            for whose, change, hint in (
                ("the scales of head 0", along("g", first), "`scale[0]`"),
                ("the scales of the next head", along("g", later), "an index of heads"),
                ("the scales of sample 0", along("b", first), "an index of samples"),
                ("the scales of the next token", along("k", later), "an index of tokens"),
                ("the scales of the token before", along("k", before), "an index of tokens"),
                ("the scales of the next component", next_component, "an index of components"),
                ("reciprocals of their scales", power(-1), "`scale_inv` of another library"),
            )
        ),
        ("Scales count as their reciprocals.", power(-1), KINDS, "`scale_inv` of another library"),
        ("The scales of keys count twice.", power(2), KINDS[:1], "a query that is scaled already"),
        ("The scales of values count twice.", power(2), KINDS[1:], ""),
        ("All heads have the scales of head 0.", along("g", first), KINDS, "`scale[0]`"),
        ("Every head has the scales of the next head.", along("g", later), KINDS, "an index of heads"),
        ("All samples have the scales of sample 0.", along("b", first), KINDS, "an index of samples"),
        ("Every token has the scale of the next token.", along("k", later), KINDS,
         "lengths that already count the new token"),
        ("Every token has the scale of the token before.", along("k", before), KINDS,
         "a scale that is written after the codes"),
        ("All tokens have the scales of token 0.", along("k", first), KINDS, "scales kept from prefill"),
        ("Every component has the scale of the next component.", next_component, KINDS,
         "an interleaved order of components"),
        ("All tiles have the scale of tile 0.", of_tiles(first), KINDS, "`scale[0]` of a token"),
        ("Every tile has the scale of the next tile.", of_tiles(later), KINDS, "an index of tiles"),
        ("Scales are rounded to bfloat16.", narrow, KINDS, "`scale.to(bfloat16)`"),
    )  # fmt: skip
    zeros: tuple[tuple[str, Change, str], ...] = (
        ("Zero points are subtracted behind the scale.",
         lambda _, name: arrays[name] / arrays[name.replace("zero", "scale")],
         "`code * scale - zero`"),
        ("Zero points are added behind the scale.",
         lambda _, name: -arrays[name] / arrays[name.replace("zero", "scale")],
         "`code * scale + zero`"),
        ("Zero points are ignored.", lambda _, name: 0 * arrays[name], "symmetric codes"),
        ("Zero points have the other sign.", lambda _, name: -arrays[name], ""),
        ("Zero points of keys and values are exchanged.", exchanged, "the order of arguments"),
    )  # fmt: skip
    guesses = [
        (partial(other, inputs, "scale", change, names), sentence, "quantized", hint)
        for sentence, change, names, hint in of
    ]
    guesses += [
        (partial(other, inputs, "zero", change), sentence, "quantized", hint)
        for sentence, change, hint in zeros
    ]
    return tuple(guesses)


def misread(scale: np.ndarray, size: int) -> Iterator[tuple[str, np.ndarray, str]]:
    """Scales of tiles as components (..., size) get them that count tiles in another way, with a sentence
    and a hint."""
    tiles, at = scale.shape[-1], np.arange(size)
    of_64, even = np.minimum(at // 64, tiles - 1), at * tiles // size
    yield "A tile has 64 components.", scale[..., of_64], "`component // 64`"
    yield "The width is divided into equal tiles.", scale[..., even], "`component * tiles // width`"
    rest = np.where(at < size - size % TILE, untiled(scale, size), 1.0)
    yield "The last tile is not multiplied by its scale.", rest, "`width // 128` tiles"


def by_tile(inputs: Inputs) -> Iterator[tuple[str, dict[str, np.ndarray], str]]:
    """`misread` scales of keys and values by name, as factors of the right ones."""
    sizes = {"key": inputs.sizes.D, "value": inputs.sizes.Dv}
    found = {name: misread(inputs.arrays[f"{name}_scale"], sizes[name]) for name in KINDS}
    for (text, key, hint), (_, value, _) in zip(*found.values(), strict=True):
        wrong = {"key": key, "value": value}
        yield text, {n: x / broadcast(inputs, f"{n}_scale") for n, x in wrong.items()}, hint


def of_quantized(inputs: Inputs) -> Iterator[Another]:
    """Other pages, scales, zero points, codes, masks and scales of the scores."""
    yield from of_pages(inputs)
    if inputs.case.option("writes") and "page_table" in inputs.arrays:
        yield from of_slots(inputs)
        return
    inputs = gathered(inputs)
    code = CODES[inputs.case.option("codes")]
    whole = code.is_whole

    def unsigned(_: Inputs, name: str) -> np.ndarray:
        x = inputs.arrays[name]
        return np.where(x < 0, x + 256, x)

    def halved(_: Inputs, name: str) -> np.ndarray:
        return inputs.arrays[name] / 2

    def flushed(_: Inputs, name: str) -> np.ndarray:
        x = inputs.arrays[name]
        return np.where(np.abs(x) < code.smallest_normal, 0.0, x)

    def wrapped(_: Inputs, name: str) -> np.ndarray:
        if not inputs.case.option("zero"):
            raise ValueError("there are no zero points")
        of = broadcast(inputs, name.replace("codes", "zero"))
        return (inputs.arrays[name] - of + 128) % 256 - 128 + of

    of: tuple[Guess, ...] = (
        (lambda: other(inputs, "codes", unsigned), "Codes are read as unsigned numbers.", "numerics",
         "`uint8` for `int8`"),
        (lambda: other(inputs, "codes", wrapped), "Codes minus zero points wrap around in 8 bits.",
         "numerics", "`code - zero` in int8"),
    ) if whole else (
        (lambda: other(inputs, "codes", halved), "Codes are read with an exponent bias larger by 1.",
         "numerics", "`float8_e4m3fnuz` for `float8_e4m3fn`"),
        (lambda: other(inputs, "codes", flushed), "Subnormal codes are read as 0.", "numerics",
         "bits shifted into float16"),
    )  # fmt: skip
    causal: Guess = (
        lambda: inputs.replace(alignment="all"), "The causal flag is ignored.", "mask", ""
    )  # fmt: skip
    yield from made(inputs, (*of_scales(inputs), *of, causal, *of_scale(inputs)))
    if inputs.case.option("scales") == "pertile" and not inputs.case.option("zero"):
        for text, wrong, hint in by_tile(inputs):
            codes = {f"{n}_codes": inputs.arrays[f"{n}_codes"] * x for n, x in wrong.items()}
            if inputs.case.option("writes"):
                codes = {n: inputs.arrays[n] / newest(x, inputs.sizes.Lq) for n, x in wrong.items()}
            yield inputs.replace(**codes), text, "quantized", hint
    if inputs.case.option("writes"):
        yield from of_new_tokens(inputs)


def stored(inputs: Inputs) -> dict[str, np.ndarray]:
    """The codes of new keys and values, before they are rounded."""
    last = CODES[inputs.case.option("codes")].max
    return {name: np.clip(t, -last, last) for name, t in quotients(inputs, DTYPES["f64"]).items()}


def of_slots(inputs: Inputs) -> Iterator[Another]:
    """New codes in other pages, and slots behind them that do not keep their codes."""
    table, size = inputs.arrays["page_table"], inputs.letters["s"]
    new = stored(gathered(inputs))

    def pools(table: np.ndarray) -> dict[str, np.ndarray]:
        at = slots(inputs.replace(page_table=table))[:, -inputs.sizes.Lq :]
        return {
            f"{n}_output": put(inputs.case, inputs.arrays[f"{n}_codes"], at, x, axes_of(n))
            for n, x in new.items()
        }

    for by, where, hint in ((1, "before", "size - 1"), (-1, "after", "size + 1")):
        text = f"New tokens are stored in the page {where} theirs."
        yield pools(np.roll(table, by, 1)), text, "paged", f"`position // {hint}`"
    behind = pools(table)
    for pool in behind.values():
        for slot in slots(inputs)[:, -1]:
            pool[slot // size, slot % size + 1 :] = 0
    text = "The slots behind the last token of a page are set to 0."
    yield behind, text, "paged", "a whole page is written"


def of_new_tokens(inputs: Inputs) -> Iterator[Another]:
    """Tokens that a call stores and attends: other slots, other ranges, another order."""
    arrays, last = inputs.arrays, CODES[inputs.case.option("codes")].max
    read = inputs.replace(writes=False, **dict.fromkeys(KINDS))
    stale = "New tokens are stored behind the attention, which sees what was in their slots."
    yield read, stale, "state", "attention before the store"
    tokens = {name: dequantized(inputs, name).astype(float) for name in KINDS}
    early, limited = ({n: arrays[f"{n}_codes"].copy() for n in KINDS} for _ in range(2))
    count = inputs.sizes.Lq
    slot = max(inputs.sizes.Lk - count - 1, 0)
    for name, t in stored(inputs).items():
        tokens[name][:, :, -count:] = arrays[name]
        early[name][:, :, -count:] = t
        early[name][:, :, slot : slot + count] = t
        limit = np.abs(limited[name][:, :, :-count]).max(initial=0.0) or last
        limited[name][:, :, -count:] = np.clip(t, -limit, limit)
    key, value = (np.repeat(tokens[name], inputs.sizes.group, 1) for name in KINDS)
    scores = (inputs.query @ key.swapaxes(-1, -2)) * inputs.effective_scale
    mask = allowed(inputs)
    output = softmax(scores, np.ones_like(scores, bool) if mask is None else mask) @ value
    text = "New tokens are attended before they become codes."
    yield {"output": output}, text, "quantized", "attention over `key` and `value` themselves"
    for changed, sentence, hint in (
        (early, "New tokens are stored one slot early.", "`cache[position - 1]`"),
        (
            limited,
            "New tokens are clipped to the range of the codes before.",
            "a range that is kept",
        ),
    ):
        yield {f"{name}_output": x for name, x in changed.items()}, sentence, "quantized", hint


def of_quantized_write(inputs: Inputs) -> Iterator[Another]:
    """Other scales, zero points, ranges and roundings."""
    arrays, code = inputs.arrays, CODES[inputs.case.option("codes")]
    yield from made(inputs, of_scales(inputs))
    for key, value in (("key", "value"), ("value", "key")):
        if arrays[key].shape == arrays[value].shape:
            text = f"The {value}s are written as {key}s, too."
            yield inputs.replace(**{value: arrays[key]}), text, "quantized", "a line copied"
    early = {
        name: np.clip(arrays[name], -limit, limit)
        for name in KINDS
        for limit in [np.abs(arrays[name][:, :, : -(-arrays[name].shape[2] // 2)]).max()]
    }
    text = "Numbers are clipped to the range of the first tokens."
    yield inputs.replace(**early), text, "quantized", "a range that is kept from prefill"
    t, narrow = quotients(inputs), quotients(inputs, DTYPES["bf16"])

    def written(codes: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(inputs.outputs, codes, strict=True))

    answers: list[tuple[str, str, Callable[[str], np.ndarray]]] = [
        ("Codes are 0 below the smallest normal code.", "subnormals flushed",
         lambda n: np.where(np.abs(t[n]) < code.smallest_normal, 0.0, t[n])),
        ("Codes end at 240.", "`float8_e4m3fnuz` for `float8_e4m3fn`",
         lambda n: np.clip(t[n], -240, 240)),
        ("Numbers are rounded towards 0.", "digits that are cut off",
         lambda n: towards_zero(t[n], code)),
        ("Numbers pass through e5m2.", "a format in between",
         lambda n: round_to(t[n], CODES["e5m2"])),
    ] if not code.is_whole else [
        ("Numbers are rounded towards 0.", "`x.to(int8)` without rounding", lambda n: np.trunc(t[n])),
        ("Numbers are rounded down.", "`floor`", lambda n: np.floor(t[n])),
        ("Numbers beyond the range wrap around.", "`x.to(int8)` without `clamp`",
         lambda n: (np.rint(t[n]) + 128) % 256 - 128),
        ("Quotients are rounded to bfloat16.", "`x / scale` in bfloat16",
         lambda n: np.rint(narrow[n])),
    ]  # fmt: skip
    lowest = -code.max - code.is_whole / 2  # -128 and -127 are both right
    for sentence, hint, answer in answers:
        codes = written(np.clip(answer(name), lowest, code.max) for name in KINDS)
        yield codes, sentence, "numerics", hint
    if inputs.case.option("scales") == "pertile":
        for text, wrong, hint in by_tile(inputs):
            tokens = {name: inputs.arrays[name] / x for name, x in wrong.items()}
            yield inputs.replace(**tokens), text, "quantized", hint
    if inputs.case.option("zero"):
        moved = {name: broadcast(inputs, f"{name}_zero") for name in KINDS}
        clipped = (np.rint(t[n] - moved[n]).clip(-code.max, code.max) + moved[n] for n in KINDS)
        codes = written((x + 128) % 256 - 128 for x in clipped)
        text = "Zero points are added behind clipping."
        yield codes, text, "quantized", "`clamp` before the sum"


def towards_zero(t: np.ndarray, code: Code) -> np.ndarray:
    """Numbers as floating-point codes, rounded towards 0."""
    nearest = round_to(t, code)
    _, exponent = np.frexp(t)
    step = np.exp2(np.maximum(exponent - 1, code.min_exponent) - (code.precision - 1.0))
    return np.where(np.abs(nearest) > np.abs(t), nearest - np.sign(t) * step, nearest)


def quotients(inputs: Inputs, fmt: DType | None = None) -> Mapping[str, np.ndarray]:
    """The numbers that become codes, before they are clipped and rounded. Quotients are rounded to `fmt`,
    by default to float32 as in implementations."""
    found = {}
    for name in KINDS:
        x, tokens = inputs.arrays[name], inputs.arrays[name].shape[2]
        quotient = x / newest(broadcast(inputs, f"{name}_scale"), tokens)
        found[name] = round_to(quotient, fmt or inputs.dtype.widened)
        if inputs.case.option("zero"):
            found[name] = found[name] + newest(broadcast(inputs, f"{name}_zero"), tokens)
    return found
