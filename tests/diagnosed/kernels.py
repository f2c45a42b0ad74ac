"""All kernels of the corpus: with one fault, with two, and right ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.diagnosed import gradients, heads, masks, precision, scores, tiles
from tests.diagnosed.expected import IGNORED, Kernel, fault, one, viewed
from tests.diagnosed.rows import Row, pair, right, row
from tests.diagnosed.textbook import kernel

ONE_FAULT = tuple(
    each for module in (masks, scores, heads, tiles, precision, gradients) for each in module.ROWS
)

PARTS = (
    row("last_eight_dropped",
        fault(r"last|tail|remainder|partial|multiple|behind|end", r"key|tile"),
        visible=tiles.first_keys(8)),
    row("values_detached", fault(r"value", r"gradient|detach"),
        output=lambda right, c, w: w @ c.value.detach()),
    row("keys_detached", fault(r"key", r"gradient|detach"),
        scores=lambda right, c: c.query @ c.key.detach().mT * c.factor),
    row("lower_right", fault(r"causal", r"right|align|offset|S ?- ?L|bottom|lower"),
        causal=lambda right, c: masks.past(c, c.shape[3] - c.shape[2])),
    row("first_samples_keys", fault(r"sample|batch", r"key|first|other|another|mix"),
        scores=lambda right, c: c.xp.einsum("bhqd,hkd->bhqk", c.query, c.key[0]) * c.factor
        if c.shape[0] else right.scores(c)),
)  # fmt: skip
"""Faults that are asked beside another one alone."""

ROWS = {each.name: each for each in (*ONE_FAULT, *PARTS) if "torch" in each.backends}

PAIRED = {
    "next_key_and_no_scale": "reaches_next_key not_scaled",
    "tiled_and_divided_by_d": "tiled_groups divided_by_d",
    "true_hides_and_next_key": "true_hides reaches_next_key",
    "ignored_scale_and_softmax_over_queries": "scale_is_ignored softmax_over_queries",
    "viewed_heads_and_no_scale": "heads_merged_by_view not_scaled",
    "bfloat16_and_next_key": "bfloat16_inside reaches_next_key",
    "flag_beside_mask_and_bias_scaled": "mask_lost_beside_flag bias_is_scaled",
    "weights_masked_and_scaled_by_values": "masks_weights scaled_by_size_of_values",
    "multiplied_mask_and_first_head": "multiplies_mask first_key_head_for_all",
    "no_maximum_and_own_key_hidden": "without_maximum hides_itself",
    "whole_width_and_future_only": "scaled_by_whole_width sees_future_only",
    "window_wider_and_cap_ignored": "window_one_wider cap_is_ignored",
    "slopes_reversed_and_tiled": "slopes_of_other_sign tiled_groups",
    "in_place_and_ignored_scale": "scales_query_in_place scale_is_ignored",
    "keys_dropped_and_divided_by_d": "last_eight_dropped divided_by_d",
    "one_more_and_next_key": "one_more_in_the_sum reaches_next_key",
    "float16_scores_and_true_hides": "half_precision_scores true_hides",
    "fill_lost_and_values_of_another_head": "result_of_fill_is_lost values_of_another_group",
    "mean_of_halves_and_flag_lost": "splits_are_added causal_flag_is_lost",
    "dropout_and_next_key": "dropout_stays_on reaches_next_key",
    "inverted_and_scale_unread": "true_hides scale_is_ignored",
    "next_key_and_nan_hidden": "reaches_next_key nan_of_the_input_hidden",
    "float_mask_dropped_and_values_detached": "float_mask_to_bool values_detached",
    "tail_skipped_and_doubles_narrowed": "last_tile_is_dropped doubles_become_singles",
    "keys_detached_and_lower_right": "keys_detached lower_right",
    "first_samples_keys_and_value_scale": "first_samples_keys scaled_by_size_of_values",
}
"""The rows whose faults a kernel has."""

TWO_FAULTS = tuple(pair(name, *(ROWS[each] for each in of.split())) for name, of in PAIRED.items())


def in_base_2(right: Any, c: Any, s: Any) -> Any:
    """Powers of 2, with log2(e) in the scores. Fully masked rows are zeros."""
    top = s.detach().amax(-1, keepdim=True) if c.shape[3] else s.new_zeros(1)
    powers = ((s - top.masked_fill(top == -math.inf, 0.0)) * math.log2(math.e)).exp2()
    total = powers.sum(-1, keepdim=True)
    return powers / total.masked_fill(total == 0, 1.0)


RIGHT = (
    right("right", of="torch jax tf"),
    right("with_features", takes="softcap window alibi_slopes"),
    right("online", attended=tiles.online(size=32)),
    right("split_keys", attended=tiles.in_parts(scores.or_zeros)),
    right("in_base_2", weights=in_base_2),
    right("two_passes", weights=lambda right, c, s: (s - s.logsumexp(-1, keepdim=True)).exp()),
    right("float64_inside",
        operands=lambda right, c: (c.query.double(), c.key.double(), c.value.double())),
)  # fmt: skip


def kernels_of(xp: Any, backend: str) -> dict[str, Callable[..., Any]]:
    """The functions that rows make of a backend's array functions, by name."""
    rows = (each for each in (*ONE_FAULT, *TWO_FAULTS, *RIGHT) if backend in each.backends)
    return {each.name: kernel(xp, parameters_of(xp, each), each.changes) for each in rows}


def parameters_of(xp: Any, one: Row) -> list[str]:
    """The parameters of a kernel. Only PyTorch has a flag for grouped heads."""
    left_out = one.lacks if xp.has_flag else (*one.lacks, "enable_gqa")
    return [name for name in (*xp.parameters, *one.takes) if name not in left_out]


OTHERS = (
    one("layers.py:MergedWithoutTranspose", viewed, like="multi-head"),
    one("layers.py:SplitWithoutTranspose", viewed, like="multi-head"),
    one("layers.py:ProjectionsExchanged",
        fault(r"quer", r"key", r"exchang|swap|projection|kernel|weights"), like="multi-head"),
    one("layers.py:WithoutOutputProjection", fault(r"output", r"project|kernel|linear"),
        like="multi-head"),
    one("layers.py:PaddingIgnored", fault(r"pad|mask|valid|hidden", IGNORED + r"|added"),
        like="multi-head"),
    one("others.py:pairs_mismatched", fault(r"pair|interleav|neighbou?r|halves|half"),
        like="rotary"),
    one("others.py:exponent_without_two", fault(r"frequenc|exponent|base|theta|wavelength"),
        like="rotary"),
    one("others.py:positions_in_16_bits", fault(r"16|bf16|half|precision"),
        like="rotary"),
    one("others.py:boundary_belongs_to_the_last",
        fault(r"boundar|segment", r"one|off|first|shift|next|late|\+ ?1"), like="packed"),
    one("others.py:causal_across_segments",
        fault(r"segment|sequence|boundar|start of the array|whole", r"causal|flag|future"),
        like="packed"),
    one("others.py:merged_by_mean", fault(r"weigh|mean|average|equal|alike|uniform"),
        like="merge"),
)  # fmt: skip
"""Kernels with one fault that are no rows: layers, and other operators."""

FAULTY = (*(kernel for each in ONE_FAULT for kernel in each.kernels), *OTHERS)

PAIRS = tuple(kernel for each in TWO_FAULTS for kernel in each.kernels)
"""Kernels with two faults."""

HEALTHY = (
    *(kernel for each in RIGHT for kernel in each.kernels),
    Kernel("layers.py:Right", like="multi-head"),
    Kernel("others.py:rotated", like="rotary"),
)  # fmt: skip
"""Right kernels."""

KERNELS = (*FAULTY, *PAIRS, *HEALTHY)
