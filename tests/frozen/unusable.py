"""Functions and classes that no run judges; `refused.txt` has what is said of each."""

from __future__ import annotations

from torch import nn

from tests.diagnosed.layers import Right


def needs_more(query, key, value, block_size):
    return value


def misspelt(query, key, value, is_casual=False):
    return value


def near(query, key, value):
    return value


near.head_size = (64,)


async def later(query, key, value):
    return value


def parts(query, key, value):
    yield value


def of_queries(query):
    return query


def swaps_its_output(query, key, value):
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return (scores.softmax(-1) @ value).transpose(1, 2)


class Odd:
    def __call__(self, query, key, value):
        return value

    def __getattr__(self, name):
        raise RuntimeError(f"no {name} here")


odd = Odd()
number = 3


class TwoArrays(nn.Module):
    def __init__(self, query_width):
        super().__init__()

    def forward(self, query, memory):
        return query


class Forgetful(Right):
    def load_biases(self, parameters, names):
        few = {name: parameters[name] for name in parameters if name != "output_bias"}
        super().load_biases(few | {"output_bias": self.out_proj.bias.data}, names)


class Misspelt(Right):
    def forward(self, x, is_casual=False):
        return super().forward(x, is_casual)


class Tables:
    def __init__(self, d_model, rotary_tables):
        pass


def of_depth(query_width, heads, depth):
    return None


def fixed():
    return nn.Linear(1000, 64)
