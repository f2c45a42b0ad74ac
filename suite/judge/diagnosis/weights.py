"""The keys that a query attends, and the normalisation of weights: read by one-hot values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.diagnosis import sums
from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Reading,
    Symptom,
    visible_pairs,
)
from attention_conformance.suite.judge.diagnosis.kernels import measured_kernel
from attention_conformance.suite.judge.diagnosis.masks import meanings
from attention_conformance.suite.judge.diagnosis.words import indices_text, plural, rows_text
from attention_conformance.suite.spec.case import Case

SIDE = 12
"""The number of rows and columns of a picture."""

LOWEST = 1e6
"""Scores of attended keys are probed down to minus this: hidden keys must stay below."""

LARGEST = 1e4
"""The largest score that is probed for clipping."""

NONFINITE = ("NaN", "Infinity")
"""The keys of symptoms of rows without finite weights."""


def pattern_symptoms(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """Yields the symptoms of the visible pairs and of the sums of weights: a finite penalty, dropout,
    rows that are not finite, a wrong mask, or wrong sums."""
    attends = reading.inputs.attends
    differs = (reading.visible != attends) & reading.judged_rows[..., None]
    differs &= ~attends | visible_pairs(reading.want)  # slopes hide far keys, too
    penalty = _penalty_symptom(reading) or _dropout_symptom(reading)
    meaning = _meaning_symptom(tool, reading, differs) if differs.any() else None
    nonfinite_rows = reading.nonfinite_rows
    if penalty is not None:
        yield penalty
    elif meaning is None and nonfinite_rows.any():
        number = "NaN" if np.isnan(reading.raw[nonfinite_rows]).any() else "Infinity"
        scale = reading.inputs.scale or 0.0
        if scale < 0:
            negated = tool.read_weights(reading.inputs.replace(scale=-scale))
            if negated is not None and not negated.nonfinite_rows.any():
                text = f"A negative scale gives {number}: {scale:.3g} does, {-scale:.3g} does not."
                hint = "the root of the scale goes to query and to key"
                yield Symptom(text, "scale", hint, key="negative scale")
                return
        size = np.abs(reading.scores).max()
        place = rows_text(nonfinite_rows)
        text = f"{number} comes back in {place}, which attend keys with scores below {size:.2g}."
        hint = "a row or a tile whose keys are all hidden: `-inf - -inf`, `0 / 0`"
        yield _boolean_symptom(tool, reading) or Symptom(text, "softmax", hint, key=number)
    else:
        if differs.any():
            yield meaning or _pattern_symptom(reading, differs)
        yield from sums.normalisation_symptoms(tool, reading)


def _penalty_symptom(reading: Reading) -> Symptom | None:
    """Returns the symptom if hidden keys have a finite score, or only a finite number is subtracted from
    their scores; else None."""
    attends, got = reading.inputs.attends, reading.got
    comparable = (attends & reading.visible).any(-1, keepdims=True)  # rows with an attended key
    hidden = ~attends & (got > 0) & reading.judged_rows[..., None] & comparable
    if not hidden.any() or not (reading.wrong & hidden).any() or (got < 0).any():
        return None
    with np.errstate(all="ignore"):
        log_ratio = np.log(got) - reading.scores
    compared = attends & reading.visible
    count = np.maximum(compared.sum(-1, keepdims=True), 1)
    log_ratio = log_ratio - np.where(compared, log_ratio, 0).sum(-1, keepdims=True) / count
    if np.abs(np.where(compared, log_ratio, 0)).max() > 2 * reading.slack:
        return None
    losses, hidden_scores = log_ratio[hidden], (log_ratio + reading.scores)[hidden]
    allowed = 4 * reading.slack * (1 + np.abs(losses).max())
    hint = "hide by -inf; `scores + mask`, `scores * mask` and small penalties leave weight"
    if np.ptp(losses) <= allowed and abs(losses.mean()) > allowed:
        text = f"Hidden keys lose {-losses.mean():.3g} of their score, expected infinity."
        kernel = _penalised_kernel(1.0, losses.mean())
        return Symptom(text, "mask", hint, kernel=kernel, key="penalty")
    if np.ptp(hidden_scores) <= allowed:
        score = hidden_scores.mean() if abs(hidden_scores.mean()) > allowed else 0.0
        text = f"The score of hidden keys is {score:.3g}, expected -inf."
        kernel = _penalised_kernel(0.0, hidden_scores.mean())
        return Symptom(text, "mask", hint, kernel=kernel, key="score of hidden keys")
    return None


def _penalised_kernel(factor: float, penalty: float) -> Implementation:
    """Returns a kernel that multiplies the scores of hidden keys by `factor`, and adds `penalty`."""
    return measured_kernel(
        f"hidden scores times {factor} plus {penalty}",
        hide=lambda right, scores, allowed, call: (
            scores
            if allowed is None
            else np.where(allowed, scores, call.work(factor) * scores + call.work(penalty))
        ),
    )


def hidden_score_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields the symptom if keys with a score of 0 are hidden, or if hidden keys have a large finite
    score. Scores down to -`LOWEST` are probed."""
    inputs = tool.draw(case)
    attends, s = inputs.attends, inputs.sizes
    scores = np.where(np.arange(s.Lk) % 2, 1.0, 0.0) * attends
    reading = tool.read_weights_of(inputs, scores)
    if reading is None:
        return
    compared = attends & reading.judged_rows[..., None]
    zero_weights, other_weights = (reading.got[compared & at] for at in (scores == 0, scores != 0))
    if zero_weights.size and not zero_weights.any() and other_weights.all():
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
        is_visible = (reading.got * ~attends).sum(-1)[rows] > 0.5
        first = int(is_visible.argmax())
        if not is_visible[first:].all() or is_visible[0]:
            return
        low, high = steps[first - 1], steps[first]
    if low > 1e2:
        level = f"-{float(f'{low:.3g}'):,.0f}"
        text = (
            f"The score of hidden keys is finite, about {level}, expected -inf: rows of lower scores see "
            "hidden keys."
        )
        yield Symptom(text, "mask", "hide by -inf in place of a large number", key="finite")


def clipped_score_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields a symptom if large scores of a plain case are clipped, and thus equal. Probed scores of a
    row range from half of the largest score up to it, so that rounding does not make them equal."""
    low, high, s, inputs = 1.0, LARGEST, case.sizes, tool.draw(case)
    while high > 1.01 * low:
        steps = np.geomspace(low, high, s.Lq)
        scores = steps[:, None] * (1 - np.arange(s.Lk) / (2 * s.Lk))
        reading = tool.read_weights_of(inputs, np.broadcast_to(scores, (s.B, s.H, s.Lq, s.Lk)))
        if s.Lq < 3 or reading is None or not np.isfinite(reading.raw).all():
            return
        wrong = np.asarray(reading.wrong.any(-1)).min((0, 1))
        first = int(wrong.argmax())
        are_equal = np.ptp(reading.got[:, :, -1], -1).max() <= reading.slack
        if not first or not wrong[first:].all() or (high == LARGEST and not are_equal):
            return
        low, high = steps[first - 1], steps[first]
    text = f"Scores above about {float(f'{low:.2g}'):,g} are all alike: they are clipped."
    hint = "`clamp`, `clip` of scores; subtract the maximum of a row instead"
    yield Symptom(text, "scores", hint, key="clipped")


def _dropout_symptom(reading: Reading) -> Symptom | None:
    """Returns the symptom of dropout: some weights are zero, and the other weights are the right ones
    times one factor; else None."""
    judged = reading.inputs.attends & reading.judged_rows[..., None]
    dropped = (reading.got == 0) & judged
    factors = (reading.got / np.where(judged, reading.want, 1))[judged & ~dropped]
    rate, count = dropped.sum() / max(judged.sum(), 1), max(judged.sum(), 1)
    if not dropped.any() or not factors.size or np.ptp(factors) > reading.slack * factors.max():
        return None
    tolerance = 5 * np.sqrt(rate * (1 - rate) / count)  # five standard deviations of the rate
    if abs(1 - rate - 1 / factors[0]) > tolerance or factors[0] <= 1 + reading.slack:
        return None
    text = (
        f"Dropout is on: {rate:.0%} of the weights are zero, the others {factors[0]:.3g} times the "
        "right ones."
    )
    hint = "`dropout` without `training`, or `dropout_p` in place of 0"
    return Symptom(text, "dropout", hint, key="dropout")


def _meaning_symptom(tool: Instrument, reading: Reading, differs: np.ndarray) -> Symptom | None:
    """Returns the symptom if the visible pairs are those of a faulty mask; else None. Faulty masks are
    the wrong readings of the given mask (`suite.judge.diagnosis.masks.meanings`), the masks of
    deviations, and the right masks of another sample or head. `differs` (B, H, Lq, Lk): the wrong
    pairs."""
    judged, picture = reading.judged_rows[..., None], picture_of(reading, differs)
    if (reading.visible & judged).any():
        for meaning in meanings(reading.inputs):
            if not ((meaning.pairs != reading.visible) & judged).any():
                texts = meaning.sentence, "mask", meaning.hint, picture
                return Symptom(*texts, meaning.kernel, meaning.name)
        symptom = tool.row_symptom(reading, lambda weights: 1.0 * visible_pairs(weights))
        if symptom is not None:
            return replace(symptom, picture=picture)
    return _swapped_mask_symptom(reading, differs)


def _swapped_mask_symptom(reading: Reading, differs: np.ndarray) -> Symptom | None:
    """Returns the symptom if every wrong sample and head has the mask of another sample or head; else
    None."""
    attends, s = reading.inputs.attends, reading.inputs.sizes
    sources = {}
    for b, h in np.ndindex(s.B, s.H):
        visible = reading.visible[b, h]
        if not differs[b, h].any():
            continue
        has_mask = ((attends == visible) | ~attends.any(-1, keepdims=True)).all((-1, -2))
        if not visible.any() or not has_mask.any():
            return None
        places = zip(*np.nonzero(has_mask), strict=True)
        c, g = min(places, key=lambda at: (at[1] != h, at[0] != b))
        sources[b, h] = int(c), int(g)
    if not sources:
        return None
    (b, h), (c, g) = next(iter(sources.items()))
    source = f"sample {c}, expected sample {b}" if c != b else f"head {g}, expected head {h}"
    text = f"Head {h} of sample {b} has the mask of {source} ({len(sources)} of {s.B * s.H} are wrong)."
    hint = "samples and heads that are folded into one axis in another order"
    return Symptom(text, "mask", hint, picture_of(reading, differs), key="mask of another")


def _boolean_symptom(tool: Instrument, reading: Reading) -> Symptom | None:
    """Returns the symptom if keys whose bias is not zero are hidden; else None."""
    inputs, bias = reading.inputs, reading.inputs.bias
    if bias is None:
        return None
    sparse_bias = bias * (np.arange(bias.shape[-1]) % 2)
    sparse = tool.read_weights(inputs.replace(bias=sparse_bias))
    if sparse is None:
        return None
    if not np.array_equal(sparse.visible, (sparse.inputs.bias == 0) & inputs.attends):
        return None
    text = "A float mask is read as boolean: keys whose bias is not 0 are hidden."
    return Symptom(text, "mask", "`attn_mask.bool()`; add the bias to the scores")


def _pattern_symptom(reading: Reading, differs: np.ndarray) -> Symptom:
    """Returns the symptom of wrong visible pairs that no faulty mask explains: zero rows, lost keys, or
    visible hidden keys."""
    picture = picture_of(reading, differs)
    attends, count_text = reading.inputs.attends, f"{int(differs.sum())} of {differs.size} pairs"
    lost_keys = (differs & attends).any((0, 1, 2))
    keys, Lk = np.flatnonzero(lost_keys), reading.inputs.sizes.Lk
    zero_rows = reading.judged_rows & ~reading.visible.any(-1)
    if zero_rows.any() and not (differs & ~zero_rows[..., None]).any():
        text = f"The output is zero in {rows_text(zero_rows)}, which attend keys."
        hint = "scores that underflow, or rows that are left out"
        return Symptom(text, "softmax", hint, picture, key="zero")
    if not (differs & ~attends).any():
        never_visible = not (reading.visible & attends)[..., keys].any()
        count = len(keys)
        subject = f"{plural(count, 'Key')} {indices_text(keys)} of {Lk}"
        if keys[0] == Lk - count and Lk > count:
            subject = f"The last {count} of {Lk} keys" if count > 1 else f"The last key of {Lk}"
        verb = "never seen" if never_visible else f"not always seen ({count_text} are lost)"
        hint = (
            "a loop over tiles that leaves out the rest, `Lk // block`"
            if keys[-1] == Lk - 1
            else ""
        )
        text = f"{subject} {'is' if count == 1 else 'are'} {verb}."
        return Symptom(text, "mask", hint, picture, key="keys lost")
    fault = "keys that the mask hides are seen"
    if (differs & attends).any():
        fault = "keys that the mask shows are hidden, and hidden ones seen"
    place = rows_text(np.asarray(differs.any(-1)))
    return Symptom(f"In {place}, {fault}: {count_text}.", "mask", "", picture, key=fault)


def misplaced_weight_symptoms(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """Yields at most one symptom: the weights of keys multiply the values of other keys, or the weights
    of some keys are off by a factor."""
    s, rows = reading.inputs.sizes, reading.judged_rows[..., None]
    distances = np.abs(
        np.where(rows, reading.got, 0)[..., :, None] - np.where(rows, reading.want, 0)[..., None, :]
    ).max((0, 1, 2))
    source = distances.argmin(-1)
    moved_keys = np.flatnonzero(source != np.arange(s.Lk))
    if len(moved_keys) and len({*source}) == s.Lk and reading.fits(reading.want[..., source]):
        key = moved_keys[0]
        sentence = f"The weight of key {source[key]} goes to the value of key {key}"
        text = f"{sentence} ({len(moved_keys)} of {s.Lk} keys are exchanged)."
        hint = "values and keys are in different orders, or an index of a page or a cache"
        yield Symptom(text, "layout", hint, key="keys exchanged")
        return
    if not reading.visible[reading.judged_rows].any():
        return
    with np.errstate(all="ignore"):
        ratio = np.where(reading.visible & rows, reading.got / reading.want, np.nan)
        ratio = ratio / np.nanmedian(ratio, -1, keepdims=True)
        by_key = np.nanmedian(ratio, (0, 1, 2))
    spread = np.nanmax(np.abs(ratio - by_key), initial=0.0)
    is_constant = spread <= reading.slack * np.nanmax(by_key)
    odd_keys = np.flatnonzero(np.abs(by_key - 1) > reading.slack)
    if is_constant and len(odd_keys) and len(odd_keys) < s.Lk / 2:
        factor = float(by_key[odd_keys[0]])
        times = "twice" if abs(factor - 2) <= 2 * reading.slack else f"{factor:.3g} times"
        count = "counts" if len(odd_keys) == 1 else "count"
        text = f"{plural(len(odd_keys), 'Key')} {indices_text(odd_keys)} of {s.Lk} {count} {times}."
        hint = "tiles that overlap, or padding of a tile that is not hidden"
        yield Symptom(text, "mask", hint, key="keys by a factor")


def picture_of(reading: Reading, differs: np.ndarray) -> str:
    """Returns a picture of the expected mask and the visible pairs as lines of text, at most `SIDE` x
    `SIDE` pairs of the first sample and head that differ."""
    b, h = (int(x[0]) for x in np.nonzero(differs.any((-1, -2))))
    flags = differs[b, h]
    starts = []
    for axis in (1, 0):
        first = int(np.flatnonzero(flags.any(axis))[0])
        starts.append(max(0, min(first - 2, flags.shape[1 - axis] - SIDE)))
    rows, keys = (slice(start, start + SIDE) for start in starts)
    want, got = (x[b, h, rows, keys] for x in (reading.inputs.attends, reading.visible))
    width = max(2 * want.shape[1], len("expected"))
    lines = [
        f"a probe of {flags.shape[0]} queries and {flags.shape[1]} keys, sample {b}, head {h}; rows: "
        f"queries from {starts[0]}, columns: keys from {starts[1]}; # seen, . masked, X wrongly seen, "
        "o wrongly masked",
        f"{'expected':{width}}  got",
    ]
    for attended, visible in zip(want, got, strict=True):
        expected = " ".join(".#"[int(x)] for x in attended)
        marks = " ".join(
            "X" if y and not x else "o" if x and not y else ".#"[int(x)]
            for x, y in zip(attended, visible, strict=True)
        )
        lines.append(f"{expected:{width}}  {marks}")
    return "\n".join(lines)
