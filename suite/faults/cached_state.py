"""Faults of what a cache, or its layer, remembers besides tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.caching import Turn
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.cached import (
    CachedKernel,
    Held,
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


def cached_options_of_the_first_step(
    right: CachedKernel, state: Held, query: Rounded, key: Rounded, value: Rounded, turn: Turn
) -> tuple[Rounded, Held]:
    assert isinstance(state, HeldOptions)
    state.first = state.first or turn.inputs
    return right.step(state, query, key, value, replace(turn, inputs=state.first))


row = partial(deviation, family=FAMILY, right=ProjectedKernel)

DEVIATIONS = [
    row("cached-options-of-the-first-step", "values",
        "Softcap, sinks, slopes, scale, bias and base of the first step serve all later sequences.",
        "`self.scale = scale` in the first step; every step has options of its own",
        right=CachedKernel, facts={"holds": HeldOptions}, step=cached_options_of_the_first_step),
    row("cached-absorbed-queries", "values",
        "Queries and keys are projected by what their parameters were in the first step.",
        "`self.w_qk = w_q @ w_k.T` when the layer is made; absorb parameters in every step",
        projections=lambda right, held, signs: (*(held.signs or signs)[:2], *signs[2:])),
    row("cached-absorbed-rows", "values",
        "Rows are projected by what the parameters were in the first step.",
        "`self.w_vo = w_v @ w_o` when the layer is made; absorb parameters in every step",
        projections=lambda right, held, signs: (*signs[:3], *(held.signs or signs)[3:])),
]  # fmt: skip
