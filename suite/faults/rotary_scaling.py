"""Faults of the scaled variants of rotary position embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.references.rotary import frequencies
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.rotary import RotaryKernel, Turn
from attention_conformance.suite.spec.operators.rotary import ORIGINAL_LENGTH

FAMILY = "rotary"


class Scaled(RotaryKernel):
    """A rotation whose scaled variant `variant` is not what it should be."""

    variant = ""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        if turn.rotation.scaling != self.variant:
            return super().frequencies(turn)
        pair = self.otherwise(turn)
        return pair[0].astype(turn.work), turn.work(pair[1])

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        """The frequencies and the factor instead."""
        raise NotImplementedError

    def plain(self, turn: Turn, base: float = 0.0) -> np.ndarray:
        """Frequencies without scaling."""
        exponent = np.arange(0, turn.rotation.size, 2) / turn.rotation.size
        return (base or turn.rotation.base) ** -exponent


@fault("values", "`rope_scaling` is not read; linear: `inv_freq / factor`")
class RotaryLinearIgnored(Scaled):
    """Linear scaling of positions has no effect."""

    variant = "linear"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        return self.plain(turn), 1.0


@fault("values", "`growth` from L below the original length, too; take `max(L, original)`")
class RotaryGrowsFromTheFirst(Scaled):
    """Dynamic NTK: the base changes within the original length, too."""

    variant = "ntk"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        size, growth = turn.rotation.size, max(4.0 * turn.length / ORIGINAL_LENGTH - 3, 0.1)
        return self.plain(turn, turn.rotation.base * growth ** (size / (size - 2))), 1.0


@fault(
    "values",
    "`inv_freq` of `__init__` for every length; recompute the base beyond the original length",
)
class RotaryNeverGrows(Scaled):
    """Dynamic NTK: the base does not grow beyond the original length."""

    variant = "ntk"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        return self.plain(turn), 1.0


@fault(
    "values",
    "`where(turns < 1, inv_freq / factor, inv_freq)`; between 1 and 4 turns mix both smoothly",
)
class RotaryMixedInSteps(Scaled):
    """llama3: frequencies between both ends are kept as they are, not mixed."""

    variant = "llama3"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        theta = self.plain(turn)
        turns = ORIGINAL_LENGTH * theta / (2 * np.pi)
        return np.where(turns < 1.0, theta / 4.0, theta), 1.0


@fault("values", "`cos`, `sin` without `* attention_factor`, which is `0.1 * log(factor) + 1`")
class RotaryYarnWithoutFactor(Scaled):
    """yarn: sine and cosine are not multiplied by the attention factor."""

    variant = "yarn"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        return frequencies(turn.rotation, turn.position).theta, 1.0


@fault("values", "`ramp` for `1 - ramp`; fast components are kept, slow ones divided by the factor")
class RotaryYarnRampReversed(Scaled):
    """yarn: fast components are divided by the factor, slow ones kept."""

    variant = "yarn"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        reference, theta = frequencies(turn.rotation, turn.position), self.plain(turn)
        return theta / 4.0 + theta - reference.theta, reference.attention


@fault("values", "`short_factor` always; beyond the original length it is `long_factor`")
class RotaryAlwaysShort(Scaled):
    """longrope: long sequences take the factors of short ones."""

    variant = "longrope"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        reference = frequencies(turn.rotation, turn.position)
        return self.plain(turn) / turn.rotation.short_factors(), reference.attention


@fault(
    "norm_kept",
    "`cos * attention_factor` in every variant; it is 1 unless yarn or longrope is asked for",
)
class RotaryGrowsLikeYarn(RotaryKernel):
    """Sine and cosine are multiplied by yarn's factor, whatever variant is asked for."""

    def table(self, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
        cosine, sine = super().table(turn)
        factor = turn.work(0.1 * np.log(4.0) + 1)
        return cosine * factor, sine * factor


@fault("values", "`attention_factor` is not read; if it is given, it replaces the variant's own")
class RotaryGivenFactorIgnored(RotaryKernel):
    """A given factor on sine and cosine has no effect."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        own = replace(turn.rotation, scaling=turn.rotation.variant)
        return super().frequencies(replace(turn, rotation=own))


@fault("values", "`own * attention_factor`; a given factor replaces the variant's own")
class RotaryGivenFactorMultiplied(RotaryKernel):
    """A given factor on sine and cosine is multiplied by the variant's own."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        theta, factor = super().frequencies(turn)
        own = replace(turn.rotation, scaling=turn.rotation.variant)
        if turn.rotation.scaling.endswith("-factor"):
            factor = factor * super().frequencies(replace(turn, rotation=own))[1]
        return theta, factor


@fault("values", "`get_mscale(mscale_all_dim) / get_mscale(mscale)`; it is the other way round")
class RotaryMscaleReversed(RotaryKernel):
    """yarn: `mscale` and `mscale_all_dim` are exchanged."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        theta, factor = super().frequencies(turn)
        return theta, 1 / factor if turn.rotation.scaling == "yarn-mscale" else factor
