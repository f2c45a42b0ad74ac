"""Identification of wrong backward passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from suite.judge.diagnosis import gradients  # noqa: E402
from suite.judge.diagnosis.instrument import Instrument  # noqa: E402
from suite.spec.case import Case  # noqa: E402
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
        (lambda *saved: terms(*saved, mean=0.0), "The backward pass leaves out D"),
        (lambda *saved: terms(*saved, scale=1.0), "The gradients of query and key leave out the scale."),
        (lambda *saved: terms(*saved, scale=1 / 8),
         "The gradients of query and key have the scale twice."),
        (lambda *saved: terms(*saved[:4], torch.ones_like(saved[4])), "whatever the cotangent"),
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
