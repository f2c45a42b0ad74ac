"""Split keys of paged attention: parts with wrong weights, log-sum-exps or masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from attention_conformance.suite.judge.diagnosis.layers import Another
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.paged import flat_slots, samples

COUNTS = range(2, 9)
"""Numbers of parts that kernels may take."""

Part = tuple[slice, np.ndarray, np.ndarray]
"""The rows of a sample, and over parts of its keys the answers (parts, H, rows, Dv) and log-sum-exps
(parts, H, rows)."""


@np.errstate(all="ignore")
def answered(inputs: Inputs, count: int, together: bool, restarts: bool = False) -> list[Part]:
    """The answers of each sample with queries.

    Parts are cut at the same places for all samples (`together`), or into equal parts of each one. With
    `restarts` the mask of every part is that of the first one.
    """
    s, cap = inputs.sizes, inputs.case.option("softcap")
    pools = [flat_slots(inputs.case, pool) for pool in (inputs.key, inputs.value)]
    parts = [part for part in samples(inputs) if part[0].stop > part[0].start]
    longest, answers = max(len(slots) for _, slots, _ in parts), []
    for rows, slots, mask in parts:
        query = inputs.query[rows].swapaxes(0, 1)  # (H, rows, D)
        key, value = (np.repeat(x[slots].swapaxes(0, 1), s.group, 0) for x in pools)
        scores = inputs.effective_scale * (query @ key.swapaxes(-1, -2))
        if cap is not None:
            scores = cap * np.tanh(scores / cap)
        size = -(-(longest if together else len(slots)) // count)
        outputs, sums = [], []
        for start in range(0, size * count, size):
            own = slice(start, start + size)
            part = scores[..., own]
            first = 0 if restarts else start
            part = np.where(mask[:, first : first + part.shape[-1]], part, -np.inf)
            largest = part.max(-1, keepdims=True, initial=-np.inf)
            raised = np.exp(part - np.where(np.isneginf(largest), 0, largest))
            total = raised.sum(-1, keepdims=True)
            outputs.append((raised @ value[:, own]) / np.where(total == 0, 1, total))
            sums.append((np.where(np.isneginf(largest), 0, largest) + np.log(total))[..., 0])
        answers.append((rows, np.stack(outputs), np.stack(sums)))
    return answers


def parts_with_keys(inputs: Inputs, count: int) -> list[int]:
    """How many of the parts that `answered` cuts together have a key, for each sample with queries."""
    lengths = [len(slots) for rows, slots, _ in samples(inputs) if rows.stop > rows.start]
    return [-(-length // -(-max(lengths) // count)) for length in lengths]


@np.errstate(all="ignore")
def merged(
    inputs: Inputs, parts: Iterable[Part], change: Callable[[np.ndarray], np.ndarray]
) -> Mapping[str, np.ndarray]:
    """The answer of parts with changed log-sum-exps."""
    out = np.zeros((inputs.sizes.Lq, inputs.sizes.H, inputs.sizes.Dv))
    for rows, outputs, sums in parts:
        lse = change(sums)
        shares = np.exp(lse - lse.max(0))
        shares = shares / shares.sum(0)
        out[rows] = (shares[..., None] * outputs).sum(0).swapaxes(0, 1)
    return {"output": out}


def old(parts: Iterable[Part], slots: Iterable[int], last: bool) -> Iterator[Part]:
    """Parts in which parts without a key keep the answer of the sample before, that of its last row or of
    its row of the same number. `slots` are the numbers of keys per sample."""
    kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for (rows, outputs, sums), count in zip(parts, slots, strict=True):
        outputs, sums = outputs.copy(), sums.copy()
        for n in range(len(sums)):
            if n >= count and n in kept:
                before, lse = kept[n]
                of = np.minimum(np.arange(sums.shape[2]), lse.shape[1] - 1)
                of = np.full_like(of, lse.shape[1] - 1) if last else of
                outputs[n], sums[n] = before[:, of], lse[:, of]
            else:
                kept[n] = outputs[n], sums[n]
        yield rows, outputs, sums


def of_split(inputs: Inputs) -> Iterator[Another]:
    """Answers of kernels that merge parts of the keys wrongly."""
    wrong: tuple[tuple[str, str, Callable[[np.ndarray], np.ndarray]], ...] = (
        ("Parts of the keys count alike: their log-sum-exps are not used.", "a mean of the parts",
         lambda lse: np.where(np.isneginf(lse), lse, 0.0)),
        ("Parts of the keys weigh 2^lse, expected e^lse.", "`exp2` of a log-sum-exp to base e",
         lambda lse: lse * np.log(2)),
        ("A part in which a sample has no key weighs as if its log-sum-exp were 0.",
         "log-sum-exps that begin as 0", lambda lse: np.where(np.isneginf(lse), 0.0, lse)),
        ("Log-sum-exps of parts of the keys are rounded to bfloat16.", "a workspace in 16 bits",
         lambda lse: round_to(lse, DTYPES["bf16"])),
    )  # fmt: skip
    for count in COUNTS:
        for together in (True, False):
            parts = answered(inputs, count, together)
            for sentence, hint, change in wrong:
                yield merged(inputs, parts, change), sentence, "merge", hint
            if together:
                filled = parts_with_keys(inputs, count)
                for last in (True, False):
                    answer = merged(inputs, old(parts, filled, last), np.asarray)
                    text = (
                        "A part in which a sample has no key keeps the answer of the sample before."
                    )
                    yield answer, text, "merge", "a workspace that is not cleared"
            text = "In every part of the keys the mask is that of the first part."
            hint = "positions counted from the first key of a part"
            parts = answered(inputs, count, together, restarts=True)
            yield merged(inputs, parts, np.asarray), text, "merge", hint
