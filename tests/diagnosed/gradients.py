"""Rows whose backward pass is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.diagnosed.expected import fault
from tests.diagnosed.rows import row
from tests.diagnosed.textbook import Change


def graded(c: Any, x: Any, factor: float) -> Any:
    """An array whose gradient is multiplied."""
    return c.xp.stop(x) + factor * (x - c.xp.stop(x))


def gradients_of(**of: Callable[[Any], float]) -> Change:
    """The gradients of operands are multiplied."""

    def operands(right: Any, c: Any) -> tuple[Any, ...]:
        arrays = zip(("query", "key", "value"), right.operands(c), strict=True)
        return tuple(graded(c, x, of[name](c)) if name in of else x for name, x in arrays)

    return operands


def unscaled(c: Any) -> float:
    return 1 / c.factor if c.factor else 0.0


def backward_of(scores: Callable[[Any, Any], Any]) -> Change:
    """The backward pass is that of other scores."""

    def attended(right: Any, c: Any, s: Any) -> Any:
        other = right.attended(c, scores(right, c))
        return c.xp.stop(right.attended(c, s)) + (other - c.xp.stop(other))

    return attended


def without_mask_or_bias(right: Any, c: Any) -> Any:
    """Scores that no mask and no bias changes. The bias has its gradient."""
    scores = right.scores(c)
    return scores if c.bias is None else scores + (c.bias - c.bias.detach()).nan_to_num()


ROWS = (
    # pytorch/xla#6886
    row("without_scale",
        fault(r"gradient|dq|dk|backward|derivative", r"scal|factor|times"),
        lacks="attn_mask", operands=gradients_of(query=unscaled, key=unscaled)),
    row("backward_without_the_mask",
        fault(r"gradient|backward", r"mask|causal|hidden"),
        attended=backward_of(without_mask_or_bias)),
    row("weights_are_detached",
        fault(r"gradient|dq|dk|backward|query", r"zero|\b0\b|no gradient|lost|missing|lacks"),
        lacks="attn_mask", weights=lambda right, c, s: right.weights(c, s).detach()
        + 0 * (c.query.sum() + c.key.sum())),
)  # fmt: skip
