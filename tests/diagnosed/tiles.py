"""Rows that attend tile by tile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.diagnosed.expected import fault, halves_averaged
from tests.diagnosed.rows import row
from tests.diagnosed.scores import or_zeros, powers_of
from tests.diagnosed.textbook import Change


def tiles(c: Any, s: Any, size: int) -> list[tuple[Any, Any]]:
    """Scores and values, in tiles of keys."""
    return [
        (s[..., n : n + size], c.xp.cast(c.value, s.dtype)[:, :, n : n + size])
        for n in range(0, c.shape[3], size)
    ]


def online(
    start: float = -math.inf, size: int = 16,
    fade: Callable[..., Any] = lambda factor, top, new: (factor, factor, new),
) -> Change:  # fmt: skip
    """An online softmax. `fade` gives the factors of sum and output, and the maximum that is kept."""

    def attended(right: Any, c: Any, s: Any) -> Any:
        top = s.new_full((*s.shape[:-1], 1), start)
        total, output = s.new_zeros(()), s[..., :0] @ c.value[:, :, :0].to(s.dtype)
        for scores, value in tiles(c, s, size):
            new = top.maximum(scores.amax(-1, keepdim=True)).detach()
            anchor = new.masked_fill(new == -math.inf, 0.0)
            powers = (scores - anchor).exp()
            of_sum, of_output, top = fade((top - anchor).exp(), top, new)
            total = total * of_sum + powers.sum(-1, keepdim=True)
            output = output * of_output + powers @ value
        return output / total.masked_fill(total == 0, 1.0)

    return attended


def inversely(factor: Any, top: Any, new: Any) -> tuple[Any, Any, Any]:
    """The output is divided by the factor."""
    return factor, (1 / factor).masked_fill(factor == 0, 1.0), new


def unless_small(factor: Any, top: Any, new: Any) -> tuple[Any, Any, Any]:
    """Nothing is rescaled if the maximum grows by less than 8."""
    is_small = new - top <= 8
    factor = factor.masked_fill(is_small, 1.0)
    return factor, factor, top.where(is_small, new)


def of_last_tile(right: Any, c: Any, s: Any) -> Any:
    """The sum of the last tile divides."""
    powers, _ = powers_of(c, s)
    total = powers[..., (c.shape[3] - 1) // 16 * 16 :].sum(-1, keepdim=True)
    return powers / total.masked_fill(total == 0, 1.0)


def in_parts(share: Callable[[Any], Any]) -> Change:
    """Two halves of the keys are attended apart, and added by shares of their log-sum-exps."""

    def attended(right: Any, c: Any, s: Any) -> Any:
        if not c.shape[3]:
            return right.attended(c, s)
        halves, lse = tiles(c, s, (c.shape[3] + 1) // 2), []
        for half, _ in halves:
            empty = (half == -math.inf).all(-1, keepdim=True)
            own = half.masked_fill(empty, 0.0).logsumexp(-1, keepdim=True)
            lse.append(own.masked_fill(empty, -math.inf))
        shares = share(c.xp.concatenate(lse, -1))
        return sum(
            shares[..., n, None] * (or_zeros(half) @ v) for n, (half, v) in enumerate(halves)
        )

    return attended


def alike(lse: Any) -> Any:
    """Every part that has a key counts alike."""
    some = (lse > -math.inf).to(lse.dtype)
    return some / some.sum(-1, keepdim=True).clamp_min(1.0)


def first_keys(size: int) -> Change:
    """Keys beyond whole tiles are not seen."""

    def visible(right: Any, c: Any) -> Any:
        kept = c.keys < (c.shape[3] // size * size or c.shape[3])
        seen = right.visible(c)
        return kept if seen is None else seen & kept

    return visible


def padded(right: Any, c: Any, s: Any) -> Any:
    """Keys behind the last one of a tile have the score 0."""
    more = s.new_zeros((*s.shape[:-1], -c.shape[3] % 16))
    return c.xp.concatenate([s, more], -1).softmax(-1)[..., : c.shape[3]]


RESCALED = fault(
    r"rescal|correct|running max|online|factor|new maximum|inverse|maxim|chunk|block|tile"
)
ROWS = (
    row("forgets_to_rescale", RESCALED,
        attended=online(fade=lambda factor, top, new: (factor, 1.0, new))),
    # Dao-AILab/flash-attention#991
    row("rescales_inversely", RESCALED, attended=online(fade=inversely)),
    # meta-pytorch/MSLK#242
    row("skips_a_small_rescaling", RESCALED, attended=online(fade=unless_small)),
    row("divides_by_last_tile",
        fault(r"\bsum|denominator|normali|divi|total", r"last|tile|block|part"),
        weights=of_last_tile),
    # jax-ml/jax#27224
    row("last_tile_is_dropped", "last-tile-dropped", r"last \d+ of \d+ keys are never seen",
        visible=first_keys(16)),
    # flashinfer-ai/flashinfer#5090
    row("padded_keys_count",
        fault(r"pad|beyond|behind|past the end|lane|extra|partial|zero|of 0",
              r"key|score|tile|block"), weights=padded),
    row("splits_are_added", halves_averaged, attended=in_parts(alike)),
    # flashinfer-ai/flashinfer#4051
    row("merge_in_another_base",
        fault(r"merge|combin|part|half|halves|split|tile|block",
              r"weight|log|lse|base|share"),
        attended=in_parts(lambda lse: or_zeros(lse / math.log(2)))),
)  # fmt: skip
