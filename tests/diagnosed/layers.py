"""Multi-head attention as `torch.nn.Module`s, as people write it, and wrong, but for one that is
right."""

from __future__ import annotations

import torch
from torch import nn


class Base(nn.Module):
    """Four linear maps, loaded from the canonical parameters; a subclass has the forward pass."""

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
            linear.bias.data = parameters[f"{name}_bias"].reshape(-1)
        self.out_proj.weight.data = parameters["output_kernel"].reshape(self.width, self.width).T
        self.out_proj.bias.data = parameters["output_bias"]

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def hide(self, scores, causal, valid):
        if causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        if valid is not None:
            scores = scores.masked_fill(~valid[:, None, None, :], -torch.inf)
        return scores


class Right(Base):
    """Right."""

    def forward(self, x, causal=False, valid=None):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = self.hide(q @ k.mT / q.shape[-1] ** 0.5, causal, valid)
        values = (scores.softmax(dim=-1) @ v).transpose(1, 2)
        return self.out_proj(values.reshape(x.shape))


class MergedWithoutTranspose(Base):
    """(B, H, L, D) is reshaped to (B, L, H D) at once: ajhalthor/Transformer-Neural-Network#4."""

    def forward(self, x, causal=False, valid=None):
        B, L, E = x.shape
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = self.hide(q @ k.mT / q.shape[-1] ** 0.5, causal, valid)
        values = scores.softmax(dim=-1) @ v
        return self.out_proj(values.reshape(B, L, E))


class SplitWithoutTranspose(Base):
    """(B, L, E) is viewed as (B, H, L, D): reczoo/FuxiCTR#30."""

    def split(self, x):
        return x.view(x.shape[0], self.heads, x.shape[1], -1)

    def forward(self, x, causal=False, valid=None):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = self.hide(q @ k.mT / q.shape[-1] ** 0.5, causal, valid)
        return self.out_proj((scores.softmax(dim=-1) @ v).reshape(x.shape))


class ScaledByWholeWidth(Base):
    """The width of the model and not of a head: FrancescoSaverioZuppichini/ViT#1."""

    def forward(self, x, causal=False, valid=None):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = self.hide(q @ k.mT / self.width**0.5, causal, valid)
        values = (scores.softmax(dim=-1) @ v).transpose(1, 2)
        return self.out_proj(values.reshape(x.shape))


class ProjectionsExchanged(Base):
    """Queries come from the map of keys, and keys from that of queries."""

    def forward(self, x, causal=False, valid=None):
        q, k, v = self.split(self.k_proj(x)), self.split(self.q_proj(x)), self.split(self.v_proj(x))
        scores = self.hide(q @ k.mT / q.shape[-1] ** 0.5, causal, valid)
        values = (scores.softmax(dim=-1) @ v).transpose(1, 2)
        return self.out_proj(values.reshape(x.shape))


class WithoutOutputProjection(Base):
    """Heads are joined, and nothing projects them: the first lesson of many tutorials stops here."""

    def forward(self, x, causal=False, valid=None):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = self.hide(q @ k.mT / q.shape[-1] ** 0.5, causal, valid)
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(x.shape)


class PaddingIgnored(Base):
    """The padding mask is taken, made float, and added: keys of padding get 0 and others 1:
    pytorch/pytorch#92554."""

    def forward(self, x, causal=False, valid=None):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if valid is not None:
            scores = scores + valid[:, None, None, :].to(scores.dtype)
        values = self.hide(scores, causal, None).softmax(dim=-1) @ v
        return self.out_proj(values.transpose(1, 2).reshape(x.shape))
