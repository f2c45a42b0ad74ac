"""All kernels of the corpus: with one fault, with two, and right ones."""

from __future__ import annotations

from tests.diagnosed import later_kernels as later
from tests.diagnosed.expected import (
    BF16,
    DROPOUT_ON,
    F16,
    IGNORED,
    OVER_HEADS,
    OVER_QUERIES,
    Fault,
    Kernel,
    bias_scaled,
    by_d,
    cap_ignored,
    fault,
    first_head,
    future_only,
    halves_averaged,
    mask_beside_flag,
    masked_weights,
    next_key,
    no_maximum,
    no_scale,
    one,
    one_more,
    own_key,
    scale_ignored,
    slopes_sign,
    tiled,
    true_hides,
    two,
    viewed,
    whole_width,
    window_wider,
    zero_score,
)
from tests.diagnosed.faulty import TORCH

OTHERS = (
    one("of_jax.py:window_needs_a_mask", "mask", r"window", IGNORED, backend="jax"),
    Kernel("of_jax.py:tiled_groups", (tiled,), "jax"),
    one(
        "of_jax.py:softmax_over_heads",
        "softmax heads",
        r"softmax|normali|sum",
        OVER_HEADS,
        backend="jax",
    ),
    Kernel("of_jax.py:true_hides", (true_hides,), "jax"),
    Kernel("of_jax.py:strictly_causal", (own_key,), "jax"),
    one(
        "of_jax.py:scaled_by_number_of_heads",
        "scale",
        r"scal|divi",
        r"number of (query )?heads|heads|\bH\b",
        backend="jax",
    ),
    one(
        "of_jax.py:chunks_without_rescaling",
        "softmax state numerics",
        r"rescal|correct|running max|online|factor|own maximum|maxim|chunk|block|tile",
        backend="jax",
    ),
    Kernel("of_keras.py:multiplies_mask", (zero_score,), "tf"),
    one("of_keras.py:flag_lost_beside_mask", "mask", r"causal|flag", IGNORED, backend="tf"),
    one(
        "of_keras.py:infinity_times_zero",
        "numerics mask",
        r"float16|f16|overflow|NaN|-?1e9|0 ?(\*|times)|infinit|\binf\b",
        backend="tf",
    ),
    one(
        "of_keras.py:softmax_over_heads",
        "softmax heads",
        r"softmax|normali|sum",
        OVER_HEADS,
        backend="tf",
    ),
    one(
        "of_keras.py:scaled_by_number_of_keys",
        "scale",
        r"scal|divi",
        r"number of keys|keys|\bLk\b|length|\bS\b",
        backend="tf",
    ),
    Kernel("of_keras.py:tiled_groups", (tiled,), "tf"),
    one("of_keras.py:bias_is_lost", "scores mask", r"bias", IGNORED, backend="tf"),
    Kernel("of_keras.py:dropout_stays_on", (fault("dropout state", DROPOUT_ON),), "tf"),
    Kernel(
        "layers.py:MergedWithoutTranspose",
        (Fault(("layer", *viewed.families), viewed.patterns),),
        like="multi-head",
    ),
    Kernel(
        "layers.py:SplitWithoutTranspose",
        (Fault(("layer", *viewed.families), viewed.patterns),),
        like="multi-head",
    ),
    Kernel(
        "layers.py:ScaledByWholeWidth",
        (Fault(("scale", "layer"), whole_width.patterns),),
        like="multi-head",
    ),
    one(
        "layers.py:ProjectionsExchanged",
        "layer",
        r"quer",
        r"key",
        r"exchang|swap|projection|kernel|weights",
        like="multi-head",
    ),
    one(
        "layers.py:WithoutOutputProjection",
        "layer",
        r"output",
        r"project|kernel|linear",
        like="multi-head",
    ),
    one(
        "layers.py:PaddingIgnored",
        "mask layer",
        r"pad|mask|valid|hidden",
        IGNORED + r"|added",
        like="multi-head",
    ),
    one(
        "others.py:pairs_mismatched",
        "rotary",
        r"pair|interleav|neighbou?r|halves|half",
        like="rotary",
    ),
    one(
        "others.py:turned_backwards",
        "rotary",
        r"sign|direction|inverse|opposite|other way|backward|clockwise|minus|-sin|negat",
        like="rotary",
    ),
    one(
        "others.py:exponent_without_two",
        "rotary",
        r"frequenc|exponent|base|theta|wavelength",
        like="rotary",
    ),
    one(
        "others.py:positions_from_one",
        "rotary",
        r"position|offset",
        r"one|\b1\b|shift|off",
        like="rotary",
    ),
    one(
        "others.py:positions_in_16_bits",
        "rotary numerics",
        r"16|bf16|half|precision",
        like="rotary",
    ),
    one(
        "others.py:segments_ignored",
        "packed mask",
        r"segment|sequence|boundar|cu_seqlens",
        IGNORED + r"|other|all|across",
        like="packed",
    ),
    one(
        "others.py:boundary_belongs_to_the_last",
        "packed",
        r"boundar|segment",
        r"one|off|first|shift|next|late|\+ ?1",
        like="packed",
    ),
    one(
        "others.py:causal_across_segments",
        "packed mask",
        r"segment|sequence|boundar|start of the array|whole",
        r"causal|flag|future",
        like="packed",
    ),
    one(
        "others.py:merged_by_sum",
        "merge",
        r"lse|log",
        r"(?<!log-)\bsum\b|\badd|plus|\+",
        like="merge",
    ),
    one(
        "others.py:merged_by_mean", "merge", r"weigh|mean|average|equal|alike|uniform", like="merge"
    ),
    one(
        "others.py:merged_without_maximum",
        "merge numerics",
        r"overflow|maxim|\bmax\b|largest|exp\b|subtract",
        like="merge",
    ),
)
"""Kernels with one fault in other frameworks, layers, and of other operators."""

FAULTY = (*TORCH, *OTHERS)

PAIRS = (
    two("pairs.py:next_key_and_no_scale", next_key, no_scale),
    two("pairs.py:tiled_and_divided_by_d", tiled, by_d),
    two("pairs.py:true_hides_and_next_key", true_hides, next_key),
    two(
        "pairs.py:ignored_scale_and_softmax_over_queries",
        scale_ignored,
        fault("softmax", r"softmax|normali|sum", OVER_QUERIES),
    ),
    two("pairs.py:viewed_heads_and_no_scale", viewed, no_scale),
    two("pairs.py:bfloat16_and_next_key", fault("numerics", BF16), next_key),
    two("pairs.py:flag_beside_mask_and_bias_scaled", mask_beside_flag, bias_scaled),
    two(
        "pairs.py:weights_masked_and_scaled_by_values",
        masked_weights,
        fault("scale", r"scal|divi", r"value|\bDv\b"),
    ),
    two("pairs.py:multiplied_mask_and_first_head", zero_score, first_head),
    two("pairs.py:no_maximum_and_own_key_hidden", no_maximum, own_key),
    two("pairs.py:whole_width_and_future_only", whole_width, future_only),
    two("pairs.py:window_wider_and_cap_ignored", window_wider, cap_ignored),
    two("pairs.py:slopes_reversed_and_tiled", slopes_sign, tiled),
    two(
        "pairs.py:in_place_and_ignored_scale",
        fault("state", r"in[ -]?place|changes?|modif|overwrit|writes?|input|operand|untouched"),
        scale_ignored,
    ),
    two(
        "pairs.py:keys_dropped_and_divided_by_d",
        fault(
            "mask softmax layout state",
            r"last|tail|remainder|partial|multiple|behind|end",
            r"key|block|tile",
        ),
        by_d,
    ),
    two("pairs.py:one_more_and_next_key", one_more, next_key),
    two("pairs.py:float16_scores_and_true_hides", fault("numerics", F16), true_hides),
    two(
        "pairs.py:fill_lost_and_values_of_another_head",
        fault("mask", r"mask|hidden", IGNORED),
        fault("heads", r"value", r"head"),
    ),
    two(
        "pairs.py:mean_of_halves_and_flag_lost",
        halves_averaged,
        fault("mask", r"causal|flag|future", IGNORED),
    ),
    two("pairs.py:dropout_and_next_key", fault("dropout state", DROPOUT_ON), next_key),
)
"""Kernels with two faults."""

HEALTHY = (
    *(
        Kernel(f"healthy.py:{name}")
        for name in (
            "by_hand", "by_einsum", "online", "blocks_of_queries", "in_base_2", "split_keys",
            "head_by_head", "writes_into_its_own", "centred_keys", "masked_by_where", "float64_inside",
            "library_with_dense_mask", "with_features", "two_passes",
        )
    ),
    Kernel("of_jax.py:right", backend="jax"),
    Kernel("of_keras.py:right", backend="tf"),
    Kernel("layers.py:Right", like="multi-head"),
    Kernel("others.py:rotated", like="rotary"),
)  # fmt: skip
"""Right kernels."""

KERNELS = (*FAULTY, *PAIRS, *HEALTHY, *later.FAULTY, *later.PAIRS, *later.HEALTHY)
