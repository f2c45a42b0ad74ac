"""Attention layers in PyTorch as people write them: right ones, and twins with one thing wrong."""

from __future__ import annotations

import math

import torch
from torch import nn


class AdditiveAttention(nn.Module):
    """One query of a decoder, without an axis of queries."""

    def __init__(self, key_size, query_size, hidden_size, dropout=0.1):
        super().__init__()
        self.W_k = nn.Linear(key_size, hidden_size, bias=False)
        self.W_q = nn.Linear(query_size, hidden_size, bias=False)
        self.w_v = nn.Linear(hidden_size, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def activated(self, x):
        return torch.tanh(x)

    def forward(self, queries, keys, values):
        features = self.activated(self.W_q(queries).unsqueeze(1) + self.W_k(keys))
        weights = torch.softmax(self.w_v(features).squeeze(-1), dim=-1)
        return torch.bmm(weights.unsqueeze(1), values).squeeze(1), weights


class AdditiveWithoutTanh(AdditiveAttention):
    def activated(self, x):
        return x


class CausalSelfAttention(nn.Module):
    """As in nanoGPT: a config, one fused projection, always causal."""

    diagonal = 0

    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.n_head, self.n_embd = config.n_head, config.n_embd
        size = config.block_size
        seen = torch.tril(torch.ones(size, size), diagonal=self.diagonal)
        self.register_buffer("seen", seen.view(1, 1, size, size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.seen[:, :, :T, :T] == 0, float("-inf"))
        weights = self.attn_dropout(torch.softmax(scores, dim=-1))
        return self.c_proj((weights @ v).transpose(1, 2).contiguous().view(B, T, C))


class SeesTheNext(CausalSelfAttention):
    diagonal = 1


class Interleaved(nn.Module):
    """One fused projection with the features of each head together; padding is told by lengths."""

    def __init__(self, dim, num_heads, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def scale(self, size):
        return size**-0.5

    def forward(self, x, valid_lens=None):
        B, L, E = x.shape
        q, k, v = self.qkv(x).view(B, L, self.num_heads, 3, -1).permute(3, 0, 2, 1, 4)
        scores = q @ k.transpose(-1, -2) * self.scale(q.shape[-1])
        if valid_lens is not None:
            hidden = torch.arange(L) >= valid_lens[:, None]
            scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        out = scores.softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(B, L, E))


class ScaledByWidth(Interleaved):
    def scale(self, size):
        return (size * self.num_heads) ** -0.5


class MultiHeadedAttention(nn.Module):
    """As in The Annotated Transformer: four layers in a list, a mask of 0 and 1 for all heads."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.dropout = nn.Dropout(p=dropout)

    def split(self, x):
        return x.view(x.size(0), -1, self.h, self.d_k).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        q, k, v = (
            self.split(layer(x))
            for layer, x in zip(self.linears, (query, key, value), strict=False)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        x = torch.matmul(self.dropout(scores.softmax(dim=-1)), v)
        x = x.transpose(1, 2).contiguous().view(query.size(0), -1, self.h * self.d_k)
        return self.linears[-1](x)


class SplitsRows(MultiHeadedAttention):
    """Heads are made of rows, and not of features."""

    def split(self, x):
        return x.view(x.size(0), self.h, -1, self.d_k)


class JoinedHeads(nn.Module):
    """One sample (L, E): three layers, a loop over heads, and no output projection."""

    def __init__(self, D_in, D_model, n_heads):
        super().__init__()
        self.num_heads, self.size = n_heads, D_model // n_heads
        self.W_q = nn.Linear(D_in, D_model)
        self.W_k = nn.Linear(D_in, D_model)
        self.W_v = nn.Linear(D_in, D_model)

    def split(self, x):
        return x.view(len(x), self.num_heads, self.size).transpose(0, 1)

    def forward(self, X):
        Q, K, V = self.split(self.W_q(X)), self.split(self.W_k(X)), self.split(self.W_v(X))
        heads = []
        for i in range(self.num_heads):
            scores = Q[i] @ K[i].T / math.sqrt(self.size)
            heads.append(torch.softmax(scores, dim=-1) @ V[i])
        return torch.cat(heads, dim=-1)


class Head(nn.Module):
    """One head of a small language model."""

    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * self.key.out_features**-0.5
        return torch.softmax(scores, dim=-1) @ self.value(x)


class Heads(nn.Module):
    """A list of heads, concatenated."""

    def __init__(self, n_embd, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(num_heads * head_size, n_embd)

    def joined(self, parts):
        return torch.cat(parts, dim=-1)

    def forward(self, x):
        return self.proj(self.joined([head(x) for head in self.heads]))


class HeadsTurned(Heads):
    def joined(self, parts):
        return torch.cat(parts[::-1], dim=-1)


class Gram(nn.Module):
    """A layer whose parameters are none of multi-head attention's: one projection for both."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.both = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        scores = self.both(x) @ self.both(x).transpose(-1, -2)
        return self.out(scores.softmax(-1) @ self.value(x))


class AddedMask(nn.Module):
    """As in BERT: a config, masks that are added to scores, one output in a tuple, joined heads."""

    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, attention_mask=None, output_attentions=False):
        B, L, E = hidden_states.shape
        q, k, v = (
            layer(hidden_states).view(B, L, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = scores.softmax(dim=-1)
        context = (weights @ v).transpose(1, 2).reshape(B, L, E)
        return (context, weights) if output_attentions else (context,)
