"""Textbook attention with the ALiBi of three models of transformers: Bloom, Falcon, MPT."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from attention_conformance.backends._torch.attention import Eager
from attention_conformance.backends._transformers.models import modeling
from attention_conformance.backends.alibi import NO_OPERAND, refusal, with_own_bias
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs


class ModelAlibi(Eager):
    """Textbook attention with the ALiBi bias (1, H, 1, Lk) of one model."""

    textbook = False
    declared = Eager.declared.refusing(NO_OPERAND).but(
        # Slopes are float32, also in float64 calls.
        numerics={"f64": "single", "f32": "eager", "bf16": "eager", "f16": "eager"}
    )
    model = ""
    """The model's name in transformers, as "bloom"."""

    def unsupported(self, case: AnyCase) -> str | None:
        return refusal(case) or super().unsupported(case)

    def refuses(self, inputs: Inputs) -> str | None:
        # Probes of undeclared elections have no bias.
        return None if inputs.bias is None else super().refuses(inputs)

    @abstractmethod
    def bias(self, home: Any, heads: int, keys: int, dtype: Any) -> Any:
        """The bias (1, H, 1, Lk) in the dtype of the scores; `home` is the module of the model's code."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        home, s = modeling(self.model), inputs.sizes
        dtype = getattr(self.backend.torch, inputs.dtype.long_name)

        def bias() -> Any:
            return self.bias(home, s.H, s.Lk, dtype)

        return with_own_bias(super().prepare(inputs), inputs, bias)


class BloomAlibi(ModelAlibi):
    """Bloom's `build_alibi_tensor`: slopes in float32, keys numbered from 0, cast to the dtype."""

    name = "bloom-alibi"
    model = "bloom"

    def bias(self, home: Any, heads: int, keys: int, dtype: Any) -> Any:
        shown = self.backend.torch.ones((1, keys), dtype=int, device=self.backend.device)
        return home.build_alibi_tensor(shown, heads, dtype).view(1, heads, 1, keys)


class FalconAlibi(BloomAlibi):
    """Falcon's `build_alibi_tensor`: Bloom's function, but with slopes and products in bfloat16."""

    name = "falcon-alibi"
    model = "falcon"


class MptAlibi(ModelAlibi):
    """`build_mpt_alibi_tensor`: slopes in float32, keys numbered up to 0; cast to the dtype here."""

    name = "mpt-alibi"
    model = "mpt"

    def bias(self, home: Any, heads: int, keys: int, dtype: Any) -> Any:
        alibi = home.build_mpt_alibi_tensor(heads, keys, device=self.backend.device)
        return alibi.view(1, heads, 1, keys).to(dtype)
