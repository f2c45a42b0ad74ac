"""Which keys a query attends, and how weights are normalised: read by one-hot values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from attention_conformance.suite.judge.diagnosis import sums
from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Reading,
    Symptom,
    softmax,
    variant_weights,
)
from attention_conformance.suite.judge.diagnosis.masks import meanings, weights_by_meaning
from attention_conformance.suite.judge.diagnosis.words import counted, numbers, part
from attention_conformance.suite.spec.case import Case

SIDE = 12
"""Rows and columns of a picture."""

LOWEST = 1e6
"""Scores of attended keys, beside which hidden keys must not be seen, go down to minus this."""

LARGEST = 1e4
"""The largest score of which an implementation is asked whether it counts."""

BROKEN = ("NaN", "Infinity")
"""The names of findings about rows without finite weights."""


def ask(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """What is wrong with the pattern of weights and with their sums."""
    differs = (reading.visible != reading.inputs.attends) & reading.judged_rows[..., None]
    penalty = _penalty(reading) or _dropped(reading)
    known = _meant(reading, differs) if differs.any() else None
    broken = reading.nonfinite_rows
    if penalty is not None:
        yield penalty
    elif known is None and broken.any():
        number = "NaN" if np.isnan(reading.raw[broken]).any() else "Infinity"
        scale = reading.inputs.scale or 0.0
        if scale < 0:
            other = tool.read_weights(reading.inputs.replace(scale=-scale))
            if other is not None and not other.nonfinite_rows.any():
                text = f"A negative scale gives {number}: {scale:.3g} does, {-scale:.3g} does not."
                hint = "the root of the scale goes to query and to key"
                yield Symptom(text, "scale", hint, key="negative scale")
                return
        size = np.abs(reading.scores).max()
        text = f"{number} comes back in {part(broken)}, which attend keys with scores below {size:.2g}."
        hint = "a row or a tile whose keys are all hidden: `-inf - -inf`, `0 / 0`"
        yield _as_boolean(tool, reading) or Symptom(text, "softmax", hint, key=number)
    else:
        if differs.any():
            yield known or _by_place(reading, differs)
        yield from sums.ask(tool, reading)


def _penalty(reading: Reading) -> Symptom | None:
    """The finding if hidden keys have a finite score, or lose a finite one."""
    attends, got = reading.inputs.attends, reading.got
    both = (attends & reading.visible).any(-1, keepdims=True)  # elsewhere nothing can be compared
    hidden = ~attends & (got > 0) & reading.judged_rows[..., None] & both
    if not hidden.any() or not (reading.wrong & hidden).any() or (got < 0).any():
        return None
    with np.errstate(all="ignore"):
        apart = np.log(got) - reading.scores
    compared = attends & reading.visible
    level = np.where(compared, apart, 0).sum(-1, keepdims=True) / np.maximum(
        compared.sum(-1, keepdims=True), 1
    )
    if np.abs(np.where(compared, apart - level, 0)).max() > 2 * reading.slack:
        return None
    lost, score = (apart - level)[hidden], (apart - level + reading.scores)[hidden]
    allowed = 4 * reading.slack * (1 + np.abs(lost).max())
    hint = "hide by -inf; `scores + mask`, `scores * mask` and small penalties leave weight"
    if np.ptp(lost) <= allowed and abs(lost.mean()) > allowed:
        text = f"Hidden keys lose {-lost.mean():.3g} of their score, expected infinity."
        return Symptom(
            text, "mask", hint, formula=partial(_penalised, 1.0, lost.mean()), key="penalty"
        )
    if np.ptp(score) <= allowed:
        leaked = score.mean() if abs(score.mean()) > allowed else 0.0
        text = f"The score of hidden keys is {leaked:.3g}, expected -inf."
        formula = partial(_penalised, 0.0, score.mean())
        return Symptom(text, "mask", hint, formula=formula, key="score of hidden keys")
    return None


def _penalised(factor: float, penalty: float, reading: Reading) -> np.ndarray:
    """The weights if hidden keys have `factor` times their score, plus a penalty."""
    attends, scores = reading.inputs.attends, reading.scores
    return softmax(np.where(attends, scores, factor * scores + penalty), np.ones_like(attends))


def ask_scores(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """What happens to scores of 0, and how low the score of hidden keys is."""
    inputs = tool.draw(case)
    attends, s = inputs.attends, inputs.sizes
    scores = np.where(np.arange(s.Lk) % 2, 1.0, 0.0) * attends
    reading = tool.read_weights_of(inputs, scores)
    if reading is None:
        return
    compared = attends & reading.judged_rows[..., None]
    zero, others = (reading.got[compared & at] for at in (scores == 0, scores != 0))
    if zero.size and not zero.any() and others.all():
        yield Symptom(
            "Keys whose score is exactly 0 are hidden.", "mask", "`scores == 0` for masked"
        )
        return
    rows = np.asarray(attends.any(-1) & ~attends.all(-1))
    low, high = 1e2, LOWEST
    while rows.sum() > 2 and high > 1.001 * low:
        steps = np.geomspace(low, high, int(rows.sum()))
        scores = np.zeros(attends.shape)
        scores[rows] = -steps[:, None] * attends[rows]
        reading = tool.read_weights_of(inputs, scores)
        if reading is None or not np.isfinite(reading.raw[rows]).all():
            return
        leaks = (reading.got * ~attends).sum(-1)[rows] > 0.5
        first = int(leaks.argmax())
        if not leaks[first:].all() or leaks[0]:
            return
        low, high = steps[first - 1], steps[first]
    if low > 1e2:
        about = f"-{float(f'{low:.3g}'):,.0f}"
        text = (
            f"The score of hidden keys is finite, about {about}, expected -inf: rows of lower scores see "
            "hidden keys."
        )
        yield Symptom(text, "mask", "hide by -inf in place of a large number", key="finite")


def ask_large(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """The size from which on scores are all alike, in a plain case. Scores of a row differ by half of the
    largest one, so that rounding leaves them apart."""
    low, high, s, inputs = 1.0, LARGEST, case.sizes, tool.draw(case)
    while high > 1.01 * low:
        steps = np.geomspace(low, high, s.Lq)
        scores = steps[:, None] * (1 - np.arange(s.Lk) / (2 * s.Lk))
        reading = tool.read_weights_of(inputs, np.broadcast_to(scores, (s.B, s.H, s.Lq, s.Lk)))
        if s.Lq < 3 or reading is None or not np.isfinite(reading.raw).all():
            return
        wrong = np.asarray(reading.wrong.any(-1)).min((0, 1))
        first = int(wrong.argmax())
        alike = np.ptp(reading.got[:, :, -1], -1).max() <= reading.slack
        if not first or not wrong[first:].all() or (high == LARGEST and not alike):
            return
        low, high = steps[first - 1], steps[first]
    text = f"Scores above about {float(f'{low:.2g}'):,g} are all alike: they are clipped."
    hint = "`clamp`, `clip` of scores; subtract the maximum of a row instead"
    yield Symptom(text, "scores", hint, key="clipped")


def _dropped(reading: Reading) -> Symptom | None:
    """The finding if some weights are zero, and all others the right ones times one factor."""
    attended = reading.inputs.attends & reading.judged_rows[..., None]
    lost = (reading.got == 0) & attended
    remaining = (reading.got / np.where(attended, reading.want, 1))[attended & ~lost]
    rate, count = lost.sum() / max(attended.sum(), 1), max(attended.sum(), 1)
    if not lost.any() or not remaining.size or np.ptp(remaining) > reading.slack * remaining.max():
        return None
    chance = 5 * np.sqrt(rate * (1 - rate) / count)  # five standard deviations of the rate
    if abs(1 - rate - 1 / remaining[0]) > chance or remaining[0] <= 1 + reading.slack:
        return None
    others = f"the others {remaining[0]:.3g} times the right ones"
    text = f"Dropout is on: {rate:.0%} of the weights are zero, {others}."
    hint = "`dropout` without `training`, or `dropout_p` in place of 0"
    return Symptom(text, "dropout", hint, key="dropout")


def _meant(reading: Reading, differs: np.ndarray) -> Symptom | None:
    """The finding if the pairs that are seen are a known other meaning of the mask."""
    rows = reading.judged_rows[..., None]
    for row in meanings(reading.inputs) if (reading.visible & rows).any() else ():
        if not ((np.broadcast_to(row.result, differs.shape) != reading.visible) & rows).any():
            picture, formula = (
                drawn(reading, differs),
                partial(variant_weights, weights_by_meaning, row.name),
            )
            return Symptom(row.sentence, "mask", row.hint, picture, formula, key=row.name)
    return _elsewhere(reading, differs)


def _elsewhere(reading: Reading, differs: np.ndarray) -> Symptom | None:
    """The finding if the mask of every sample and head is that of another one."""
    attends, s = reading.inputs.attends, reading.inputs.sizes
    sources = {}
    for b, h in np.ndindex(s.B, s.H):
        seen = reading.visible[b, h]
        if not differs[b, h].any():
            continue
        same = ((attends == seen) | ~attends.any(-1, keepdims=True)).all((-1, -2))
        if not seen.any() or not same.any():
            return None
        c, g = sorted(zip(*np.nonzero(same), strict=True), key=lambda at: (at[1] != h, at[0] != b))[
            0
        ]
        sources[b, h] = int(c), int(g)
    if not sources:
        return None
    (b, h), (c, g) = next(iter(sources.items()))
    used = f"sample {c}, expected sample {b}" if c != b else f"head {g}, expected head {h}"
    text = (
        f"Head {h} of sample {b} has the mask of {used} ({len(sources)} of {s.B * s.H} are wrong)."
    )
    hint = "samples and heads that are folded into one axis in another order"
    return Symptom(text, "mask", hint, drawn(reading, differs), key="mask of another")


def _as_boolean(tool: Instrument, reading: Reading) -> Symptom | None:
    """The finding if keys whose bias is not zero are hidden."""
    inputs, bias = reading.inputs, reading.inputs.bias
    if bias is None:
        return None
    other = tool.read_weights(inputs.replace(bias=bias * (np.arange(bias.shape[-1]) % 2)))
    if other is None or not np.array_equal(
        other.visible, np.broadcast_to(other.inputs.bias == 0, other.visible.shape) & inputs.attends
    ):
        return None
    text = "A float mask is read as boolean: keys whose bias is not 0 are hidden."
    return Symptom(text, "mask", "`attn_mask.bool()`; add the bias to the scores")


def _by_place(reading: Reading, differs: np.ndarray) -> Symptom:
    """The finding for keys that no known meaning of the mask explains."""
    picture = drawn(reading, differs)
    wanted, every = reading.inputs.attends, f"{int(differs.sum())} of {differs.size} pairs"
    lost = (differs & wanted).any((0, 1, 2))
    keys, Lk = np.flatnonzero(lost), reading.inputs.sizes.Lk
    gone = reading.judged_rows & ~reading.visible.any(-1)
    if gone.any() and not (differs & ~gone[..., None]).any():
        text = f"The output is zero in {part(gone)}, which attend keys."
        hint = "scores that underflow, or rows that are left out"
        return Symptom(text, "softmax", hint, picture, key="zero")
    if not (differs & ~wanted).any():
        whole = not (reading.visible & wanted)[..., keys].any()
        count = len(keys)
        named = f"{counted(count, 'Key')} {numbers(keys)} of {Lk}"
        if keys[0] == Lk - count and Lk > count:
            named = f"The last {count} of {Lk} keys" if count > 1 else f"The last key of {Lk}"
        often = "never seen" if whole else f"not always seen ({every} are lost)"
        hint = (
            "a loop over tiles that leaves out the rest, `Lk // block`"
            if keys[-1] == Lk - 1
            else ""
        )
        text = f"{named} {'is' if count == 1 else 'are'} {often}."
        return Symptom(text, "mask", hint, picture, key="keys lost")
    some = "keys that the mask hides are seen"
    if (differs & wanted).any():
        some = "keys that the mask shows are hidden, and hidden ones seen"
    where = part(np.asarray(differs.any(-1)))
    return Symptom(f"In {where}, {some}: {every}.", "mask", "", picture, key=some)


def ask_places(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """Keys whose weights go to other values, count twice, or are off by a factor."""
    s, rows = reading.inputs.sizes, reading.judged_rows[..., None]
    columns = np.abs(
        np.where(rows, reading.got, 0)[..., :, None] - np.where(rows, reading.want, 0)[..., None, :]
    ).max((0, 1, 2))
    source = columns.argmin(-1)
    moved = np.flatnonzero(source != np.arange(s.Lk))
    if len(moved) and len({*source}) == s.Lk and reading.fits(reading.want[..., source]):
        goes = f"The weight of key {source[moved[0]]} goes to the value of key {moved[0]}"
        text = f"{goes} ({len(moved)} of {s.Lk} keys are exchanged)."
        hint = "values and keys are in different orders, or an index of a page or a cache"
        yield Symptom(text, "layout", hint, key="keys exchanged")
        return
    if not reading.visible[reading.judged_rows].any():
        return
    with np.errstate(all="ignore"):
        ratio = np.where(reading.visible & rows, reading.got / reading.want, np.nan)
        ratio = ratio / np.nanmedian(ratio, -1, keepdims=True)
        by_key = np.nanmedian(ratio, (0, 1, 2))
    steady = np.nanmax(np.abs(ratio - by_key), initial=0.0) <= reading.slack * np.nanmax(by_key)
    odd = np.flatnonzero(np.abs(by_key - 1) > reading.slack)
    if steady and len(odd) and len(odd) < s.Lk / 2:
        factor = float(by_key[odd[0]])
        many = "twice" if abs(factor - 2) <= 2 * reading.slack else f"{factor:.3g} times"
        count = "counts" if len(odd) == 1 else "count"
        text = f"{counted(len(odd), 'Key')} {numbers(odd)} of {s.Lk} {count} {many}."
        hint = "tiles that overlap, or padding of a tile that is not hidden"
        yield Symptom(text, "mask", hint, key="keys by a factor")


def drawn(reading: Reading, differs: np.ndarray) -> str:
    """A picture of the expected mask beside the one used, of the first sample and head that differ."""
    b, h = (int(x[0]) for x in np.nonzero(differs.any((-1, -2))))
    here = differs[b, h]
    starts = []
    for axis in (1, 0):
        first = int(np.flatnonzero(here.any(axis))[0])
        starts.append(max(0, min(first - 2, here.shape[1 - axis] - SIDE)))
    rows, keys = (slice(start, start + SIDE) for start in starts)
    want, got = (x[b, h, rows, keys] for x in (reading.inputs.attends, reading.visible))
    width = max(2 * want.shape[1], len("expected"))
    lines = [
        f"a probe of {here.shape[0]} queries and {here.shape[1]} keys, sample {b}, head {h}; rows: "
        f"queries from {starts[0]}, columns: keys from {starts[1]}; # seen, . hidden, X wrongly seen, "
        "o wrongly hidden",
        f"{'expected':{width}}  got",
    ]
    for right, read in zip(want, got, strict=True):
        left = " ".join(".#"[int(x)] for x in right)
        marks = " ".join(
            "X" if y and not x else "o" if x and not y else ".#"[int(x)]
            for x, y in zip(right, read, strict=True)
        )
        lines.append(f"{left:{width}}  {marks}")
    return "\n".join(lines)
