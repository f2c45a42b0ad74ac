"""The operators, one file each.

A new operator has a line in the table below, a file here, a reference, textbook code in `backends`, and
mutants.
"""

from __future__ import annotations

from suite.spec.features import FEATURES
from suite.spec.operator import Operator
from suite.spec.operators.additive import ADDITIVE
from suite.spec.operators.batch_norm import BATCH_NORM
from suite.spec.operators.cached import CACHED
from suite.spec.operators.concat import CONCAT
from suite.spec.operators.dot import DOT
from suite.spec.operators.encoder import ENCODER
from suite.spec.operators.gated import GATED
from suite.spec.operators.latent import LATENT
from suite.spec.operators.layer_norm import LAYER_NORM
from suite.spec.operators.masked import MASKED
from suite.spec.operators.merge import MERGE
from suite.spec.operators.multi_head import MULTI_HEAD
from suite.spec.operators.packed import PACKED
from suite.spec.operators.paged import PAGED
from suite.spec.operators.paged_write import PAGED_WRITE
from suite.spec.operators.quantized import QUANTIZED
from suite.spec.operators.quantized_write import QUANTIZED_WRITE
from suite.spec.operators.rotary import ROTARY
from suite.spec.operators.sdpa import SDPA
from suite.spec.operators.self_attention import SELF_ATTENTION
from suite.spec.vocabulary import FEATURES as COMMON

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        SDPA, MULTI_HEAD, SELF_ATTENTION, ADDITIVE, DOT, CONCAT, MASKED, LAYER_NORM, BATCH_NORM,
        ROTARY, PACKED, MERGE, ENCODER, GATED, PAGED, PAGED_WRITE, CACHED, LATENT,
        QUANTIZED, QUANTIZED_WRITE,
    )
}  # fmt: skip
"""Every operator by name."""

WORDS: dict[str, str] = {
    **COMMON,
    **{feature.word: feature.text for feature in FEATURES.values()},
    **{word: text for operator in OPERATORS.values() for word, text in operator.words.items()},
}
"""Every word for a required feature, with its meaning."""
