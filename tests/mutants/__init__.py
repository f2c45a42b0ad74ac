"""Mutants and honest variants as two third-party backends, which any judge can load.

pytest suite --backend=tests.mutants:mutants
pytest suite --backend=tests.mutants:honest
"""

from __future__ import annotations

from typing import Any

from backends.protocol import Backend
from tests.mutants import (  # noqa: F401  (imported so that they register their mutants)
    faults_alibi,
    faults_ambient,
    faults_contract,
    faults_dropout,
    faults_encoder,
    faults_flags,
    faults_gated,
    faults_gradient_calls,
    faults_gradient_layouts,
    faults_gradient_passes,
    faults_gradients,
    faults_hidden,
    faults_invariance,
    faults_layer_calls,
    faults_layer_gradients,
    faults_layer_masks,
    faults_layer_options,
    faults_layer_paths,
    faults_layer_scores,
    faults_layers,
    faults_layouts,
    faults_logit_scale,
    faults_long_rows,
    faults_lse,
    faults_masks,
    faults_merge,
    faults_modes,
    faults_nobody,
    faults_packed,
    faults_paths,
    faults_persons,
    faults_precision,
    faults_qk_norm,
    faults_range,
    faults_rotary,
    faults_scores,
    faults_shapes,
    faults_sinks,
    faults_softmax,
    faults_spread,
    faults_state,
)
from tests.mutants.backend import KernelBackend
from tests.mutants.honest import HONEST
from tests.mutants.registry import MUTANTS


class MutantBackend(KernelBackend):
    """The mutants; an array of `faults_contract.Elsewhere` is on another device."""

    def device_name(self, array: Any) -> str:
        return "elsewhere" if isinstance(array, faults_contract.Elsewhere) else "cpu"


def mutants(device: str = "cpu") -> Backend:
    """Implementations with exactly one fault each."""
    return MutantBackend("mutants", tuple(MUTANTS), device)


def honest(device: str = "cpu") -> Backend:
    """Right implementations that round differently."""
    return KernelBackend("honest", HONEST, device)
