"""The operators, one file each; norms, and layers of one head, share a file.

A new operator has a line in the table below, a file here, a reference, textbook code in `backends`, and
mutants.
"""

from __future__ import annotations

from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.operators.cached import CACHED
from attention_conformance.suite.spec.operators.encoder import ENCODER
from attention_conformance.suite.spec.operators.latent import LATENT
from attention_conformance.suite.spec.operators.merge import MERGE
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM
from attention_conformance.suite.spec.operators.one_head import ADDITIVE, CONCAT, DOT
from attention_conformance.suite.spec.operators.packed import PACKED
from attention_conformance.suite.spec.operators.paged import PAGED
from attention_conformance.suite.spec.operators.paged_write import PAGED_WRITE
from attention_conformance.suite.spec.operators.quantized import QUANTIZED
from attention_conformance.suite.spec.operators.quantized_write import QUANTIZED_WRITE
from attention_conformance.suite.spec.operators.rotary import ROTARY
from attention_conformance.suite.spec.operators.sdpa import SDPA
from attention_conformance.suite.spec.vocabulary import FEATURES as COMMON

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        SDPA, MULTI_HEAD, ADDITIVE, DOT, CONCAT, LAYER_NORM, BATCH_NORM,
        ROTARY, PACKED, MERGE, ENCODER, PAGED, PAGED_WRITE, CACHED, LATENT,
        QUANTIZED, QUANTIZED_WRITE,
    )
}  # fmt: skip
"""Every operator by name."""


def computed_like(name: str) -> Operator:
    """Returns the operator that a function or layer of `--like=NAME` computes. Raises KeyError for an
    unknown name."""
    return {kind: operator for operator in OPERATORS.values() for kind in operator.kinds}[name]


WORDS: dict[str, str] = {
    **COMMON,
    **{feature.word: feature.text for feature in FEATURES.values()},
    **{word: text for operator in OPERATORS.values() for word, text in operator.words.items()},
}
"""Every word for a required feature, with its meaning."""
