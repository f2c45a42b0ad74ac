"""Textbook attention with the ALiBi of three models of transformers: Bloom, Falcon, MPT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from attention_conformance.backends._torch.attention import EAGER, operations
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._transformers.attention import modeling
from attention_conformance.backends.textbook.attention import OwnAlibi
from attention_conformance.suite.spec.inputs import Inputs


def built(model: str, backend: TorchEngine, inputs: Inputs) -> Callable[[], Any]:
    """`build_alibi_tensor` of a model: keys numbered from 0. Bloom's slopes are float32 and cast to the
    dtype; Falcon's slopes and products are bfloat16."""
    torch, home, s = backend.torch, modeling(model), inputs.sizes
    dtype = getattr(torch, inputs.dtype.long_name)

    def bias() -> Any:
        shown = torch.ones((1, s.Lk), dtype=int, device=backend.device)
        return home.build_alibi_tensor(shown, s.H, dtype).view(1, s.H, 1, s.Lk)

    return bias


def mpt(backend: TorchEngine, inputs: Inputs) -> Callable[[], Any]:
    """`build_mpt_alibi_tensor`: slopes in float32, keys numbered up to 0; cast to the dtype here."""
    home, s = modeling("mpt"), inputs.sizes
    dtype = getattr(backend.torch, inputs.dtype.long_name)

    def bias() -> Any:
        alibi = home.build_mpt_alibi_tensor(s.H, s.Lk, device=backend.device)
        return alibi.view(1, s.H, 1, s.Lk).to(dtype)

    return bias


def alibis(backend: TorchEngine) -> list[OwnAlibi]:
    """Textbook attention with the ALiBi of each model."""
    # Slopes are float32, also in float64 calls.
    declared = EAGER.but(
        numerics={"f64": "single", "f32": "eager", "bf16": "eager", "f16": "eager"}
    )
    makers: dict[str, Callable[[TorchEngine, Inputs], Callable[[], Any]]] = {
        "bloom-alibi": partial(built, "bloom"),
        "falcon-alibi": partial(built, "falcon"),
        "mpt-alibi": mpt,
    }
    ops = operations(backend.torch)
    return [
        OwnAlibi(backend, name, ops, declared, partial(make, backend))
        for name, make in makers.items()
    ]
