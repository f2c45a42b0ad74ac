"""Faults of what a cache, or its layer, remembers besides tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.caching import Turn
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.cached import (
    CachedKernel,
    Held,
    HeldSigns,
    ProjectedKernel,
)
from attention_conformance.suite.spec.inputs import Inputs

FAMILY = "cache"


@fault(
    "stateless",
    "a buffer for each shape; clear it, or hide what an earlier call left",
    family="state",
)
class CachedKeptByCalls(CachedKernel):
    """The cache of the last call of a shape serves the next one, with its tokens."""

    def init(self, inputs: Inputs, key: Any) -> Held:
        kept = self.__dict__.setdefault("kept", {})
        new = super().init(inputs, key)
        old = kept.get(new.key.shape)
        if old is not None:
            new.key, new.value, new.positions = old.key, old.value, old.positions
        kept[new.key.shape] = new
        return new


@dataclass
class HeldOptions(Held):
    """A cache that knows inputs of an earlier step."""

    first: Inputs | None = None


@fault("values", "`self.scale = scale` in the first step; every step has options of its own")
class CachedOptionsOfTheFirstStep(CachedKernel):
    """Softcap, sinks, slopes, scale, bias and base of the first step serve all later sequences."""

    holds = HeldOptions

    def step(
        self, state: Held, query: Rounded, key: Rounded, value: Rounded, turn: Turn
    ) -> tuple[Rounded, Held]:
        assert isinstance(state, HeldOptions)
        state.first = state.first or turn.inputs
        return super().step(state, query, key, value, replace(turn, inputs=state.first))


@fault(
    "values", "`self.w_qk = w_q @ w_k.T` when the layer is made; absorb parameters in every step"
)
class CachedAbsorbedQueries(ProjectedKernel):
    """Queries and keys are projected by what their parameters were in the first step."""

    def projections(self, held: HeldSigns, signs: Sequence[int]) -> Sequence[int]:
        return (*(held.signs or signs)[:2], *signs[2:])


@fault("values", "`self.w_vo = w_v @ w_o` when the layer is made; absorb parameters in every step")
class CachedAbsorbedRows(ProjectedKernel):
    """Rows are projected by what the parameters were in the first step."""

    def projections(self, held: HeldSigns, signs: Sequence[int]) -> Sequence[int]:
        return (*signs[:3], *(held.signs or signs)[3:])
