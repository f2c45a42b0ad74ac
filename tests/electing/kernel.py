"""One honest kernel of attention in PyTorch whose answers to the questions of `suite.spec.elections` are
chosen. Sums are float32; those of float64 operands are float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Answers = Mapping[str, str]
"""Answers by question."""

ROWS = ("fully-masked-row", "padded-sample", "minus-inf-row")
"""What rows without keys give: hidden by a mask, by the valid keys of a layer, by -inf in a bias."""

CANONICAL: dict[str, str] = {
    **dict.fromkeys(ROWS, "zeros"),
    "lowest-row": "",
    "no-keys": "zeros",
    "causal-alignment": "top-left",
    "causal-with-mask": "intersect",
    "causal-alone": "hides",
    "mask-polarity": "attends",
    "returned-weights": "before-dropout",
    "nan-in-masked-key": "blocked",
    "nan-in-masked-value": "blocked",
    "nan-in-masked-key-gradient": "blocked",
    "nan-in-masked-value-gradient": "blocked",
    "nan-in-attended-key": "reaches-them",
    "nan-in-attended-value": "reaches-them",
    "nan-in-bias": "reaches-the-row",
    "inf-in-attended-value": "reaches-them",
    "nan-in-query": "nan",
    "segment-without-keys": "zeros",
    "value-size": "accepted",
    "integer-mask": "raises",
    "subnormal-output": "kept",
    "lse-of-empty-row": "minus-inf",
    "lse-gradient": "flows",
    "score-overflow": "finite",
}
"""The answers of a kernel that is told none. Its answer to "lowest-row" depends on the dtype: float32
absorbs a score beside its own lowest number, and not beside that of float16."""

GRADIENTS = {
    "zeros": "nothing", "nan": "nan", "uniform": "values", "unmasked": "scores", "raises": "raises"
}  # fmt: skip
"""Where the cotangent of a row without keys goes unless told otherwise, by what the row gives."""


def completed(answers: Answers) -> Answers:
    """The answers with those to all other questions."""
    every = CANONICAL | answers
    for question in ROWS:
        every.setdefault(f"{question}-gradient", GRADIENTS[every[question]])
    return every


def some(x: Tensor) -> Tensor:
    """Whether any element of the last axis is true; the axis stays with size 1."""
    return x.any(-1, keepdim=True)


def most(x: Tensor) -> Tensor:
    """The maximum over the last axis, -inf of nothing, as a constant."""
    if not x.shape[-1]:
        return x.new_full((*x.shape[:-1], 1), -math.inf)
    return x.detach().amax(-1, keepdim=True)


@dataclass(frozen=True)
class Problem:
    """The arguments of one call: query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv).

    `mask` and `bias` broadcast to (B, H, Lq, Lk), `valid` is (B, Lk); True attends. `window` is
    (left, right). `called` is what the framework calls mask, bias and flag.
    """

    query: Any
    key: Any
    value: Any
    mask: Any = None
    bias: Any = None
    valid: Any = None
    causal: bool = False
    scale: float | None = None
    softcap: float | None = None
    window: tuple[int | None, int | None] | None = None
    sinks: Any = None
    alibi_slopes: Any = None
    called: tuple[str, str, str] = ("mask", "bias", "causal")

    @property
    def full(self) -> tuple[int, int, int, int]:
        """(B, H, Lq, Lk)."""
        return (*self.query.shape[:3], self.key.shape[2])

    @property
    def dtype(self) -> torch.dtype:
        return self.query.dtype

    @property
    def wide(self) -> torch.dtype:
        """The dtype that sums are made in."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def masked(self) -> bool:
        """Whether there is a mask, or a bias in its place."""
        return self.mask is not None or (self.called[0] == self.called[1] and self.bias is not None)


class Electing:
    """Attention that answers as it is told."""

    def __init__(self, answers: Answers) -> None:
        self.answers = completed(answers)

    def gives(self, question: str, *answers: str) -> bool:
        """Whether the kernel gives one of these answers to a question."""
        return self.answers[question] in answers

    def __call__(
        self, p: Problem, dropped: Callable[[Any], Any] = lambda weights: weights
    ) -> tuple[Any, Any, Any]:
        """The output (B, H, Lq, Dv), the log-sum-exp (B, H, Lq) and the weights (B, H, Lq, Lk), in
        working precision; `dropped` is dropout. Raises ValueError and TypeError for what the kernel
        refuses."""
        self.refuse(p)
        allowed, empty = self.allowed(p)
        bias = self.bias(p)
        visible = allowed & (bias != -math.inf)
        empty["minus-inf-row"] = some(allowed) & ~some(visible)
        bias = torch.where(bias != -math.inf, bias, 0.0)
        if p.sinks is not None:  # a row that sees its sink is not without keys
            nothing = p.sinks.reshape(-1, 1, 1) == -math.inf
            empty = {question: rows & nothing for question, rows in empty.items()}
        self.refuse_rows(empty, p)
        q, k, v = self.operands(p)
        blocked_k, blocked_v = self.blocked(k, v, visible)
        scores = self.scores(q, blocked_k, p) + bias
        weights, lse = self.softmax(scores, visible, p)
        kept = dropped(weights)
        out = kept @ blocked_v
        for question, rows in empty.items():
            if not self.gives(question, "zeros") and bool(rows.any()):
                own = self.weights_of_rows(question, self.scores(q, k, p) + bias, p)
                own = torch.where(rows, own, 0.0)
                out = torch.where(rows, self.output_of_rows(question, own @ v), out)
                kept, weights = (torch.where(rows, own, x) for x in (kept, weights))
        lse = self.lse_of_rows(empty, lse, self.scores(q, k, p), p)
        if self.gives("nan-in-query", "zeros"):
            out = torch.where(some(torch.isnan(q)), 0.0, out)
        shown = kept if self.gives("returned-weights", "after-dropout") else weights
        return self.flushed(out, p.dtype), lse, shown

    def refuse(self, p: Problem) -> None:
        """Raise ValueError or TypeError for what the kernel refuses whatever its values."""
        (Lq, Lk), (D, Dv) = p.full[2:], (p.key.shape[3], p.value.shape[3])
        mask, _, flag = p.called
        refusals = {
            "value-size": (D != Dv, f"value: expected the size of key, {D}, got {Dv}"),
            "no-keys": (not Lk, "key: expected one at least, got none"),
            "causal-alignment": (
                p.causal and Lq != Lk,
                f"{flag}: expected as many queries as keys, got {Lq} and {Lk}",
            ),
            "causal-with-mask": (p.causal and p.masked, f"{mask}: expected none beside {flag}"),
            "causal-alone": (p.causal and not p.masked, f"{flag}: expected {mask} beside it"),
        }
        for question, (meets, message) in refusals.items():
            if meets and self.gives(question, "raises"):
                raise ValueError(message)
        if self.counts(p.mask) and self.gives("integer-mask", "raises"):
            raise TypeError(f"{mask}: expected booleans, got {p.mask.dtype}")

    def refuse_rows(self, empty: Mapping[str, Any], p: Problem) -> None:
        """Raise ValueError for rows without keys that the kernel refuses."""
        for question, rows in empty.items():
            if self.gives(question, "raises") and bool(rows.any()):
                raise ValueError(f"{p.called[question == 'minus-inf-row']}: a row has no keys")

    def counts(self, mask: Any) -> bool:
        """Whether a mask is of whole numbers."""
        return mask is not None and mask.dtype != torch.bool

    def allowed(self, p: Problem) -> tuple[Any, dict[str, Any]]:
        """Which pairs mask and flags leave, boolean (B, H, Lq, Lk); and the rows (B, H, Lq, 1) without
        keys, by question."""
        _, _, Lq, Lk = p.full
        row, key = torch.arange(Lq)[:, None], torch.arange(Lk)[None]
        out = torch.ones(p.full, dtype=torch.bool)
        left, right = p.window or (None, None)
        if left is not None:
            out = out & (key >= row - left)
        if right is not None:
            out = out & (key <= row + right)
        mask = p.mask
        if self.counts(mask):
            mask = None if self.gives("integer-mask", "added") else mask.bool()
        if mask is not None and self.gives("mask-polarity", "hides"):
            mask = ~mask
        both = p.causal and mask is not None
        if mask is not None and not (both and self.gives("causal-with-mask", "mask-ignored")):
            out = out & mask
        question, answer = (
            ("causal-with-mask", "causal-ignored") if both else ("causal-alone", "ignored")
        )
        if p.causal and not self.gives(question, answer):
            last = Lk - Lq if self.gives("causal-alignment", "bottom-right") else 0
            out = out & (key <= row + last)
        if not Lk:
            return out, {"no-keys": ~some(out), "fully-masked-row": some(out)}
        rows = {"fully-masked-row": ~some(out)}
        if p.valid is not None:
            out = out & p.valid[:, None, None, :]
            rows["padded-sample"] = ~some(out) & ~rows["fully-masked-row"]
        return out, rows

    def bias(self, p: Problem) -> Any:
        """What is added to scores, (B, H, Lq, Lk)."""
        (_, _, Lq, Lk), wide = p.full, p.wide
        out = torch.zeros(p.full, dtype=wide)
        if self.counts(p.mask) and self.gives("integer-mask", "added"):
            out = out + p.mask.to(wide)
        if p.alibi_slopes is not None:
            distance = torch.abs(torch.arange(Lq)[:, None] + (Lk - Lq) - torch.arange(Lk)[None])
            slopes = p.alibi_slopes.to(wide).reshape(-1, 1, 1)
            out = out - slopes * distance.to(wide)
        if p.bias is None:
            return out
        added = p.bias.to(wide)
        lowest = added == torch.finfo(p.dtype).min
        if self.gives("lowest-row", "uniform"):
            added = torch.where(lowest, torch.finfo(wide).min, added)
        elif self.gives("lowest-row", "unmasked"):
            added = added - (~some(~lowest)).to(p.wide) * torch.finfo(p.dtype).min
        elif not self.gives("lowest-row", ""):  # as -inf is
            added = torch.where(lowest, -math.inf, added)
        return out + added

    def operands(self, p: Problem) -> tuple[Any, Any, Any]:
        """Query, key and value in working precision, with heads repeated."""
        group = p.query.shape[1] // max(p.key.shape[1], 1)
        q, k, v = (x.to(p.wide) for x in (p.query, p.key, p.value))
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return q, k, self.flushed(v, p.wide)

    def blocked(self, k: Any, v: Any, visible: Any) -> tuple[Any, Any]:
        """Keys and values; zeros where no row attends them, if NaN in them is to stay there."""
        seen = some(visible.mT)  # (B, H, Lk, 1)
        if self.gives("nan-in-masked-key-gradient", "blocked") and self.gives(
            "nan-in-masked-key", "blocked"
        ):
            k = torch.where(seen, k, 0.0)
        if self.gives("nan-in-masked-value", "blocked"):
            v = torch.where(seen, v, 0.0)
        return k, v

    def scores(self, q: Any, k: Any, p: Problem) -> Any:
        """Scores (B, H, Lq, Lk) before bias and mask."""
        scores = q @ k.mT
        if self.gives("score-overflow", "nan") and p.dtype == torch.float16:
            scores = scores.to(p.dtype).to(p.wide)
        scores = scores * (q.shape[-1] ** -0.5 if p.scale is None else p.scale)
        return scores if p.softcap is None else torch.tanh(scores / p.softcap) * p.softcap

    def softmax(self, scores: Any, visible: Any, p: Problem) -> tuple[Any, Any]:
        """Weights, 0 in rows without keys, and the log-sum-exp (B, H, Lq), -inf there."""
        if self.gives("nan-in-masked-key", "leaks"):
            hidden = scores + torch.where(visible, 0.0, -math.inf)
        else:
            hidden = torch.where(visible, scores, -math.inf)
        if p.sinks is not None:
            sinks = p.sinks.to(p.wide).reshape(-1, 1, 1)
            hidden = torch.cat([hidden, sinks.expand(*p.full[:3], 1)], -1)
        largest = most(hidden)
        anchor = torch.where(largest == -math.inf, 0.0, largest)
        raised = torch.exp(hidden - anchor)
        total = raised.sum(-1, keepdim=True)
        nothing = total == 0
        total = torch.where(nothing, 1.0, total)
        lse = torch.where(nothing, -math.inf, anchor + torch.log(total))
        return (raised / total)[..., : p.full[3]], lse[..., 0]

    def weights_of_rows(self, question: str, scores: Any, p: Problem) -> Any:
        """The weights of rows without keys as elected, of scores as if nothing were masked."""
        answer, gradient = self.answers[question], self.gradient(question)
        if answer == "uniform" and gradient == "scores":
            return self.softmax_of(scores - scores.detach())
        if answer == "unmasked":
            return self.softmax_of(scores)
        number = math.nan if gradient == "nan" else 1.0 / max(p.full[3], 1)
        return torch.full(p.full, number, dtype=p.wide)

    def softmax_of(self, scores: Any) -> Any:
        raised = torch.exp(scores - most(scores))
        return raised / raised.sum(-1, keepdim=True)

    def gradient(self, question: str) -> str:
        """Where the cotangent of rows without keys goes."""
        return self.answers.get(f"{question}-gradient", "")

    def output_of_rows(self, question: str, out: Any) -> Any:
        """The output of rows without keys as elected, from that of their weights."""
        if self.gives(question, "nan"):
            out = out + math.nan
        return out.detach() if self.gradient(question) == "nothing" else out

    def lse_of_rows(self, empty: Mapping[str, Any], lse: Any, scores: Any, p: Problem) -> Any:
        """The log-sum-exp with that of rows which a mask empties as elected."""
        rows = empty["fully-masked-row"][..., 0]
        if "padded-sample" in empty:
            rows = rows | empty["padded-sample"][..., 0]
        lowest = torch.finfo(p.wide).min
        numbers = {"lowest": lowest, "zero": 0.0, "plus-inf": math.inf, "nan": math.nan}
        for answer, number in numbers.items():
            if self.gives("lse-of-empty-row", answer):
                lse = torch.where(rows, number, lse)
        if self.gives("lse-of-empty-row", "all-keys"):
            every = most(scores)
            every = every + torch.log((scores - every).exp().sum(-1, keepdim=True))
            lse = torch.where(rows, every[..., 0], lse)
        if self.gives("lse-gradient", "nothing") and lse.requires_grad:
            lse.register_hook(torch.zeros_like)
        return lse

    def flushed(self, x: Any, dtype: torch.dtype) -> Any:
        """Zero instead of what is subnormal in the dtype, where that is elected; gradients
        flow as through anything that rounds."""
        if not self.gives("subnormal-output", "flushed"):
            return x
        return x - torch.where(x.abs() < torch.finfo(dtype).smallest_normal, x, 0.0).detach()
