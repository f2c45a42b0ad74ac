"""Multi-head attention as `torch.nn.Module`s, as people write it, and wrong, but for one that is
right."""

from __future__ import annotations

import torch
from torch import nn


class Right(nn.Module):
    """Four linear maps, loaded from the canonical parameters."""

    def __init__(self, query_width, heads):
        super().__init__()
        self.heads, self.width = heads, query_width
        self.q_proj = nn.Linear(query_width, query_width)
        self.k_proj = nn.Linear(query_width, query_width)
        self.v_proj = nn.Linear(query_width, query_width)
        self.out_proj = nn.Linear(query_width, query_width)

    def load_attention(self, parameters):
        names = {"query": self.q_proj, "key": self.k_proj, "value": self.v_proj}
        for name, linear in names.items():
            linear.weight.data = parameters[f"{name}_kernel"].reshape(self.width, self.width).T
        self.out_proj.weight.data = parameters["output_kernel"].reshape(self.width, self.width).T
        self.load_biases(parameters, names)

    def load_biases(self, parameters, names):
        for name, linear in names.items():
            linear.bias.data = parameters[f"{name}_bias"].reshape(-1)
        self.out_proj.bias.data = parameters["output_bias"]

    def forward(self, x, causal=False, valid=None):
        q, k, v = (self.split(y) for y in self.projected(x))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        if valid is not None:
            scores = self.padded(scores, valid[:, None, None, :])
        return self.handed(self.merged(self.dropped(scores.softmax(dim=-1)) @ v, x.shape))

    def projected(self, x):
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def padded(self, scores, valid):
        return scores.masked_fill(~valid, -torch.inf)

    def dropped(self, weights):
        return weights

    def merged(self, x, shape):
        return x.transpose(1, 2).reshape(shape)

    def handed(self, x):
        return self.out_proj(x)


def _merged(layer, x, shape):
    """(B, H, L, D) is reshaped to (B, L, H D) at once."""
    return x.reshape(shape)


ROWS = {
    # ajhalthor/Transformer-Neural-Network#4
    "MergedWithoutTranspose": {"merged": _merged},
    # (B, L, E) is viewed as (B, H, L, D): reczoo/FuxiCTR#30
    "SplitWithoutTranspose": {
        "merged": _merged,
        "split": lambda layer, x: x.view(x.shape[0], layer.heads, x.shape[1], -1),
    },
    "ProjectionsExchanged": {
        "projected": lambda layer, x: (layer.k_proj(x), layer.q_proj(x), layer.v_proj(x))
    },
    # the first lesson of many tutorials stops here
    "WithoutOutputProjection": {"handed": lambda layer, x: x},
    # the mask is made float and added: pytorch/pytorch#92554
    "PaddingIgnored": {"padded": lambda layer, scores, valid: scores + valid.to(scores.dtype)},
}
"""The steps in which a wrong layer differs."""

globals().update({name: type(name, (Right,), steps) for name, steps in ROWS.items()})
