"""What the page of parameters speaks of: functions, classes and caches of frameworks, and reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SUBJECTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "torch": {
        "torch.nn.functional.scaled_dot_product_attention": ("sdpa", "sdpa-*", "nested-sdpa"),
        "torch.nn.attention.flex_attention.flex_attention": ("flex", "flex-packed", "flex-paged"),
        "torch.nn.attention.flex_attention.create_block_mask": (
            "flex",
            "flex-packed",
            "flex-paged",
        ),
        "torch.nn.attention.experimental._paged_attention.PagedAttention": ("flex-paged*",),
        "torch.nested.nested_tensor_from_jagged": ("nested-sdpa",),
        "torch.nn.MultiheadAttention": ("nn-mha*",),
        "torch.nn.functional.multi_head_attention_forward": ("nn-mha*",),
        "torch.nn.TransformerEncoderLayer": ("nn-encoder*",),
        "torch.nn.LayerNorm": ("nn-layer-norm",),
        "torch.nn.BatchNorm1d": ("nn-batch-norm",),
    },
    "jax": {
        "jax.nn.dot_product_attention": ("jax-nn*",),
        "jax.experimental.pallas.ops.gpu.attention.mha": ("pallas-gpu-mha",),
        "jax.experimental.pallas.ops.gpu.decode_attention.gqa": ("pallas-gpu-decode",),
        "jax.experimental.pallas.ops.gpu.paged_attention.paged_attention": ("pallas-gpu-paged",),
        "jax.experimental.pallas.ops.tpu.splash_attention.make_splash_mha": ("pallas-tpu-splash",),
        "jax.experimental.pallas.ops.tpu.ragged_paged_attention.ref_ragged_paged_attention": (
            "ragged-reference",
        ),
        "flax.nnx.dot_product_attention": ("flax-nnx-function",),
        "flax.linen.dot_product_attention": ("flax-linen-function",),
        "flax.nnx.MultiHeadAttention": ("flax-nnx", "flax-nnx-weights", "flax-nnx-decode"),
        "flax.linen.MultiHeadDotProductAttention": ("flax-linen", "flax-linen-decode"),
        "flax.linen.LayerNorm": ("flax-layer-norm",),
        "flax.linen.BatchNorm": ("flax-batch-norm",),
    },
    "tf": {
        "keras.ops.dot_product_attention": ("keras-ops",),
        "keras.layers.MultiHeadAttention": ("keras-mha*",),
        "keras.layers.GroupQueryAttention": ("keras-gqa*",),
        "keras.layers.Attention": ("keras-attention*", "keras-additive"),
        "keras.layers.AdditiveAttention": ("keras-additive",),
        "keras.layers.LayerNormalization": ("keras-layer-norm",),
        "keras.layers.BatchNormalization": ("keras-batch-norm",),
    },
    "transformers": {
        "transformers.masking_utils.create_causal_mask": ("packed-*", "dynamic-cache-*"),
        "transformers.DynamicCache": ("dynamic-cache-*",),
        "transformers.StaticCache": ("static-cache-sdpa",),
    },
    "mlx": {
        f"mlx_lm.models.cache.{kind}": (name,)
        for kind, name in {
            "KVCache": "lm-kv-cache",
            "RotatingKVCache": "lm-rotating-cache",
            "BatchKVCache": "lm-batch-cache",
            "BatchRotatingKVCache": "lm-batch-rotating-cache",
            "QuantizedKVCache": "lm-quantized-cache",
            "ChunkedKVCache": "lm-chunked-cache",
        }.items()
    },
    "equinox": {
        "equinox.nn.MultiheadAttention": ("multi-head",),
        "equinox.nn.RotaryPositionalEmbedding": ("rotary*",),
        "equinox.nn.LayerNorm": ("layer-norm",),
    },
    "keras-hub": {
        "keras_hub.layers.CachedMultiHeadAttention": ("cached-mha-*",),
        "keras_hub.layers.RotaryEmbedding": ("rotary*",),
        "keras_hub.layers.AlibiBias": ("alibi-bias",),
    },
}
"""The implementations that call a subject, by backend and subject."""

DESCRIBED = "it describes the object, and computes nothing"
INITIAL = "it gives parameters their first values, and a case brings its own"
TRAINED = "it acts on losses and updates, and a case makes no training step"
PLACED = "the adapter converts the layer, or sets a default"
ON_DEVICES = "it chooses among compiled programs of a GPU or TPU, which a CPU does not run"
ON_MESHES = "it places arrays on meshes, and changes no number"
TOGETHER = "statistics of several devices are not asked"
OWN_CODE = "a person's own operation computes what the person wants"

REASONS: Mapping[str, str] = {
    "*.extra_repr": DESCRIBED,
    "*.get_config": DESCRIBED,
    "keras.layers.Attention.call:training": "the check `dropout` passes it, on inputs in training",
    "*.compute_output_spec:query_mask": "a model's symbols carry this mask with them",
    "*.compute_output_spec:key_mask": "a model's symbols carry this mask with them",
    "*_initializer": INITIAL,
    "*:*kernel_init": INITIAL,
    "*:*bias_init": INITIAL,
    "*:scale_init": INITIAL,
    "*_regularizer": TRAINED,
    "*_constraint": TRAINED,
    "*_forward:static_?": "keys and values are projected in every call",
    "torch.nn.*:device": PLACED,
    "torch.nn.*:dtype": PLACED,
    "*_metadata": ON_MESHES,
    "*_sharding": ON_MESHES,
    "*_shards": ON_MESHES,
    "*:axis_name": TOGETHER,
    "*:axis_index_groups": TOGETHER,
    "*:synchronized": TOGETHER,
    "*dot_general*": OWN_CODE,
    "*promote_dtype": OWN_CODE,
    "*einsum*": OWN_CODE,
    "*:num_warps": ON_DEVICES,
    "*:num_stages": ON_DEVICES,
    "*:grid": ON_DEVICES,
    "*:debug": "it prints the program",
    "*:kernel_options": ON_DEVICES,
    "*.flex_attention:return_lse": "it is the old name of return_aux, which cases pass",
    "*.create_block_mask:separate_full_blocks": ON_DEVICES,
    "*.create_block_mask:_compile": "it is private, and deprecated",
    "*.create_block_mask:*dq*": "it orders a backward pass, which a CPU does not have",
    "*.PagedAttention.reserve": "a case says which pages a sample has; the finding about erase calls it",
    "*_from_jagged:lengths": "no kernel of the CPU takes samples with gaps: torch raises",
    "*_from_jagged:jagged_dim": "no kernel of the CPU takes heads before tokens: torch raises",
    "*_from_jagged:*_seqlen": "they spare a look at the lengths; wrong ones changed no answer on a CPU",
    "torch.nn.BatchNorm1d:momentum": "statistics after training are those of the default",
    "torch.nn.BatchNorm1d:track_running_stats": "statistics are those of the case, or of training",
    "torch.nn.LayerNorm:bias": "elementwise_affine=False leaves gain and offset out together",
    "torch.nn.BatchNorm1d:bias": "affine=False leaves gain and offset out together, as cases do",
    "torch.nn.TransformerEncoderLayer:bias": "the operator has biases; by hand it answers rightly",
    **dict.fromkeys(
        (
            "*:dropout_r*",
            "*:broadcast_dropout",
            "flax.*function*:deterministic",
            "flax.*:deterministic",
        ),
        "the check `dropout` passes it, on inputs in training",
    ),
    "flax.*:dtype": "it is the dtype of the operands, as in the cases",
    "flax.*:param_dtype": "it is the dtype of the operands, as in the cases",
    "flax.*:name": DESCRIBED,
    "flax.*:parent": DESCRIBED,
    "flax.*:module": "it stores weights, as a case of the layer asks",
    "flax.*.setup": DESCRIBED,
    "flax.*_fp32_for_softmax": "a finding says what the function answers with it",
    "flax.*:force_float32_reductions": "statistics in 16 bits are not promised",
    "flax.linen.BatchNorm.__call__:use_running_average": "the constructor says it",
    "flax.nnx.MultiHeadAttention.__call__:decode": "the constructor says it",
    "flax.linen.*.__call__:inputs_kv": "it is the old name of inputs_k and inputs_v",
    "*Norm*:axis": "features are on the last axis, as by default",
    "flax.linen.BatchNorm:momentum": "statistics after training are those of the default",
    "flax.*Norm.__call__:mask": "a case normalises all elements",
    "flax.*:use_fast_variance": "a finding says what the default loses",
    "flax.*:*_axes": "features are on the last axis, as by default",
    "*:precision": "products of CPUs have one precision",
    "*.mha:backward_pass_impl": ON_DEVICES,
    "*.mha:return_residuals": "a finding says what it returns",
    "*:mask_value": "it says how to hide, and no case asks how",
    "*.gpu.paged_attention.paged_attention": "no case of standard has sizes that the kernel takes",
    **dict.fromkeys(
        ("*.gqa:*", "*.paged_attention:*", "*:save_residuals", "*:?_scale"),
        "no case has sizes or codes that the kernel takes; by hand, interpreted, it answers rightly",
    ),
    "*make_splash_mha:is_mqa": "one key head for all is asked as grouped heads are",
    "*make_splash_mha:attn_logits_soft_cap": "no case has sizes that the kernel takes",
    "*make_splash_mha:downcast_smem_data": ON_DEVICES,
    "*make_splash_mha:residual_checkpoint_name": DESCRIBED,
    "keras_hub.*:return_attention_scores": "the operator returns no weights",
    "keras_hub.*RotaryEmbedding:truncate": "the reference of yarn rounds, as the default does",
    "keras_hub.*RotaryEmbedding:feature_axis": "components are last; by hand, other axes answer rightly",
    "keras_hub.*RotaryEmbedding:denominator_dim": "a part of a head has frequencies of its own size",
    "keras_hub.*AlibiBias:alibi_bias_max": "the slopes of the cases are those of the default",
    "*.compute_output_shape": DESCRIBED,
    "mlx_lm.*.QuantizedKVCache:group_size": "heads of 64 components have one group, the default",
    "mlx_lm.*.QuantizedKVCache:bits": "codes of 8 bits, the default, have a bound",
    "mlx_lm.*.QuantizedKVCache.*trim*": "no case that takes back has heads of 64 components",
    "keras.ops.dot_product_attention:attn_logits_soft_cap": "it needs a TPU, and raises elsewhere, as a "
    "check asks",
    "keras.layers.BatchNormalization:momentum": "a check of training uses the default",
    "keras.layers.BatchNormalization:renorm*": "renormalisation is another operator",
    "transformers.*Cache.prefetch": ON_DEVICES,
    "transformers.*Cache.offload": ON_DEVICES,
    "transformers.*:offload*": ON_DEVICES,
    "transformers.*_state": "states of layers without attention are not asked",
    "transformers.*.update_indexer": "indexers of sparse attention are not asked",
    "transformers.*:layer_idx": "an adapter has one layer, the first",
    "transformers.*.get_max_length": DESCRIBED,
    "transformers.*.is_recording_past": DESCRIBED,
    "transformers.DynamicCache:ddp_cache_data": "it joins the caches of several devices",
    "transformers.StaticCache.crop": "slots cannot be taken back: the layers have no such method",
    "transformers.StaticCache.activate_past_recording": "slots cannot be taken back",
    "transformers.*Cache.batch_*": "reorder_cache asks the same choice of samples; by hand both answer "
    "rightly where the layers have them",
    "transformers.*.early_initialization": "the first update does the same",
    "*.create_causal_mask:*_mask_function": OWN_CODE,
    "*.create_causal_mask:block_sequence_ids": "images in text are not asked",
    "*.create_causal_mask:allow_is_causal_skip": "it spares a mask, and the "
    "default is what models pass",
    "equinox.*:dtype": PLACED,
    "equinox.*:deterministic": "it is the old name of inference",
    "equinox.*:elementwise_affine": "it is the old name of use_weight and use_bias",
    "equinox.*:process_heads": OWN_CODE,
    "equinox.*__call__:key": "it is there for other layers, and nothing reads it",
    "equinox.*__call__:state": "it is there for other layers, and nothing reads it",
    "mlx_lm.*.empty": DESCRIBED,
    "mlx_lm.*.size": DESCRIBED,
    "mlx_lm.*.from_state": "it restores a saved cache, and a case saves none",
    "mlx_lm.*.to_quantized": "an adapter makes the quantized cache itself",
    "mlx_lm.*:return_array": "it gives the mask another form, which the attention function takes, too",
    "mlx_lm.*Rotating*:window_size": "the capacity is the window",
    "mlx_lm.*RotatingKVCache:keep": "first tokens that stay in a ring are no window of a case",
    "mlx_lm.*Rotating*trim*": "a full ring cannot be trimmed, and no case knows if it is full",
    **dict.fromkeys(
        (f"mlx_lm.*.{name}" for name in ("prepare", "finalize", "extend", "extract", "merge")),
        "a case neither joins batches nor pads on the right; by hand, random steps and joins answered "
        "rightly but for the finding about chunks after single tokens",
    ),
}
"""Why no case passes a parameter, by pattern of `function:parameter`, or calls a function, by pattern of
its name. The first pattern counts."""
