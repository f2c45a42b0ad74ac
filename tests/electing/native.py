"""The honest kernel with the signatures that people's functions and layers have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.electing.kernel import Answers, Electing, Problem


def of_torch(answers: Answers) -> Callable[..., Any]:
    """A function with the signature of `scaled_dot_product_attention`, and the parameters beyond it."""
    attend = Electing(answers)

    def function(
        query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False,
        softcap=None, window=None, sinks=None, lse=False, alibi_slopes=None,
    ):  # fmt: skip
        counts = attn_mask is not None and not attn_mask.is_floating_point()
        masks = {"mask" if counts else "bias": attn_mask}
        problem = Problem(
            query, key, value, causal=is_causal, scale=scale,
            softcap=softcap, window=window, sinks=sinks, alibi_slopes=alibi_slopes,
            called=("attn_mask", "attn_mask", "is_causal"), **masks,
        )  # fmt: skip
        output, log_sum_exp, _ = attend(problem)
        output = output.to(query.dtype)
        if attend.gives("lse-gradient", "raises"):
            log_sum_exp = log_sum_exp.detach()
        return (output, log_sum_exp) if lse else output

    return function


class ElectingLayer:
    """Multi-head attention in torch around the honest kernel; it is handed canonical parameters."""

    def __init__(self, attend: Electing, rate: float) -> None:
        self.attend, self.rate, self.parameters = attend, rate, dict[str, Any]()

    def load_attention(self, parameters: Mapping[str, Any]) -> None:
        self.parameters = dict(parameters)

    def heads(self, x: Any, name: str) -> Any:
        """(B, L, E) -> (B, heads, L, size)."""
        heads = torch.einsum("ble,ehd->bhld", x, self.parameters[f"{name}_kernel"])
        bias = self.parameters.get(f"{name}_bias")
        return heads if bias is None else heads + bias[:, None]

    def __call__(
        self, query, key, value, mask=None, valid=None, causal=False, bias=None,
        return_weights=False, training=False,
    ):  # fmt: skip
        arrays = (
            self.heads(x, name) for x, name in ((query, "query"), (key, "key"), (value, "value"))
        )
        problem = Problem(*arrays, mask=mask, valid=valid, causal=causal, bias=bias)

        def dropped(weights: Any) -> Any:
            return torch.nn.functional.dropout(weights, self.rate, training)

        out, _, weights = self.attend(problem, dropped)
        output = torch.einsum(
            "bhlv,hvo->blo", out.to(query.dtype), self.parameters["output_kernel"]
        )
        added = self.parameters.get("output_bias")
        output = output if added is None else output + added
        return (output, weights.to(query.dtype)) if return_weights else output


def layer_of_torch(answers: Answers) -> Callable[..., Any]:
    """A factory of layers, as `--like=multi-head` calls it."""
    attend = Electing(answers)

    def factory(
        query_width, heads, key_width, value_width, output_width, key_heads, key_size, value_size,
        bias, rate,
    ):  # fmt: skip
        return ElectingLayer(attend, rate)

    return factory
