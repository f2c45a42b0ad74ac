"""Targets: the functions of released frameworks that are changed, and who calls them in the suite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """Functions of one module of a framework, and the implementations of a backend that call them.

    `names` are qualified names in the module; one that ends in `.*` stands for all methods of a class.
    `distribution` is what has the version. `others` are backends besides, that run other branches of the
    module: each is asked where those before it see nothing.
    """

    framework: str
    distribution: str
    module: str
    names: tuple[str, ...]
    backend: str
    implementations: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def everywhere(self) -> tuple[Target, ...]:
        """The target on each of its backends."""
        return tuple(replace(self, backend=b, others=()) for b in (self.backend, *self.others))

    @property
    def path(self) -> Path:
        """The module's file. Raises ModuleNotFoundError; imports nothing."""
        top, *rest = self.module.split(".")
        spec = find_spec(top)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"{top} is not installed", name=top)
        stem = Path(spec.submodule_search_locations[0]).joinpath(*rest)
        return stem.with_suffix(".py") if not stem.is_dir() else stem / "__init__.py"


_TORCH_LAYERS = ("nn-mha", "nn-mha-fast", "nn-mha-weights")
_KERAS_HEADS = ("keras-mha", "keras-mha-scores", "keras-gqa", "keras-gqa-scores")

TARGETS = (
    Target(
        "torch", "torch", "torch.nn.functional",
        ("multi_head_attention_forward", "_canonical_mask", "_in_projection_packed", "_in_projection"),
        "torch", _TORCH_LAYERS,
    ),
    Target(
        "torch", "torch", "torch.nn.modules.activation", ("MultiheadAttention.*",),
        "torch", _TORCH_LAYERS,
    ),
    Target(
        "torch", "torch", "torch._higher_order_ops.flex_attention",
        ("_math_attention_inner", "math_attention"), "torch", ("flex",),
    ),
    Target(
        "torch", "torch", "torch.nn.attention.flex_attention",
        ("flex_attention", "create_mask", "create_block_mask", "_convert_mask_to_block_mask"),
        "torch", ("flex",),
    ),
    Target(
        "torch", "torch", "torch.nn.attention.bias",
        ("CausalBias.*", "causal_upper_left", "causal_lower_right"), "torch", ("sdpa",),
    ),
    Target(
        "torch", "torch", "torch.nn.modules.batchnorm", ("_NormBase.__init__", "_BatchNorm.forward"),
        "torch", ("nn-batch-norm",),
    ),
    Target(
        "torch", "torch", "torch.nn.modules.normalization", ("LayerNorm.__init__",),
        "torch", ("nn-layer-norm",),
    ),
    Target(
        "keras", "keras", "keras.src.layers.attention.multi_head_attention",
        ("MultiHeadAttention.*", "_build_attention_equation",
         "_build_proj_equation"),
        "tf", _KERAS_HEADS,
    ),
    Target(
        "keras", "keras", "keras.src.layers.attention.grouped_query_attention",
        ("GroupedQueryAttention.*",), "tf", _KERAS_HEADS,
    ),
    Target(
        "keras", "keras", "keras.src.layers.attention.attention", ("Attention.*",),
        "tf", ("keras-attention", "keras-attention-concat", "keras-additive"),
    ),
    Target(
        "keras", "keras", "keras.src.layers.attention.additive_attention", ("AdditiveAttention.*",),
        "tf", ("keras-additive",),
    ),
    Target(
        "keras", "keras", "keras.src.backend.tensorflow.nn",
        ("_get_large_negative", "_apply_masks", "_dot_product_attention_xla", "dot_product_attention"),
        "tf", ("keras-ops",),
    ),
    Target(
        "keras", "keras", "keras.src.backend.torch.nn",
        ("_get_large_negative", "_can_use_flash_attention", "dot_product_attention"),
        "keras-torch", ("keras-ops",),
    ),
    Target(
        "keras", "keras", "keras.src.backend.jax.nn",
        ("_apply_masks", "_dot_product_attention_core", "dot_product_attention"),
        "keras-jax", ("keras-ops",),
    ),
    Target(
        "keras", "keras", "keras.src.ops.nn",
        ("dot_product_attention", "layer_normalization", "_layer_normalization"),
        "tf", ("keras-ops", "keras-layer-norm"), ("keras-torch", "keras-jax"),
    ),
    Target(
        "keras", "keras", "keras.src.layers.activations.softmax", ("Softmax.*", "_large_negative_number"),
        "tf", _KERAS_HEADS,
    ),
    Target(
        "keras", "keras", "keras.src.layers.normalization.layer_normalization",
        ("LayerNormalization.*",), "tf", ("keras-layer-norm",),
    ),
    # Renormalisation is not asked.
    Target(
        "keras", "keras", "keras.src.layers.normalization.batch_normalization",
        ("BatchNormalization.__init__", "BatchNormalization.build", "BatchNormalization.call",
         "BatchNormalization._moments"),
        "tf", ("keras-batch-norm",),
    ),
    Target(
        "jax", "jax", "jax._src.nn.functions",
        ("_get_large_negative", "_get_causal_mask", "_get_window_mask", "_get_padding_mask_logits",
         "_get_padding_mask_encoded", "_apply_masks", "_dot_product_attention_core",
         "_dot_product_attention_xla", "dot_product_attention"),
        "jax", ("jax-nn",),
    ),
    Target(
        "flax", "flax", "flax.nnx.nn.attention",
        ("MultiHeadAttention.*", "dot_product_attention_weights", "dot_product_attention"),
        "jax", ("flax-nnx", "flax-nnx-weights", "flax-nnx-function"),
    ),
    Target(
        "flax", "flax", "flax.linen.attention",
        ("MultiHeadDotProductAttention.*", "dot_product_attention_weights", "dot_product_attention"),
        "jax", ("flax-linen", "flax-linen-function"),
    ),
    Target(
        "flax", "flax", "flax.linen.normalization",
        ("_canonicalize_axes", "_abs_sq", "_compute_stats", "_normalize", "BatchNorm.*", "LayerNorm.*"),
        "jax", ("flax-layer-norm", "flax-batch-norm"),
    ),
)  # fmt: skip

FRAMEWORKS = tuple(dict.fromkeys(target.framework for target in TARGETS))


def targets(framework: str, module: str = "") -> tuple[Target, ...]:
    """The targets of a framework, or those of one of its modules.

    Raises ValueError that lists the valid modules.
    """
    mine = tuple(target for target in TARGETS if target.framework == framework)
    chosen = tuple(target for target in mine if module in ("", target.module))
    if not chosen:
        valid = ", ".join(target.module for target in mine)
        raise ValueError(f"unknown module {module!r} of {framework}; valid: {valid}")
    return chosen
