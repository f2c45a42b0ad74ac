"""Textbook attention in named stages, and kernels that change some of them.

`kernel` makes a function with the signature of a framework's attention. A stage takes the call: its
arrays are (B, H, L, D), in float32 at least, and `xp` has the functions of the framework, with the same
names in each. A change of a stage takes the right textbook first, then what the stage takes:

    kernel(xp, "causal", causal=lambda right, c: c.keys <= c.rows + 1)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

Change = Callable[..., Any]


class Textbook:
    """Right attention: scores, softmax, product."""

    def answer(self, c: Any) -> Any:
        """The output."""
        c.dtype, c.shape = c.query.dtype, (*c.query.shape[:3], c.key.shape[2])
        c.rows, c.keys = c.xp.arange(c.shape[2])[:, None], c.xp.arange(c.shape[3])
        c.factor = self.factor(c)
        c.query, c.key, c.value = self.operands(c)
        c.key, c.value = self.of_groups(c, c.key), self.of_groups(c, c.value)
        scores = self.hidden(c, self.biased(c, self.capped(c, self.scores(c))))
        return self.handed(c, self.attended(c, scores))

    def factor(self, c: Any) -> Any:
        return c.query.shape[-1] ** -0.5 if c.scale is None else c.scale

    def operands(self, c: Any) -> tuple[Any, Any, Any]:
        """Query, key and value as they are multiplied."""
        return c.xp.wide(c.query), c.xp.wide(c.key), c.xp.wide(c.value)

    def of_groups(self, c: Any, x: Any) -> Any:
        """Keys or values with one head for each query head."""
        return c.xp.repeat(x, c.shape[1] // x.shape[1])

    def scores(self, c: Any) -> Any:
        return c.xp.einsum("bhqd,bhkd->bhqk", c.query, c.key) * c.factor

    def capped(self, c: Any, s: Any) -> Any:
        return s if c.softcap is None else c.softcap * c.xp.tanh(s / c.softcap)

    def biased(self, c: Any, s: Any) -> Any:
        """Scores with a bias and ALiBi."""
        bias, slopes = self.bias(c), self.slopes(c)
        s = s if bias is None else s + c.xp.cast(bias, s.dtype)
        return s if slopes is None else s + slopes[:, None, None] * self.distance(c)

    def bias(self, c: Any) -> Any:
        return c.bias

    def slopes(self, c: Any) -> Any:
        return None if c.alibi_slopes is None else -c.alibi_slopes

    def distance(self, c: Any) -> Any:
        return abs(c.rows + c.shape[3] - c.shape[2] - c.keys)

    def causal(self, c: Any) -> Any:
        return c.keys <= c.rows

    def mask(self, c: Any) -> Any:
        """The boolean mask, or None."""
        return c.mask

    def window(self, c: Any) -> Any:
        """The keys inside a window, or None."""
        if c.window is None:
            return None
        left, right = (1 << 20 if side is None else side for side in c.window)
        return (c.rows - c.keys <= left) & (c.keys - c.rows <= right)

    def visible(self, c: Any) -> Any:
        """The keys that each query sees, or None for all."""
        parts = [self.causal(c) if c.is_causal else None, self.window(c), self.mask(c)]
        seen = None
        for part in parts:
            seen = part if seen is None else seen if part is None else seen & part
        return seen

    def hidden(self, c: Any, s: Any) -> Any:
        """Scores that are -inf where a key is hidden."""
        seen = self.visible(c)
        return s if seen is None else c.xp.where(seen, s, -c.xp.inf)

    def attended(self, c: Any, s: Any) -> Any:
        return self.output(c, self.dropped(c, self.weights(c, s)))

    def weights(self, c: Any, s: Any) -> Any:
        return c.xp.softmax(s, -1)

    def dropped(self, c: Any, w: Any) -> Any:
        return c.xp.drop(w, c.dropout_p) if c.dropout_p else w

    def output(self, c: Any, w: Any) -> Any:
        return c.xp.einsum("bhqk,bhkv->bhqv", w, c.xp.cast(c.value, w.dtype))

    def handed(self, c: Any, output: Any) -> Any:
        """The output in the dtype of the query."""
        return c.xp.cast(output, c.dtype)


def changed(changes: Mapping[str, Change]) -> Textbook:
    """The textbook with some stages changed."""
    kind = type("Changed", (Textbook,), {})

    def stage(name: str, change: Change) -> Change:
        assert name in vars(Textbook), f"{name} is no stage"
        return lambda self, *given: change(super(kind, self), *given)

    for name, change in changes.items():
        setattr(kind, name, stage(name, change))
    return kind()


def kernel(xp: Any, parameters: Sequence[str], changes: Mapping[str, Change]) -> Callable[..., Any]:
    """A function of query, key and value, and of parameters with defaults."""
    defaults = {"is_causal": False, "dropout_p": 0.0, "enable_gqa": False}
    attention = changed(changes)

    def function(query: Any, key: Any, value: Any, *places: Any, **named: Any) -> Any:
        every = xp.read(dict(zip(parameters, places, strict=False)) | named)
        arrays = {"query": query, "key": key, "value": value}
        arrays = {name: xp.heads_first(x) for name, x in arrays.items()}
        call = SimpleNamespace(**NOTHING | every | arrays, xp=xp)
        return xp.heads_back(attention.answer(call))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature(
        [inspect.Parameter(name, kind) for name in ("query", "key", "value")]
        + [inspect.Parameter(n, kind, default=defaults.get(n)) for n in parameters]
    )
    return function


NOTHING: dict[str, Any] = dict.fromkeys(
    ("bias", "mask", "scale", "window", "softcap", "alibi_slopes", "enable_gqa")
) | {"is_causal": False, "dropout_p": 0.0}
"""The arguments of a call that passes none."""
