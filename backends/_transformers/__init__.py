"""transformers on torch: attention functions and rotary embeddings of its models.

Modules are made from configurations, without downloads. transformers is imported when the backend is
created.
"""

from __future__ import annotations

import os

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._transformers.attention import (
    GEMMA2,
    GPT_OSS,
    LLAMA,
    SDPA_FORWARD,
)
from attention_conformance.backends._transformers.cached import (
    DynamicEager,
    DynamicFlex,
    DynamicRecording,
    DynamicSdpa,
    PackedByPositions,
    PackedEager,
    QuantizedFp8,
    StaticSdpa,
)
from attention_conformance.backends._transformers.latent import DeepseekV3
from attention_conformance.backends._transformers.positions import alibis, rotaries
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.protocol import Implementation, needed


class TransformersBackend(TorchEngine):
    """transformers on torch, on "cpu" or "cuda"."""

    name = "transformers"
    modules = distributions = ("transformers", "torch")

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        # transformers must download nothing, kernels included.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        with needed():
            import transformers  # noqa: F401

    def implementations(self) -> list[Implementation]:
        every = (
            PackedByPositions, PackedEager,
            DynamicSdpa, DynamicEager, DynamicFlex, DynamicRecording, QuantizedFp8,
            StaticSdpa, DeepseekV3,
        )  # fmt: skip
        rows = [FrameworkFunction(self, one) for one in (LLAMA, GEMMA2, GPT_OSS, SDPA_FORWARD)]
        return [*rows, *alibis(self), *rotaries(self), *(kind(self) for kind in every)]
