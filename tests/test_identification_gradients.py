"""Identification of wrong backward passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attention_conformance.suite.judge.diagnosis import gradients  # noqa: E402
from attention_conformance.suite.judge.diagnosis.instrument import Instrument  # noqa: E402
from attention_conformance.suite.spec.case import Case  # noqa: E402
from tests.functions import of_torch  # noqa: E402
from tests.test_identification import CASES, PLAIN, first, of, told  # noqa: E402


def backward(change):
    """Attention whose gradients (query, key, value, dS, P) are changed by a function."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query, key, value):
            weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
            ctx.save_for_backward(query, key, value, weights)
            return weights @ value

        @staticmethod
        def backward(ctx, out):
            return change(*ctx.saved_tensors, out)

    return lambda query, key, value: Changed.apply(query, key, value)


def terms(query, key, value, weights, out, mean=1.0, scale=None, turned=False):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    d_weights = out @ value.mT
    inner = (weights * d_weights).sum(-1, keepdim=True)
    d_scores = weights * (d_weights - mean * inner) * scale
    d_scores = d_scores.mT if turned else d_scores
    return d_scores @ key, d_scores.mT @ query, weights.mT @ out


def without_value(*saved):
    query, key, value = terms(*saved)
    return query, key, torch.zeros_like(value)


def exchanged(*saved):
    query, key, value = terms(*saved)
    return query, value, key


def doubled_key(*saved):
    query, key, value = terms(*saved)
    return query, 2 * key, value


def last_key_forgotten(*saved):
    query, key, value = terms(*saved)
    value[:, :, -1] = 0
    return query, key, value


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda *saved: terms(*saved, mean=-1.0), "The backward pass adds D"),
        (lambda *saved: terms(*saved, scale=1.0), "The gradients of query and key leave out the scale."),
        (lambda *saved: terms(*saved, scale=1 / 8),
         "The gradients of query and key have the scale twice."),
        (exchanged, "The gradients of key and value are exchanged."),
        (without_value, "The gradient of the value is zero."),
        (doubled_key, "The gradient of the key is 2 times the right one."),
        (last_key_forgotten, "The gradient of the value is wrong in key 6 of 7 alone"),
    ],
)  # fmt: skip
def test_gradients_are_named(change: Callable[..., Any], sentence: str) -> None:
    said, family = first(backward(change), PLAIN)
    assert sentence in said
    assert family == "gradient"


def test_right_gradients_are_told_nothing() -> None:
    assert not told(backward(terms), PLAIN, CASES[1])


def test_gradients_of_wrong_outputs_are_not_read() -> None:
    def function(query, key, value, scale=None):
        return of_torch.textbook(query, key, value) * 1.5

    implementation = of(function)
    assert list(gradients.ask(Instrument(implementation, 60), Case.parse(PLAIN))) == []


def unmasked_backward(query, key, value, attn_mask=None):
    """Attention whose backward pass has no mask."""
    hidden = torch.zeros(()) if attn_mask is None else torch.where(attn_mask, 0.0, -torch.inf)

    class Unmasked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query, key, value):
            scores = query @ key.mT * query.shape[-1] ** -0.5
            ctx.save_for_backward(query, key, value, scores.softmax(-1))
            return (scores + hidden).softmax(-1).nan_to_num() @ value

        @staticmethod
        def backward(ctx, out):
            return terms(*ctx.saved_tensors, out)

    return Unmasked.apply(query, key, value)


def test_a_backward_pass_without_the_mask_is_named() -> None:
    found = told(unmasked_backward, CASES[6])
    assert "recomputes the weights without the mask." in found[0].sentence


def emptied(change):
    """Attention that differentiates rightly, but for fully masked rows: `change(operand, is empty)`."""

    def function(query, key, value, attn_mask=None):
        if attn_mask is None:
            attn_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
        empty = ~attn_mask.any(-1, keepdim=True)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~attn_mask, -torch.inf).masked_fill(empty, 0.0).softmax(-1)
        return change((weights * ~empty) @ value, query, value, empty)

    return function


class Poison(torch.autograd.Function):
    """Zeros, whose gradient is NaN at some places."""

    @staticmethod
    def forward(ctx, query, places):
        ctx.save_for_backward(places)
        return torch.zeros_like(query)

    @staticmethod
    def backward(ctx, out):
        return torch.where(ctx.saved_tensors[0], torch.nan, out * 0), None


def nan_query(out, query, value, empty):
    return out + Poison.apply(query, empty.expand(query.shape))


def nan_everywhere(out, query, value, empty):
    return out + Poison.apply(query, empty.any().expand(query.shape))


def moved_values(out, query, value, empty):
    mean = value.mean(-2, keepdim=True)
    return out + torch.where(empty, mean - mean.detach(), 0.0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (nan_query, "but NaN comes back in the gradient of the query, in these rows."),
        (nan_everywhere, "but NaN comes back in the gradient of the query."),
        (moved_values, "but change the gradient of the value, by up to"),
    ],
)
def test_gradients_of_fully_masked_rows_are_read(change: Callable[..., Any], sentence: str) -> None:
    found = told(emptied(change), PLAIN)
    assert [one.family for one in found] == ["gradient"]
    assert found[0].sentence.startswith(f"Rows that attend no key have an output of 0, {sentence}")


def test_right_gradients_of_fully_masked_rows_are_told_nothing() -> None:
    assert not told(emptied(lambda out, *others: out), PLAIN, CASES[6])
