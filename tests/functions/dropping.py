"""A person's own functions in PyTorch that take a rate of dropout."""

from __future__ import annotations

import torch


def dropping(query, key, value, dropout_p=0.0):
    """Right."""
    weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
    return torch.nn.functional.dropout(weights, dropout_p) @ value


def refuses_dropout(query, key, value, dropout_p=0.0):
    """Right, and refuses to drop."""
    if dropout_p:
        raise NotImplementedError("dropout comes later")
    return dropping(query, key, value)
